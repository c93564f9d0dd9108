"""Prompts that kill their engine each time, or that it refuses: only their groups are given up, with the reason."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from dying_engine import install_dying_engine
from faulty_run import PROMPTS, FaultyRun, emulated

from rljob_core.records import GroupAborted, GroupReserved

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

STEPS, ROWS = 8, 28  # each row is some prompt of the job
#: By the word of its prompt, how an engine ends, and what it leaves as the reason.
POISON = {
    "segfault": "exit code 139 (SIGSEGV): Segmentation fault in string_at",
    "raise": "RuntimeError: no kernel for this prompt",
}


@pytest.fixture
def prompts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file of prompts, one for each kind of poison; the engine `Dying` is installed for the run's processes."""
    plugins = install_dying_engine(tmp_path / "plugins")
    path = os.pathsep.join(filter(None, [str(plugins), os.environ.get("PYTHONPATH")]))
    monkeypatch.setenv("PYTHONPATH", path)
    words = [*POISON, *["well"] * (ROWS - len(POISON))]
    rows = [json.dumps({"question": f"{number} {word}", "answer": "1"}) for number, word in enumerate(words)]
    (tmp_path / "prompts.jsonl").write_text("\n".join(rows))
    return tmp_path / "prompts.jsonl"


def test_only_the_poisoned_groups_are_given_up(start: Callable[..., FaultyRun], prompts: Path) -> None:
    assert STEPS * PROMPTS >= ROWS
    changes = emulated(step_seconds=0.05)
    engine = changes["rollout"]["engine"]
    engine["name"] = "Dying"
    engine["options"]["words"] = {word: word for word in POISON}
    changes["data"] = {"source": "jsonl", "dataset": str(prompts), "options": {}}
    run = start("poison", steps=STEPS, **changes)
    records = [record for message in run.finish() for record in message.records]
    planned = {record.group: record.prompt for record in records if isinstance(record, GroupReserved)}
    given_up = [
        record for record in records if isinstance(record, GroupAborted) and record.reason != "JobFinished"
    ]
    found = set()
    for record in given_up:
        assert record.reason == "PromptExhausted", record
        (why,) = (word for word, reason in POISON.items() if reason in record.detail)
        assert f"prompt {planned[record.group]} " in record.detail
        found.add(why)
    assert found == set(POISON)
    log = run.said
    assert "exit code 139 (SIGSEGV): Segmentation fault in string_at" in log, log
    assert "+----" not in log
