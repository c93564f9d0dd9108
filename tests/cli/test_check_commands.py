"""`rljob check-engine`, `check-backend`, `check-loss`, `check-reward`: what they tell, and how they end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import psutil
import pytest
from invocation import rljob
from tests.night import some
from tests.waiting import until

from rljob_cli.exits import scratch_folder, signals_interrupt

RLJOB = str(Path(sys.executable).parent / "rljob")
PATIENCE = 600.0  # seconds; of a busy machine


@pytest.mark.parametrize(
    ("arguments", "field", "words"),
    [
        (["check-engine", "Torsh"], "spec.rollout.engine.name", "did you mean Torch?"),
        (["check-engine", "Torch", "--set", "slot=3"], "spec.rollout.engine.options.slot", "slots"),
        (["check-engine", "Torch", "--set", "slots"], "--set", "write name=value"),
        (["check-engine", "Torch", "--model", "nowhere"], "--model", "nowhere"),
        (["check-engine", "Emulated", "--backend", "Torsh"], "spec.trainer.backend", "did you mean Torch?"),
        (["check-backend", "Torsh"], "spec.trainer.backend", "did you mean Torch?"),
        (["check-backend", "Torch", "--set", "speed=1"], "spec.trainer.options.speed", "threads"),
        (["check-loss", "GRPA"], "spec.algorithm.loss", "did you mean GRPO?"),
        (["check-loss", "GRPO", "--set", "clipp=0.1"], "spec.algorithm.clipp", "clip"),
        (["check-reward", "exact_mach"], "spec.reward.functions[0]", "did you mean exact_match?"),
        (["check-reward", "nowhere:reward"], "spec.reward.functions[0]", "nowhere cannot be imported"),
        (["check-reward", "exact_match", "--set", "dataset=chain_sun"], "spec.data.dataset", "chain_sum"),
        (
            ["check-environment", "nowhere:Game"],
            "spec.rollout.environment.name",
            "nowhere cannot be imported",
        ),
        (["check-environment", "a:B", "--set", "maxTurns=501"], "spec.rollout.environment.maxTurns", "500"),
        (["check-reward", "exact_match", "--set", "promptsPerStep=0"], "spec.data.promptsPerStep", "1"),
    ],
)
def test_bad_input_is_refused_and_nothing_checked(arguments: list[str], field: str, words: str) -> None:
    ended = rljob(*arguments)
    assert ended.code == 2
    assert ended.out == ""
    (error,) = [line for line in ended.errors if line.startswith("error: ")]
    assert error.startswith(f"error: {field}: ")
    assert words in error


@pytest.mark.nightly
def test_an_engine_that_keeps_its_contract(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    ended = rljob("check-engine", "Emulated", "--backend", "Emulated", "--set", "slots=2")
    assert ended.code == 0, ended.out
    assert "✗" not in ended.out
    assert ended.out.endswith("\nengine Emulated: all 15 checks hold\n")


def test_a_loss_that_keeps_its_contract(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    ended = rljob("check-loss", "GSPO", "--set", "clip=3e-4", "--set", "clipHigh=4e-4")
    assert ended.code == 0, ended.out
    assert "✗" not in ended.out
    assert ended.out.endswith("\nloss GSPO: all 7 checks hold\n")


def test_an_engine_that_fails_a_check_gets_a_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    # It ends responses by itself, against what the contract's requests allow.
    lengths = "lengths={median: 3, sigma: 0, promptSigma: 0, min: 3, max: 3}"
    ended = rljob("check-engine", "Emulated", "--set", lengths, "--patience", "2")
    assert ended.code == 1
    claim = "A response has as many tokens as the request asks for, each with its log-probability and version"
    assert f"✗  {claim}" in ended.out
    assert (
        f"✗ {claim}\n  found: tokens of 'a' are int32[3], not int32[5]\n  to do: Report Completed with"
        in ended.out
    )
    assert "\nengine Emulated: " in ended.out
    assert ended.out.endswith(" of 15 checks fail\n")


def test_a_backend_and_a_reward_of_groups_from_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "flat_reward.py").write_text("def one(*, completions):\n    return [1] * len(completions)\n")
    (tmp_path / "rows.jsonl").write_text('{"question": "1+1", "answer": "2"}\n')
    monkeypatch.setattr(sys, "path", [*sys.path])
    data = ["--set", "source=jsonl", "--set", "dataset=rows.jsonl"]
    ended = rljob("check-reward", "flat_reward:one", "--per-group", *data)
    assert ended.code == 1
    assert "✗ Not all answers have the same score\n  found: all of them have 1\n  to do: " in ended.out
    assert ended.out.endswith("\nreward flat_reward:one: 1 of 4 checks fail\n")
    ended = rljob("check-backend", "Emulated")
    assert (ended.code, ended.out.splitlines()[-1]) == (0, "backend Emulated: all 12 checks hold")


INTERRUPTED = [
    (["check-engine", "Torch", "--set", "slots=1"], signal.SIGINT),
    (["check-engine", "Torch", "--set", "slots=1"], signal.SIGTERM),
    (["check-backend", "Torch"], signal.SIGINT),
    (["check-backend", "Torch"], signal.SIGTERM),
]


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("command", "number"),
    some(INTERRUPTED, 1),
    ids=lambda value: value[0] if isinstance(value, list) else value.name,
)
def test_an_interrupted_check_leaves_nothing_behind(
    command: list[str], number: signal.Signals, tmp_path: Path
) -> None:
    place = tmp_path / "tmp"
    place.mkdir()
    process = subprocess.Popen(
        # What a shell starts in the background, perhaps this test, ignores Ctrl-C, and so would what it starts.
        ["env", "--default-signal=INT", RLJOB, *command, "--set", "threads=1"],
        env={**os.environ, "TMPDIR": str(place)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        until(  # once its model is written, engines or backends are being started, or are at work
            lambda: list(place.glob("*/model/tokenizer.json")),
            "model",
            every=0.01,
            alive=lambda: process.poll() is None,
            shown=lambda: process.returncode is not None and process.communicate(),
        )
        children = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(number)
        out, errors = process.communicate(timeout=PATIENCE)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 130, errors
    assert b"Traceback" not in errors
    assert b"checks" not in out
    assert not [child for child in children if child.is_running()]
    assert not list(place.glob("*/model"))
    assert not list(place.glob("tmp*"))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_while_the_event_loop_is_created_interrupts_without_a_trace(number: signal.Signals) -> None:
    program = """
import asyncio, os, sys
from rljob_cli.exits import run_async, signals_interrupt

create = asyncio.events.new_event_loop

def signalled():
    os.kill(os.getpid(), int(sys.argv[1]))
    return create()

asyncio.events.new_event_loop = signalled

async def main():
    await asyncio.sleep(600)

with signals_interrupt():
    try:
        run_async(main)
    except KeyboardInterrupt:
        print("interrupted")
"""
    done = subprocess.run(
        ["env", "--default-signal=INT", sys.executable, "-c", program, str(int(number))],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert (done.stdout, done.stderr) == ("interrupted\n", "")


def test_an_interruption_that_python_drops_is_heeded() -> None:
    class Dropped:
        def __del__(self) -> None:
            raise KeyboardInterrupt

    with signals_interrupt() as heed:
        heed()
        Dropped()
        with pytest.raises(KeyboardInterrupt):
            heed()


def test_a_signal_while_a_folder_is_made_leaves_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make = tempfile.TemporaryDirectory

    def interrupted() -> tempfile.TemporaryDirectory[str]:
        made = make(dir=tmp_path)
        signal.raise_signal(signal.SIGTERM)
        return made

    monkeypatch.setattr(tempfile, "TemporaryDirectory", interrupted)
    with pytest.raises(KeyboardInterrupt), signals_interrupt(), scratch_folder():
        pass
    assert not list(tmp_path.iterdir())


def test_an_environment_that_keeps_its_contract_as_its_page_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    checkout = Path(__file__).parents[2]
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.chdir(checkout / "manifests" / "examples")
    page = (checkout / "docs" / "environments.md").read_text(encoding="utf-8")
    _, _, shown = page.partition("$ rljob check-environment guessing_game:GuessingGame --set maxTurns=3\n")
    ended = rljob("check-environment", "guessing_game:GuessingGame", "--set", "maxTurns=3")
    assert ended.code == 0, ended.out
    assert [line.rstrip() for line in ended.out.splitlines()] == shown.partition("```")[0].splitlines()


CHANGING = """
import os, time
from rljob_runtime.environments import TurnObservation

class Changing:
    async def open(self, start):
        return self
    async def react(self, turn):
        int(turn.text)
        return TurnObservation(text=str(hash("a")))
    async def score(self, *, truncated):
        return time.time()
"""


def test_an_environment_that_breaks_its_contract_is_told_how(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    (tmp_path / "changing_environment.py").write_text(CHANGING)
    monkeypatch.chdir(tmp_path)
    ended = rljob("check-environment", "changing_environment:Changing")
    assert ended.code == 1
    assert ended.out.endswith("\nenvironment changing_environment:Changing: 2 of 3 checks fail\n"), ended.out
    assert "ValueError: invalid literal for int" in ended.out
    assert "random.Random(start.seed)" in ended.out
