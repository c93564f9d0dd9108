"""Scoring servers that fail, lie and hang, and what a reward function sees of the worker that has it run."""

from __future__ import annotations

import asyncio
import json
import os
import pickle
import signal
import socket
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from tests.waiting import within
from user_modules import user_module

from rljob_contract.samples import job_config
from rljob_core.config import JobConfig
from rljob_core.errors import RewardFailed, SpecError
from rljob_core.trajectory import FinishReason
from rljob_runtime.process.frames import ServerConnection, frame, read_frame
from rljob_runtime.rewards import scorer as scorer_module
from rljob_runtime.rewards import server_start
from rljob_runtime.rewards.messages import (
    GREETING,
    LARGEST_REQUEST,
    ScoringJob,
    ScoringOutcome,
    setup_reply,
)
from rljob_runtime.rewards.places import Child, Container, scoring_environment
from rljob_runtime.rewards.scorer import Scorer

#: A user's reward function: what it does is what the answer says.
USER_MODULE = """
import json, os, signal, socket, sys, time
from pathlib import Path

def server():
    return int(Path(f"/proc/{os.getppid()}/stat").read_text().rpartition(")")[2].split()[1])

def attempt(action):
    try:
        return str(action())
    except OSError as error:
        return type(error).__name__

def parent(pid):
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])

def seen(port):
    outside = parent(server())  # the reward worker
    return {
        "variables": dict(os.environ),
        "files": [attempt(lambda: os.readlink(file)) for file in Path("/proc/self/fd").iterdir()],
        "worker's variables": attempt(lambda: Path(f"/proc/{outside}/environ").read_bytes()),
        "worker's memory": attempt(lambda: open(f"/proc/{outside}/mem", "rb")),
        "worker's files": attempt(lambda: os.readlink(f"/proc/{outside}/fd/0")),
        "worker's death": attempt(lambda: os.kill(outside, signal.SIGCONT)),
        "TCP": attempt(lambda: socket.create_connection(("127.0.0.1", port))),
        "UDP": attempt(lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM)),
        "IPv6": attempt(lambda: socket.socket(socket.AF_INET6)),
        "raw": attempt(lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW)),
        "netlink": attempt(lambda: socket.socket(socket.AF_NETLINK, socket.SOCK_RAW)),
        "imported": sorted(name for name in sys.modules if "nats" in name),
    }

def act(*, completion, item):
    word, _, rest = completion.partition(" ")
    if word == "see":
        Path(rest.split()[0]).write_text(json.dumps(seen(int(rest.split()[1]))))
    if word == "kill-server":
        os.kill(server(), signal.SIGKILL)
        time.sleep(600)
    if word == "stop-server":
        os.kill(server(), signal.SIGSTOP)
        time.sleep(600)
    return len(rest)
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    return user_module(tmp_path, monkeypatch, USER_MODULE)


def config_of(*functions: str, **reward: Any) -> JobConfig:
    scored = {"functions": list(functions), "timeoutSeconds": 20, **reward}
    return job_config(Path("model"), reward=scored, evaluation={})


async def outcomes(scorer: Scorer, *completions: str) -> list[ScoringOutcome]:
    async with within():
        return await asyncio.gather(*(scorer.score(ScoringJob(0, False, text)) for text in completions))


# ---------------------------------------------------------------------------------------- what a function sees


def test_all_that_a_function_can_see_and_reach(tmp_path: Path, module: str) -> None:
    """Through the way that a reward worker takes, with secrets wherever a worker may have some."""
    secrets = {
        "RLJOB_NATS_URL": "nats://secret:4222",
        "RLJOB_NATS_CREDENTIALS": "secret",
        "RLJOB_CONFIG": "/secret",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "GOOGLE_APPLICATION_CREDENTIALS": "/secret",
        "HF_TOKEN": "secret",
        "KUBERNETES_SERVICE_HOST": "secret",
    }
    config = config_of(f"{module}:act")
    with socket.create_server(("127.0.0.1", 0)) as nats, (tmp_path / "secret").open("w+") as secret:
        seen = tmp_path / "seen.json"
        answer = {"prompt": 0, "completion": f"see {seen} {nats.getsockname()[1]}"}
        subprocess.run(
            [sys.executable, "-m", "rljob_contract.reward_scores", config.model_dump_json(by_alias=True)],
            input=json.dumps([answer]).encode(),
            stdout=subprocess.PIPE,
            check=True,
            pass_fds=[secret.fileno()],
            env={**os.environ, **secrets, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
    found = json.loads(seen.read_text())
    variables, files = found.pop("variables"), found.pop("files")
    assert not secrets.keys() & variables.keys()
    assert not [name for name, value in variables.items() if "secret" in value]
    assert {name for name in variables if name.startswith("RLJOB_")} <= {
        "RLJOB_CLUSTER", "RLJOB_DIE_WITH_PARENT", "RLJOB_SUPERVISOR"
    }  # fmt: skip
    assert not [name for name in files if "secret" in name]
    assert found == {
        "worker's variables": "PermissionError",
        "worker's memory": "PermissionError",
        "worker's files": "PermissionError",
        "worker's death": "PermissionError",
        "TCP": "PermissionError",
        "UDP": "PermissionError",
        "IPv6": "PermissionError",
        "raw": "PermissionError",
        "netlink": "PermissionError",
        "imported": [],
    }


def test_functions_reach_the_network_only_if_the_job_says_so(tmp_path: Path, module: str) -> None:
    config = config_of(f"{module}:act", network=True)

    async def see() -> Any:
        scorer = Scorer(config, workers=1)
        with socket.create_server(("127.0.0.1", 0)) as judge:
            try:
                await scorer.start()
                await outcomes(scorer, f"see {tmp_path / 'seen.json'} {judge.getsockname()[1]}")
            finally:
                await scorer.close()
        return json.loads((tmp_path / "seen.json").read_text())

    found = asyncio.run(see())
    assert found["TCP"].startswith("<socket.socket")
    assert found["worker's memory"] == "PermissionError"


def test_variables_that_a_job_names_reach_functions() -> None:
    ours = {"PATH": "/bin", "JUDGE_KEY": "key", "HF_TOKEN": "secret", "RLJOB_NATS_CREDENTIALS": "secret"}
    source = {"secretKeyRef": {"name": "judge", "key": "key"}}
    named = [
        {"name": "JUDGE_KEY", "valueFrom": source},
        {"name": "JUDGE", "value": "large"},
        {"name": "MISSING", "valueFrom": source},
    ]
    other = [{"name": "HF_TOKEN", "valueFrom": source}]
    containers = [{"name": "reward", "env": other}, {"name": "scorer", "env": named}]
    assert scoring_environment(ours, {}) == {"PATH": "/bin"}
    assert scoring_environment(ours, {"spec": {"containers": containers}}) == {
        "PATH": "/bin",
        "JUDGE_KEY": "key",
        "JUDGE": "large",
    }


async def test_the_worker_never_imports_a_function(module: str) -> None:
    scorer = Scorer(config_of(f"{module}:act"), workers=1)
    try:
        await scorer.start()
        (outcome,) = await outcomes(scorer, "good xyz")
    finally:
        await scorer.close()
    assert outcome.reward == 3.0
    assert module not in sys.modules


async def test_rows_of_a_file_come_with_their_answers(tmp_path: Path) -> None:
    """The scoring side opens no file of the job's."""
    file = tmp_path / "rows.jsonl"
    rows = [{"question": f"{i}+1=", "answer": str(i + 1)} for i in range(20)]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    config = job_config(
        Path("model"), data={"source": "jsonl", "dataset": str(file)}, reward={"functions": ["exact_match"]}
    )
    scorer = Scorer(config, workers=1)
    try:
        await scorer.start()
        file.unlink()
        jobs = [ScoringJob(i, False, "7") for i in range(40)]
        scored = await asyncio.gather(*map(scorer.score, jobs))
    finally:
        await scorer.close()
    assert sum(outcome.reward for outcome in scored) == 2.0, "the row is in each of the two epochs once"
    assert {outcome.expected for outcome in scored} == {row["answer"] for row in rows}


async def test_a_group_is_scored_by_one_call_once_each_answer_has_passed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "import time\nimport numpy as np\n"
    text += "def size(completion): return len(completion) if completion != 'bad' else 1 / 0\n"
    text += "def zero(completions): return [0] * len(completions)\ndef rank(completions, item, truncated):\n"
    text += "    time.sleep(600 if 'slow' in completions else 0)\n"
    text += "    return np.arange(len(completions)) + 10 * np.array(truncated)\n"
    name = user_module(tmp_path, monkeypatch, text)
    functions = [f"{name}:rank", "exact_match", f"{name}:size", f"{name}:zero"]
    config = config_of(
        *functions,
        perGroup=[functions[3], functions[0]],
        timeoutSeconds=3,
        timeoutScore=-1,
        weights=[10, 1, 1, 1],
    )

    def group(*completions: str) -> list[ScoringJob]:
        finishes = [FinishReason.LENGTH if text == "long" else FinishReason.STOP for text in completions]
        return [ScoringJob(0, False, t, finish=f) for t, f in zip(completions, finishes, strict=True)]

    scorer = Scorer(config, workers=1)
    try:
        await scorer.start()
        async with within():
            good, bad, slow = await asyncio.gather(
                *map(scorer.score_group, (group("a", "bb", "long"), group("a", "bad"), group("a", "slow")))
            )
            alone = await scorer.score(ScoringJob(0, True, "a"))
    finally:
        await scorer.close()
    rank, _, size, zero = functions
    assert [(one.parts[rank], one.parts[size], one.reward) for one in good] == [
        (0, 1, 1),
        (1, 2, 12),
        (12, 4, 124),
    ]
    assert bad[0] is None
    assert str(bad[1].failure).startswith(f"RewardRaised: {size} raised ZeroDivisionError")
    assert [one.parts for one in slow] == [
        {"exact_match": 0, size: 1, rank: -1, zero: -1},
        {"exact_match": 0, size: 4, rank: -1, zero: -1},
    ]
    assert alone.parts == {"exact_match": 0, size: 1, rank: 0, zero: 0}, "a held-out answer is a group of one"


# ---------------------------------------------------------------------------------------- servers that are attacked


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("word", "reason"), [("kill-server", "RewardCrashed"), ("stop-server", "RewardTimeout")]
)
async def test_a_function_that_ends_its_server_costs_its_own_answer(
    module: str, monkeypatch: pytest.MonkeyPatch, word: str, reason: str
) -> None:
    monkeypatch.setattr(scorer_module, "_SILENCE", 3.0)
    monkeypatch.setattr(server_start, "_STARTS", 0.5)
    scorer = Scorer(config_of(f"{module}:act", timeoutSeconds=1), workers=1)
    try:
        await scorer.start()
        found = await outcomes(scorer, "good x", "good xx", f"{word} x", "good xxx", "good xxxx")
        assert (await outcomes(scorer, "good xy"))[0].reward == 2.0
    finally:
        await scorer.close()
    assert [outcome.reward for outcome in found] == [1.0, 2.0, 0.0, 3.0, 4.0]
    assert [outcome.failure.reason if outcome.failure else "" for outcome in found] == [
        "",
        "",
        reason,
        "",
        "",
    ]


Lie = Callable[[int, asyncio.StreamWriter], Awaitable[None]]


def says(content: bytes) -> Lie:
    """A lie about the answer whose number stands for N."""

    async def lie(number: int, writer: asyncio.StreamWriter) -> None:
        writer.write(content)

    return lie


def replies(text: bytes) -> Lie:
    async def lie(number: int, writer: asyncio.StreamWriter) -> None:
        writer.write(frame(text.replace(b"N", str(number).encode(), 1)))

    return lie


async def flood(number: int, writer: asyncio.StreamWriter) -> None:
    while True:
        writer.write(frame(b'{"number": 99999, "scores": [1.0]}') * 1000)
        await writer.drain()


async def leave(number: int, writer: asyncio.StreamWriter) -> None:
    writer.close()


LIES: dict[str, Lie] = {
    "floods": flood,
    "leaves": leave,
    "a frame of 4 GiB": says(b"\xff\xff\xff\xff" + bytes(1000)),
    "a frame just too large": says((16385).to_bytes(4, "big") + bytes(16385)),
    "no JSON": replies(b"\x80\x05cos\nsystem\n(S'true'\ntR."),
    "nested JSON": replies(b"[" * 16000),
    "another number": replies(b'{"number": 99999, "scores": [1.0]}'),
    "no number": replies(b'{"number": N.5, "scores": [1.0]}'),
    "NaN": replies(b'{"number": N, "scores": [NaN]}'),
    "an infinity": replies(b'{"number": N, "scores": [1e999]}'),
    "a score beyond the largest": replies(b'{"number": N, "scores": [1e7]}'),
    "text for a score": replies(b'{"number": N, "scores": ["1"]}'),
    "two scores": replies(b'{"number": N, "scores": [1.0, 1.0]}'),
    "no scores": replies(b'{"number": N}'),
    "an unknown reason": replies(b'{"number": N, "reason": "PayloadCorrupt", "detail": "generate again"}'),
    "an endless error": replies(b'{"number": N, "reason": "RewardRaised", "detail": "' + b"x" * 2000 + b'"}'),
    "no Unicode": replies(b'{"number": N, "reason": "RewardRaised", "detail": "\\ud800"}'),
    "another field": replies(b'{"number": N, "scores": [1.0], "digest": "x"}'),
}


class LyingPlace:
    """Servers that tell the same lie, until they are replaced by real ones."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lie: Lie | None = leave
        self.connections = 0
        self._honest = Child(os.environ)
        self._server: asyncio.Server | None = None

    async def connect(self) -> ServerConnection:
        self.connections += 1
        if self.lie is None:
            return await self._honest.connect()
        if self._server is None:
            self._server = await asyncio.start_unix_server(self.serve, self.path)
        return await asyncio.open_unix_connection(self.path)

    async def end(self) -> str:
        return "it lied"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            writer.write(frame(GREETING))
            await read_frame(reader, LARGEST_REQUEST)
            writer.write(frame(setup_reply("ready")))
            number, _ = pickle.loads(await read_frame(reader, LARGEST_REQUEST))
            await (self.lie or leave)(number, writer)
            await reader.read()
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        await self._honest.close()


async def test_what_no_server_may_send_fails_the_answer_it_is_sent_for(tmp_path: Path) -> None:
    place = LyingPlace(tmp_path / "s")
    scorer = Scorer(config_of("exact_match"), workers=1, place=place)
    found = {}
    try:
        await scorer.start()
        for name, lie in LIES.items():
            place.lie = lie
            (found[name],) = await outcomes(scorer, "1")
        place.lie = None
        _, honest = await outcomes(scorer, "the last liar's", "1")
    finally:
        await scorer.close()
    assert not honest.failure
    for name, outcome in found.items():
        assert str(outcome.failure).startswith("RewardCrashed: the scoring server "), name
        assert (len(str(outcome.failure)) < 500, outcome.reward) == (True, 0.0), name
    assert place.connections > 2 * len(LIES), "each answer was tried twice"


async def test_an_answer_whose_function_ran_too_long_has_the_score_for_it(tmp_path: Path) -> None:
    place = LyingPlace(tmp_path / "s")
    config = config_of("exact_match", "verifier", timeoutScore=-0.5, weights=[1.0, 3.0])
    scorer = Scorer(config, workers=1, place=place)
    try:
        await scorer.start()
        place.lie = replies(
            b'{"number": N, "reason": "RewardTimeout", "detail": "verifier ran longer than 20 s"}'
        )
        (late,) = await outcomes(scorer, "1")
    finally:
        await scorer.close()
    assert (late.reward, late.parts) == (-2.0, {"exact_match": -0.5, "verifier": -0.5})


#: A user's module that ends the scoring server while it is imported.
DEADLY_MODULE = """
import os, signal, sys, time
from pathlib import Path

print("no licence", file=sys.stderr, flush=True)
pid = os.getpid()
while b"rewards.server" not in Path(f"/proc/{pid}/cmdline").read_bytes():
    pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
os.kill(pid, signal.SIGKILL)
time.sleep(600)
"""


@pytest.mark.nightly
async def test_a_module_that_ends_the_server_while_it_is_imported_is_named(
    tmp_path: Path, module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With its place among the functions and what it printed last; another module of the user is not blamed."""
    monkeypatch.setattr(server_start, "_MAX_LOST_LOADING", 1)
    (folder := tmp_path / "deadly").mkdir()
    name = user_module(folder, monkeypatch, DEADLY_MODULE)
    scorer = Scorer(config_of(f"{module}:act", f"{name}:f"), workers=1)
    try:
        with pytest.raises(SpecError) as blamed:
            await scorer.start()
    finally:
        await scorer.close()
    assert blamed.value.path == "spec.reward.functions[1]"
    assert blamed.value.message == (
        f"{name} ends the scoring server that imports it: exit code 137 (SIGKILL: out of memory?); it printed last: "
        "no licence"
    )


async def test_a_server_that_is_lost_while_it_loads_our_functions_blames_none(tmp_path: Path) -> None:
    """Memory may be short, for instance."""

    class Loading(LyingPlace):
        async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(frame(GREETING))
            await read_frame(reader, LARGEST_REQUEST)
            writer.close()

    scorer = Scorer(config_of("exact_match"), workers=1, place=Loading(tmp_path / "s"))
    try:
        with pytest.raises(RewardFailed, match="no scoring server starts: it lied"):
            await scorer.start()
    finally:
        await scorer.close()


async def test_the_functions_of_servers_that_were_lost_twice_by_accident_are_loaded(tmp_path: Path) -> None:
    class Unlucky(LyingPlace):
        async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(frame(GREETING))
            await read_frame(reader, LARGEST_REQUEST)
            self.lie = leave if self.connections < 2 else None
            writer.close()

    place = Unlucky(tmp_path / "s")
    scorer = Scorer(config_of("exact_match"), workers=1, place=place)
    try:
        await scorer.start()
        assert not (await outcomes(scorer, "1"))[0].failure
    finally:
        await scorer.close()
    assert place.connections == 3


# ---------------------------------------------------------------------------------------- a server in a container


@pytest.mark.nightly
async def test_a_server_in_a_container_is_found_again_when_it_comes_back(tmp_path: Path, module: str) -> None:
    path = tmp_path / "socket"

    def start() -> subprocess.Popen[bytes]:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        return subprocess.Popen(
            [sys.executable, "-m", "rljob_runtime.rewards.server", str(path)], env=environment
        )

    def probe() -> int:
        command = [sys.executable, "-m", "rljob_runtime.rewards.probe", str(path)]
        return subprocess.run(command, stderr=subprocess.DEVNULL, check=False).returncode

    assert probe() != 0
    server = start()
    scorer = Scorer(config_of(f"{module}:act"), workers=1, place=Container(path))
    try:
        await scorer.start()
        assert (await outcomes(scorer, "good xy"))[0].reward == 2.0
        assert await asyncio.to_thread(probe) == 0
        server.kill()
        server.wait()
        server = start()
        assert (await outcomes(scorer, "good x"))[0].reward == 1.0
        # A pod that ends: the worker finishes what it has in hand, and then the server goes.
        server.send_signal(signal.SIGTERM)
        assert (await outcomes(scorer, "good xyz"))[0].reward == 3.0
        await scorer.close()
        assert await asyncio.to_thread(server.wait, 60) == 0
    finally:
        await scorer.close()
        server.kill()
        server.wait()


async def test_the_path_of_the_temporary_folder_may_be_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / ("long" * 30)
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    scorer = Scorer(config_of("exact_match"), workers=1)
    try:
        await scorer.start()
        (outcome,) = await outcomes(scorer, "x")
        assert not outcome.failure
    finally:
        await scorer.close()


async def test_what_a_machine_lacks_for_scoring_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if no file system had room: the limit of the size of a file is zero."""
    (tmp_path / "sitecustomize.py").write_text(
        "import resource\nresource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(server_start, "_MAX_FAILED_STARTS", 0)
    scorer = Scorer(config_of("exact_match"), workers=1)
    lacks = "no scoring server starts: it cannot start its processes: OSError: .*File too large"
    try:
        with pytest.raises(RewardFailed, match=lacks):
            await scorer.start()
    finally:
        await scorer.close()


async def test_a_spec_that_was_right_remains_right_whatever_a_server_says(tmp_path: Path) -> None:
    """Else code that has taken a server over could end the job by calling its spec wrong."""

    class Turncoat(LyingPlace):
        async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            if self.connections == 1:
                await super().serve(reader, writer)
                return
            writer.write(frame(GREETING) + frame(setup_reply("refused", "spec.steps", "is wrong")))
            await reader.read()
            writer.close()

    scorer = Scorer(config_of("exact_match"), workers=1, place=Turncoat(tmp_path / "s"))
    try:
        await scorer.start()
        with pytest.raises(RewardFailed, match="is wrong"):
            await outcomes(scorer, "1")
    finally:
        await scorer.close()
