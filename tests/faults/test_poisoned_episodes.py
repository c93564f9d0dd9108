"""Environments that crash, hang and raise at some prompts, and are killed like engines: only those are given up."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from faulty_run import PROMPTS, FaultyRun
from tests.emulated import emulated
from tests.night import chance

from rljob_core.records import GroupAborted

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

STEPS = 12
REASONS = {"crash": "EnvironmentCrashed", "hang": "EnvironmentTimeout", "raise": "EnvironmentRaised"}


def test_only_the_prompts_whose_episodes_fail_are_given_up(
    start: Callable[..., FaultyRun], tmp_path: Path
) -> None:
    # As many rows as the job plans prompts, replacements included: each is some prompt of it, once.
    words = [*REASONS, *["well"] * (STEPS * PROMPTS)]
    rows = [json.dumps({"question": f"{number} {word}"}) for number, word in enumerate(words)]
    (tmp_path / "prompts.jsonl").write_text("\n".join(rows))
    changes = emulated(decode_seconds=0.1)
    changes["rollout"]["environment"] = {"name": "faulty_game:FaultyGame", "timeoutSeconds": 4, "maxTurns": 3}
    changes["reward"] = {"functions": ["environment"]}
    changes["data"] = {"source": "jsonl", "dataset": str(tmp_path / "prompts.jsonl"), "options": {}}
    run = start("poisoned episodes", steps=STEPS, **changes)
    run.watch(2)
    kill_environment(run)
    run.strike("rollout", chance=chance("an engine among episodes"))
    ledger = run.finish()
    records = [record for message in ledger for record in message.records]
    given_up = [r for r in records if isinstance(r, GroupAborted) and r.reason != "JobFinished"]
    assert {record.reason for record in given_up} == {"PromptExhausted"}
    assert len(given_up) == len(REASONS), given_up
    causes = {cause for record in given_up for cause in record.causes.values()}
    assert causes <= {*REASONS.values(), "EnvironmentLost"}, given_up


def kill_environment(run: FaultyRun) -> None:
    """Kill -9 the server that plays an engine's episodes, and wait until the job has gone on."""

    def servers() -> list[psutil.Process]:
        found = []
        for pid in run.pods("rollout").values():
            with suppress(psutil.NoSuchProcess):  # episodes end all the time, and engines may
                for child in psutil.Process(pid).children(recursive=True):
                    with suppress(psutil.NoSuchProcess):
                        found += [child] if "rljob_runtime.environments" in child.cmdline() else []
        return found

    run.until("an environment", lambda: bool(servers()))
    reached = run.seen.seen.committed
    servers()[0].kill()
    run.say("the environment of an engine was killed")
    run.until("a step after that", lambda: run.seen.seen.committed > reached)
