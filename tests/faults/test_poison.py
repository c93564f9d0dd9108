"""Prompts that end, stop or upset an engine or a reward: only their groups are given up, with the reason."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from block_device import MAY_MOUNT, Disk
from boundaries import BOUNDARIES
from dying_engine import install_dying_engine
from faulty_run import PROMPTS, FaultyRun
from kill_locations import Written
from tests.emulated import emulated
from tests.night import chance

from rljob_core.records import GroupAborted, GroupReserved, StepRestored
from rljob_core.spec import DataSpec
from rljob_runtime.data.prompts import PromptSource

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

STEPS = 6
HANG_SECONDS = 8
#: By the word of its prompt, what an engine does with it, and what is left as the reason.
ENGINE_POISON = {
    "segfault": "exit code 139 (SIGSEGV): Segmentation fault in string_at",
    "raise": "RuntimeError: no kernel for this prompt",
    "silent": f"exit code 124: no new token for {HANG_SECONDS} s",
    "empty": "it has no tokens",
}
#: The same of reward functions.
REWARD_POISON = {
    "spin": "RewardTimeout: ",
    "quit": "SystemExit",
    "interrupt": "RewardRaised: poisonous:poisonous raised KeyboardInterrupt",
    "huge": "RewardOutOfRange: poisonous:poisonous ",
    "both": "RewardOutOfRange: poisonous:poisonous ",
}
POISON = ENGINE_POISON | REWARD_POISON


@pytest.fixture
def prompts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file of prompts, one for each kind of poison; the engine `Dying` is installed for the run's processes."""
    plugins = install_dying_engine(tmp_path / "plugins")
    path = os.pathsep.join(filter(None, [str(plugins), os.environ.get("PYTHONPATH")]))
    monkeypatch.setenv("PYTHONPATH", path)
    # As many rows as the job plans prompts, replacements included: each is some prompt of it, once.
    words = [*POISON, *["well"] * (STEPS * PROMPTS)]
    rows = [json.dumps({"question": f"{number} {word}", "answer": "1"}) for number, word in enumerate(words)]
    (tmp_path / "prompts.jsonl").write_text("\n".join(rows))
    return tmp_path / "prompts.jsonl"


@pytest.fixture
def job(prompts: Path) -> dict[str, Any]:
    """The job's sections."""
    changes = emulated(step_seconds=0.05)
    engine = changes["rollout"]["engine"]
    engine["name"] = "Dying"
    engine["options"]["words"] = {word: word for word in ENGINE_POISON}
    changes["reward"] = {"functions": ["poisonous:poisonous", "poisonous:also"], "timeoutSeconds": 2}
    changes["rollout"]["hangSeconds"] = HANG_SECONDS
    changes["data"] = {"source": "jsonl", "dataset": str(prompts), "options": {}}
    return changes


def test_only_the_poisoned_groups_are_given_up(
    start: Callable[..., FaultyRun], job: dict[str, Any], disk_of: Callable[[str], Disk]
) -> None:
    """Also where the power is cut meanwhile, which only root can do."""
    disk = disk_of("poison") if MAY_MOUNT else None
    run = start("poison", steps=STEPS, **job)
    said = ""
    if disk is not None:
        run.watch(2)
        run.lose_power(chance("power cuts among poison").choice(BOUNDARIES), disk)
        said = run.said
        run.resume()
    check_given_up(run.finish(), word_of(run), power_was_cut=disk is not None)
    said += run.said
    assert "exit code 139 (SIGSEGV): Segmentation fault in string_at" in said, said
    assert "+----" not in said
    if disk is None:
        pytest.skip("only the poisoned groups were given up, but cutting the power needs root")


def word_of(run: FaultyRun) -> Callable[[int], str]:
    """What tells the word of a prompt of the run, by the prompt's index."""
    spec = json.loads((run.output / "job.json").read_text())["manifest"]["spec"]
    source = PromptSource(DataSpec.model_validate(spec["data"]), model_uri=spec["model"]["uri"])
    return lambda prompt: source.item(prompt)["question"].split()[1]


def check_given_up(ledger: Sequence[Written], word: Callable[[int], str], *, power_was_cut: bool) -> None:
    """The poisoned groups were given up, each with its reason, and no other was.

    A group may have been given up in what the power took: a step that was restored from its weights then goes on
    without the group, and the reason is lost. The power may also take payloads of a group that the ledger still has
    as generated: another prompt then takes its place, as after any loss of the server's newest messages.
    """
    records = [record for message in ledger for record in message.records]
    prompts = {record.group: record.prompt for record in records if isinstance(record, GroupReserved)}
    given_up = [
        record for record in records if isinstance(record, GroupAborted) and record.reason != "JobFinished"
    ]
    for record in given_up:
        prompt = prompts[record.group]
        if record.reason == "PayloadLost" and power_was_cut:
            continue
        assert record.reason == "PromptExhausted", record
        assert record.detail.startswith(f"prompt {prompt} "), record
        by_power = power_was_cut and "has taken its place" in record.detail  # the last of its deaths
        assert by_power or POISON[word(prompt)] in record.detail, record
    dropped = [group for record in records if isinstance(record, StepRestored) for group in record.dropped]
    found = {word(prompts[group]) for group in (*dropped, *(record.group for record in given_up))}
    assert found >= set(POISON)
