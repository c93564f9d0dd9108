"""The reward role over a real process pool: limits, crashes, draining, and nothing left behind."""

from __future__ import annotations

import asyncio
import concurrent.futures
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import xxhash
from e2e.harness.nats_server import EmbeddedServer
from tests.memory.store import MemoryServer, MemoryStore
from tests.night import some
from tests.waiting import until, until_async, within
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from user_modules import user_module

from rljob_core.config import JobConfig
from rljob_core.errors import SpecError
from rljob_core.messages import REWARD_BATCH, RewardResult
from rljob_core.ports import Channel
from rljob_core.spec import RLJobSpec
from rljob_core.trajectory import FinishReason, Segment, Source, Trajectory, VersionSpan, trajectory_id
from rljob_runtime.data.prompts import open_prompts
from rljob_runtime.messaging.nats.store import NatsStore
from rljob_runtime.messaging.trajectories import TrajectoryStore
from rljob_runtime.rewards import pool as pool_module
from rljob_runtime.rewards.job_items import JobItems
from rljob_runtime.rewards.messages import ScoringJob
from rljob_runtime.rewards.pool import RewardPool
from rljob_runtime.rewards.trial import TrialLoad, load_on_trial
from rljob_runtime.roles.reward import run_reward

CHARACTERS = "0123456789+-= abcdefghijklmnopqrstuvwxyz"
#: Seconds of a function: longer than any takes, on a machine that has much else to do; and where some hang.
LIMIT, SHORT = 60.0, 6.0
SUMS = {
    "dataset": "chain_sum",
    "options": {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1},
    "promptTemplate": "{{ metadata.expression }}=",
}

#: A user's reward function: what it does is what the answer says.
USER_MODULE = """
import ctypes, os, signal, sys, time
from pathlib import Path

class Silent(BaseException):
    pass

class Unprintable(Exception):
    def __str__(self):
        sys.exit("no words")

def act(*, completion, item):
    word, _, rest = completion.partition(" ")
    if word == "sleep":
        time.sleep(600)
    if word == "stubborn":
        while True:
            try:
                time.sleep(600)
            except BaseException:
                pass
    if word == "spin":  # in C, with the interpreter's lock held
        ctypes.PyDLL(None).sleep(600)
    if word == "deaf":  # to every signal and timer
        signal.setitimer(signal.ITIMER_REAL, 0)
        for number in set(signal.Signals) - {signal.SIGKILL, signal.SIGSTOP}:
            signal.signal(number, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_BLOCK, set(signal.Signals))
        while True:
            pass
    if word == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    if word == "children":
        if child := os.fork():
            Path(__file__).with_name("child").write_text(str(child))
        while True:
            time.sleep(600)
    if word == "fork":  # both return
        os.fork()
    if word == "quit":
        sys.exit(3)
    if word == "interrupt":
        raise KeyboardInterrupt
    if word == "silent":
        raise Silent("not an Exception")
    if word == "unprintable":
        raise Unprintable
    if word == "verbose":
        raise ValueError(chr(0xD800) + "x" * 20_000_000)
    if word == "huge":
        return -1.7e308
    if word == "endless":
        return 10**400
    if word == "raise":
        raise ValueError("bad answer")
    if word == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if word == "exit":
        os._exit(7)
    if word == "leave":
        os._exit(0)
    if word == "once":  # killed from outside: goes well the second time
        file = Path(__file__).parent / f"seen-{rest}"
        if not file.exists():
            file.touch()
            os.kill(os.getpid(), signal.SIGKILL)
    if word == "nan":
        return float("nan")
    if word == "slow":
        time.sleep(0.03)
    return len(rest)

def one(*, completion, item):
    return 1.0

def also(*, completion, item):
    return -1.7e308 if completion.startswith("huge") else 1.0
"""


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A folder with a character-level tokenizer, enough for the reward role."""
    folder = tmp_path / "model"
    folder.mkdir()
    backend = Tokenizer(
        models.WordLevel({c: i for i, c in enumerate(["<end>", *CHARACTERS])}, unk_token="<end>")
    )
    backend.pre_tokenizer = pre_tokenizers.Split(Regex("."), behavior="isolated")
    backend.decoder = decoders.Fuse()
    backend.add_special_tokens(["<end>"])
    backend.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<end>"}))
    (folder / "config.json").write_text("{}")
    return folder


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    return user_module(tmp_path, monkeypatch, USER_MODULE)


def job_config(
    model: Path | str, *, functions: list[str], data: dict[str, Any] | None = None, limit: float = LIMIT
) -> JobConfig:
    spec = RLJobSpec.model_validate(
        {
            "steps": 1,
            "model": {"uri": str(model)},
            "data": data or SUMS,
            "evaluation": None if data else {},
            "reward": {"functions": functions, "timeoutSeconds": limit},
            "rollout": {"pools": [{"name": "local"}]},
        }
    )
    return JobConfig(
        namespace="default",
        job="job",
        uid=os.urandom(4).hex(),
        spec=spec,
        weights_uri="w",
        checkpoint_uri="c",
        trainer_log_uri="t",
    )


def trajectory(
    identifier: str, completion: str, *, prompt: int = 0, attempt: int = 0, sample: str = "sampled"
) -> Trajectory:
    """A trajectory whose prompt is `0=` and whose response is the text and an end token."""

    def segment(source: Source, tokens: list[int]) -> Segment:
        model = source is Source.MODEL
        n = len(tokens)
        return Segment(
            source=source,
            tokens=np.array(tokens, np.int32),
            loss_mask=np.full(n, model, np.uint8),
            logprobs=np.full(n, -0.5 if model else 0, np.float32),
            versions=np.full(n, 3 if model else -1, np.int32),
        )

    def ids(text: str) -> list[int]:
        return [CHARACTERS.index(c) + 1 for c in text]

    segments = (segment(Source.PROMPT, ids("0=")), segment(Source.MODEL, [*ids(completion), 0]))
    return Trajectory(
        id=identifier,
        attempt=attempt,
        prompt=prompt,
        segments=segments,
        span=VersionSpan(3, 3),
        finish=FinishReason.STOP,
        engine="engine",
        sample=sample,
    )


def pool_of(config: JobConfig, *, workers: int) -> RewardPool:
    return RewardPool(JobItems(config, workers=workers).setup)


class Role:
    """The reward role running in this process, and the results that it published."""

    def __init__(self, store: Any) -> None:
        self.store = store
        self.trajectories = TrajectoryStore(store)
        self.stop = asyncio.Event()
        self.ready = asyncio.Event()

    async def results(self, number: int) -> dict[str, RewardResult]:
        """The first `number` results, by trajectory."""
        found: dict[str, RewardResult] = {}
        async for messages in self.store.read(Channel.REWARDS):
            for message in messages:
                found |= {
                    result.trajectory: result for result in REWARD_BATCH.validate_json(message.data).results
                }
            if len(found) >= number:
                return found
        raise AssertionError("the stream has no end")


@asynccontextmanager
async def running(config: JobConfig, store: Any, *, workers: int = 2) -> AsyncIterator[Role]:
    role = Role(store)
    task = asyncio.create_task(
        run_reward(config, store, stop=role.stop, ready=role.ready.set, workers=workers)
    )
    waiter = asyncio.create_task(role.ready.wait())
    await asyncio.wait({task, waiter}, return_when=asyncio.FIRST_COMPLETED)
    waiter.cancel()
    if task.done():
        task.result()
    try:
        yield role
    finally:
        role.stop.set()
        await task


def memory() -> MemoryStore:
    return MemoryStore(MemoryServer(), subject="job")


# ---------------------------------------------------------------------------------------- the role


async def test_trajectories_are_scored_by_their_items(model: Path) -> None:
    config = job_config(model, functions=["exact_match", "verifier"])
    training, held_out = open_prompts(config)
    # Prompts where the same index asks for different answers, so that the wrong source would show.
    prompts = [i for i in range(60) if training.item(i)["answer"] != held_out.sets[0].item(i)["answer"]][:20]
    assert len(prompts) == 20
    sent = [trajectory(f"g{i}.0", training.item(i)["answer"], prompt=i) for i in prompts]
    sent += [
        trajectory(f"g{i}.1", f"{training.item(i)['answer']} apples", prompt=i, attempt=2) for i in prompts
    ]
    sent += [
        trajectory(f"e0-{i}.0", held_out.sets[0].item(i)["answer"], prompt=i, sample="greedy")
        for i in prompts
    ]
    store = memory()
    async with running(config, store) as role:
        await role.trajectories.put(sent)
        results = await role.results(len(sent))
    assert set(results) == {t.id for t in sent}
    digests = {}
    async for located in TrajectoryStore(store).summaries():
        digests |= {entry.summary.trajectory: entry.summary.digest for entry in located}
        break
    for result in results.values():
        assert not result.error
        assert result.payload_digest == digests[result.trajectory]
        exact = 0.0 if result.trajectory.endswith(".1") else 1.0
        assert result.parts["exact_match"] == exact
        assert result.reward == pytest.approx(sum(result.parts.values()))
        assert 0 < result.parts["verifier"] <= 1
        assert (result.parts["verifier"] == 1) == bool(exact)
        assert result.attempt == (0 if exact else 2)
        assert result.sample == ("greedy" if result.trajectory.startswith("e") else "sampled")


async def test_the_digest_covers_the_result(model: Path) -> None:
    async with running(job_config(model, functions=["exact_match"]), memory()) as role:
        await role.trajectories.put([trajectory("g0.0", "1")])
        result = (await role.results(1))["g0.0"]
    fields = {
        "attempt": 0,
        "failure": None,
        "kind": "reward",
        "parts": {"exact_match": result.reward},
        "payload_digest": result.payload_digest,
        "reward": result.reward,
        "sample": "sampled",
        "trajectory": "g0.0",
    }
    canonical = json.dumps(fields, sort_keys=True, separators=(",", ":")).encode()
    assert result.digest == xxhash.xxh3_128_hexdigest(canonical)


@pytest.mark.nightly
async def test_bad_answers_fail_alone_and_the_job_continues(model: Path, module: str, tmp_path: Path) -> None:
    words = {
        "raise": "RewardRaised: {}:act raised ValueError: bad answer",
        "nan": "RewardOutOfRange: {}:act returned nan; a score lies between -1e+06 and 1e+06",
        "huge": "RewardOutOfRange: {}:act returned -1.7e+308; a score lies between -1e+06 and 1e+06",
        "endless": "RewardOutOfRange: {}:act returned inf; a score lies between -1e+06 and 1e+06",
        "quit": "RewardRaised: {}:act raised SystemExit: 3",
        "interrupt": "RewardRaised: {}:act raised KeyboardInterrupt",
        "silent": "RewardRaised: {}:act raised Silent: not an Exception",
        "unprintable": "RewardRaised: {}:act raised Unprintable: (its __str__ raised SystemExit)",
        "deaf": "RewardTimeout: {}:act ran longer than 6 s",
        "stop": "RewardTimeout: {}:act ran longer than 6 s",
        "children": "RewardTimeout: {}:act ran longer than 6 s",
        "fork": "",
        "sleep": "RewardTimeout: {}:act ran longer than 6 s",
        "stubborn": "RewardTimeout: {}:act ran longer than 6 s",
        "spin": "RewardTimeout: {}:act ran longer than 6 s",
        "kill": "RewardCrashed: {}:act ended its process: exit code 137 (SIGKILL: out of memory?)",
        "exit": "RewardCrashed: {}:act ended its process: exit code 7",
        "leave": "RewardCrashed: {}:act ended its process: exit code 0",
        "once": "",
    }
    sent = [trajectory(trajectory_id("g0", i), f"good {'x' * (i % 5)}") for i in range(60)]
    bad = [trajectory(f"g1.{i}", f"{word} xy") for i, word in enumerate(words)]
    mixed = [*sent[:30], *bad[:4], *sent[30:50], *bad[4:], *sent[50:]]
    config = job_config(model, functions=[f"{module}:one", f"{module}:act"], limit=SHORT)
    async with running(config, memory()) as role:
        await role.trajectories.put(mixed)
        results = await role.results(len(mixed))
    with suppress(psutil.NoSuchProcess):
        assert not _alive(psutil.Process(int((tmp_path / "child").read_text())))
    for one in sent:
        result = results[one.id]
        assert not result.error
        assert result.parts == {
            f"{module}:one": 1.0,
            f"{module}:act": float(int(one.id.partition(".")[2]) % 5),
        }
        assert result.reward == sum(result.parts.values())
    for one, error in zip(bad, words.values(), strict=True):
        result = results[one.id]
        said = re.sub(r" \(\w+\.py:\d+\)$", "", result.error)
        assert said == error.format(module)
        assert (said != result.error) == ("Raised" in said)  # where it was raised
        if error:
            assert (result.reward, result.parts) == (0.0, {})
        else:
            assert result.reward == 3.0


async def test_the_text_of_an_error_is_of_limited_length(model: Path, module: str) -> None:
    async with running(job_config(model, functions=[f"{module}:act"]), memory()) as role:
        await role.trajectories.put([trajectory("g0.0", "verbose x"), trajectory("g0.1", "good x")])
        results = await role.results(2)
    assert results["g0.0"].error.startswith(f"RewardRaised: {module}:act raised ValueError: xxx")
    assert len(results["g0.0"].failure.detail) <= 500
    assert re.search(rf"xxx \({module}\.py:\d+\)$", results["g0.0"].error)
    assert results["g0.1"].reward == 1.0


@pytest.mark.nightly
async def test_a_function_that_hears_no_signal_costs_its_chunk_nothing(module: str, tmp_path: Path) -> None:
    config = job_config("model", functions=[f"{module}:one", f"{module}:act"], limit=SHORT)
    pool = pool_of(config, workers=2)
    try:
        await pool.start()
        words = [*["good xx"] * 20, "deaf", *["good xx"] * 20, "children", "huge", "good xx"]
        outcomes = await asyncio.gather(*(pool.score(ScoringJob(0, False, word)) for word in words))
    finally:
        await pool.close()
    killed = f"RewardTimeout: {module}:act ran longer than {SHORT:g} s"
    expected = {"deaf": killed, "children": killed, "huge": f"RewardOutOfRange: {module}:act returned "}
    for word, outcome in zip(words, outcomes, strict=True):
        assert str(outcome.failure or "").startswith(expected.get(word, ""))
        assert sum(outcome.scores) == (0.0 if outcome.failure else 3.0)
        assert bool(outcome.failure) == (word in expected)
    with suppress(psutil.NoSuchProcess):
        child = psutil.Process(int((tmp_path / "child").read_text()))
        outlived = _alive(child)
        child.kill()
        assert not outlived


async def test_two_functions_whose_scores_no_sum_can_hold_cost_their_answer_alone(module: str) -> None:
    pool = pool_of(job_config("model", functions=[f"{module}:act", f"{module}:also"]), workers=1)
    try:
        await pool.start()
        words = ["good xx", "huge x", "good xx"]
        found = await asyncio.gather(*(pool.score(ScoringJob(0, False, word)) for word in words))
    finally:
        await pool.close()
    assert [sum(outcome.scores) for outcome in found] == [3.0, 0.0, 3.0]
    assert [outcome.failure.reason if outcome.failure else "" for outcome in found] == [
        "",
        "RewardOutOfRange",
        "",
    ]


async def test_tokens_that_are_none_fail_their_trajectory(model: Path) -> None:
    odd = trajectory("g0.0", "1")
    odd.segments[1].tokens[0] = -7
    async with running(job_config(model, functions=["exact_match"]), memory()) as role:
        await role.trajectories.put([odd, trajectory("g0.1", "1")])
        results = await role.results(2)
    assert results["g0.0"].error.startswith("RewardRaised: the response does not decode")
    assert not results["g0.1"].error


async def test_a_drain_finishes_what_is_in_hand(model: Path, module: str) -> None:
    config = job_config(model, functions=[f"{module}:act"], limit=20)
    store = memory()
    sent = [trajectory(f"g0.{i}", "slow x") for i in range(40)]
    async with running(config, store, workers=1) as role:
        await role.trajectories.put(sent)
        await role.results(1)
        role.stop.set()
    # After the role has ended, so nothing else will come.
    assert set(await role.results(len(sent))) == {t.id for t in sent}
    queue = await TrajectoryStore(store).queue("reward")
    assert await queue.fetch(messages=10, timeout=0.05) == []


async def test_two_workers_share_the_trajectories_of_a_real_server(
    model: Path, nats_server: EmbeddedServer
) -> None:
    config = job_config(model, functions=["exact_match"])
    stores = [
        NatsStore(
            nats_server.url,
            subject=config.subject,
            stream_prefix=config.stream_prefix,
            trajectory_bytes=1 << 24,
        )
        for _ in range(3)
    ]
    for store in stores:
        await store.open()
    try:
        items, _ = open_prompts(config)
        async with running(config, stores[0], workers=1) as one, running(config, stores[1], workers=1):
            writer = TrajectoryStore(stores[2])
            for i in range(40):
                await writer.put([trajectory(f"g{i}.0", items.item(i)["answer"], prompt=i)])
            results = await one.results(40)
        assert all(result.reward == 1 for result in results.values())
    finally:
        for store in stores:
            await store.close()


async def test_a_wrong_spec_ends_the_role(model: Path, tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text('{"question": "1+1=", "answer": "2"}\n')
    config = job_config(
        model, data={"source": "jsonl", "dataset": str(file)}, functions=["exact_match", "verifier"]
    )
    with pytest.raises(SpecError, match=r"spec\.reward\.functions\[1\]: .*verifier of their own"):
        async with running(config, memory()):
            pass


# ---------------------------------------------------------------------------------------- the pool


async def test_a_pool_whose_idle_processes_were_killed_continues() -> None:
    pool = pool_of(job_config("model", functions=["exact_match"], limit=20), workers=2)
    try:
        await pool.start()
        for _ in range(2):
            assert not (await pool.score(ScoringJob(0, False, "1"))).failure
            for process in _pool_processes():
                with suppress(psutil.NoSuchProcess):
                    process.kill()
        assert not (await pool.score(ScoringJob(0, False, "1"))).failure
    finally:
        await pool.close()
    await until_async(lambda: not _pool_processes(), "end of the pool's processes")


@pytest.mark.nightly
async def test_a_pool_whose_idle_processes_take_no_answer_continues(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if one had been killed while it held the lock of the queue: all others wait for it."""
    monkeypatch.setattr(pool_module, "_UNTAKEN", 1.0)
    pool = pool_of(job_config("model", functions=["exact_match"], limit=20), workers=2)
    try:
        await pool.start()
        for process in _pool_processes():
            process.suspend()
        async with within(600):  # it waits three times as long as a start takes
            assert not (await pool.score(ScoringJob(0, False, "1"))).failure
    finally:
        await pool.close()


#: What a user's module does while it is imported, and what is said of it.
DEADLY = {
    "import os, sys; print('no licence', file=sys.stderr, flush=True); os._exit(3)": "exit code 3: no licence",
    "import ctypes; ctypes.string_at(0)": r"exit code 139 \(SIGSEGV\): Segmentation fault in string_at",
    "raise KeyboardInterrupt('enough')": "cannot be imported: KeyboardInterrupt: enough",
}


@pytest.mark.parametrize("text", some(list(DEADLY), 2))
async def test_a_module_that_ends_what_imports_it_is_the_user_s(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    """The reward role ends with the error of a wrong spec, which ends the job."""
    name = user_module(tmp_path, monkeypatch, text)
    with pytest.raises(SpecError, match=rf"spec\.reward\.functions\[0\]: {name} .*{DEADLY[text]}"):
        async with running(job_config(model, functions=[f"{name}:f"]), memory()):
            pass


async def test_a_pool_that_waits_for_nothing_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if the process had ended while it held a lock of the pool's."""
    monkeypatch.setattr(pool_module, "_SILENT_SECONDS", 0.1)
    name = user_module(tmp_path, monkeypatch, next(iter(DEADLY)))
    pool = pool_of(job_config("model", functions=[f"{name}:f"]), workers=1)
    monkeypatch.setattr(pool._pool, "schedule", lambda _: concurrent.futures.Future())
    try:
        with pytest.raises(SpecError, match="exit code 3: no licence"):
            await pool.start()
    finally:
        await pool.close()


async def test_a_module_whose_import_never_ends_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool_module, "LOAD_SECONDS", 2.0)
    name = user_module(tmp_path, monkeypatch, "import time; time.sleep(600)")
    pool = pool_of(job_config("model", functions=["exact_match", f"{name}:f"]), workers=1)
    try:
        with pytest.raises(SpecError, match=rf"spec\.reward\.functions: {name}:f did not load within 2 s: "):
            await pool.start()
    finally:
        await pool.close()


@pytest.mark.nightly
def test_a_trial_that_never_ends_is_killed_with_all_that_it_has_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "import pathlib, subprocess\nchild = subprocess.Popen(['sleep', '600'])\n"
    text += "pathlib.Path(__file__).with_suffix('.pid').write_text(str(child.pid))\nchild.wait()\n"
    name = user_module(tmp_path, monkeypatch, text)
    setup = JobItems(job_config("model", functions=[f"{name}:f"])).setup
    began = time.monotonic()
    trial = load_on_trial(setup, seconds=15.0)
    assert time.monotonic() - began < 60
    assert f"{name}:f did not load within 15 s" in str(trial.error)
    child = (tmp_path / name).with_suffix(".pid")
    with suppress(psutil.NoSuchProcess, FileNotFoundError):
        started = psutil.Process(int(child.read_text()))
        until(lambda: not _alive(started))  # it was killed, too, but nobody here waits for its end


@pytest.mark.parametrize("killing", ["os.kill(os.getppid(), 9)", "os.killpg(0, 9)"])
def test_a_module_that_kills_what_has_started_its_process_kills_the_trial_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, killing: str
) -> None:
    text = f"import os, sys, time\nprint('no licence', file=sys.stderr, flush=True)\n{killing}\ntime.sleep(600)\n"
    name = user_module(tmp_path, monkeypatch, text)
    trial = load_on_trial(JobItems(job_config("model", functions=["exact_match", f"{name}:f"])).setup)
    assert str(trial.error) == (
        f"spec.reward.functions[1]: {name} ends the process that imports it: exit code 137 (SIGKILL: out of memory?); "
        "it printed last: no licence"
    )


def test_functions_are_called_once_on_trial(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "import time\nasync def good(completion, item): return completion == item['answer']\n"
    text += (
        "def parse(completion, item): return item['nothing']\ndef hang(completion, item): time.sleep(600)\n"
    )
    text += "def several(completion, item): return [1.0]\n"
    text += "def group(completions, item): return [1.0] * 3\n"
    name = user_module(tmp_path, monkeypatch, text)

    def tried(*functions: str, per_group: tuple[str, ...] = ()) -> TrialLoad:
        names = ["exact_match", *(f"{name}:{function}" for function in functions)]
        setup = JobItems(job_config("model", functions=names)).setup
        return load_on_trial(replace(setup, per_group=per_group), call_seconds=3.0)

    trial = tried("good", "parse", "hang")
    assert trial.error is None
    raised, hung = trial.warnings
    assert raised.startswith(f"spec.reward.functions[2]: {name}:parse raised KeyError: 'nothing'")
    assert hung.startswith(f"spec.reward.functions[3]: {name}:hang had not returned after 3 s")
    assert str(tried("parse", "several").error) == (
        f"spec.reward.functions[2]: {name}:several returned list, not a number; it was called on a made-up answer"
    )
    assert str(tried("group", per_group=(f"{name}:group",)).error) == (
        f"spec.reward.functions[1]: {name}:group returned 3 scores for 2 answers: return one for each of completions, "
        "in their order; it was called on a made-up answer"
    )


@pytest.mark.parametrize("loading", ["os.kill(os.getpid(), signal.SIGKILL)", "time.sleep(3600)"])
async def test_a_process_that_does_not_load_what_others_load_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, loading: str
) -> None:
    if "sleep" in loading:
        monkeypatch.setattr(pool_module, "_SILENT_SECONDS", 1.0)
    once = "import os, pathlib, signal, time\nfile = pathlib.Path(__file__).with_suffix('.seen')\n"
    once += f"if not file.exists():\n    file.touch()\n    {loading}\n"
    name = user_module(tmp_path, monkeypatch, once + "def f(*, completion, item):\n    return 1.0\n")
    pool = pool_of(job_config("model", functions=[f"{name}:f"]), workers=1)
    try:
        await pool.start()
        assert (await pool.score(ScoringJob(0, False, "1"))).scores == (1.0,)
    finally:
        await pool.close()


def _pool_processes() -> list[psutil.Process]:
    """Processes of this process's pools (they are the fork server's children)."""
    found: list[psutil.Process] = []
    for server in psutil.Process().children():
        with suppress(psutil.NoSuchProcess):  # another test's, which has just ended
            if "forkserver" in " ".join(server.cmdline()):
                found += filter(_alive, server.children())
    return found


def test_nothing_outlives_a_reward_process_that_is_killed(tmp_path: Path, module: str) -> None:
    program = tmp_path / "parent.py"
    config = job_config("model", functions=[f"{module}:act"], limit=600)
    program.write_text(
        "import asyncio, sys\n"
        "from rljob_core.config import JobConfig\n"
        "from rljob_runtime.rewards.scorer import Scorer\n"
        "from rljob_runtime.rewards.messages import ScoringJob\n"
        "async def main():\n"
        "    scorer = Scorer(JobConfig.model_validate_json(sys.argv[1]), workers=2)\n"
        "    await scorer.start()\n"
        "    stuck = [asyncio.ensure_future(scorer.score(ScoringJob(0, False, 'stubborn'))) for _ in range(2)]\n"
        "    await asyncio.sleep(0.2)\n"
        "    print('ready', flush=True)\n"
        "    await asyncio.gather(*stuck)\n"
        "if __name__ == '__main__':\n"
        "    asyncio.run(main())\n"
    )
    environment = {**os.environ, "RLJOB_DIE_WITH_PARENT": "1", "RLJOB_SUPERVISOR": str(os.getpid())}
    environment["PYTHONPATH"] = os.pathsep.join([str(tmp_path), *sys.path])
    parent = subprocess.Popen(
        [sys.executable, str(program), config.model_dump_json(by_alias=True)],
        stdout=subprocess.PIPE,
        env=environment,
    )
    try:
        assert parent.stdout is not None
        assert parent.stdout.readline() == b"ready\n"
        family = psutil.Process(parent.pid).children(recursive=True)
        assert len(family) >= 4  # the scoring server, its fork server and two processes
    finally:
        os.kill(parent.pid, signal.SIGKILL)
        parent.wait()
        parent.stdout.close()
    until(lambda: not any(map(_alive, family)), "end of the reward worker's processes")


def _alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
