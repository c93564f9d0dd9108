"""Copies of two finished runs, each doctored in another way: the audit must not be fooled by any, nor cry wolf.

Run as a script, it prints the table that docs/audit.md shows.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import independent_auditor
import pytest
from doctored_run import copy_run, read_streams
from doctorings import (
    ABORTS,
    DAMAGED,
    DOCTORINGS,
    FATES,
    HOLDS,
    NOTHING,
    PROMPTS,
    TROUBLED_DOCTORINGS,
    UNFINISHED,
    VIOLATED,
)
from doctorings.registry import Doctoring
from e2e.harness.nats_server import EmbeddedServer
from example_job import write_job
from invocation import rljob

from rljob_core.ports import Channel, Message
from rljob_core.spec import DataSpec
from rljob_runtime.data.prompts import PromptSource
from runs import LiveRun

# In one process, else each makes a run of its own.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600), pytest.mark.xdist_group("doctored")]

INDEPENDENT = {NOTHING, FATES, PROMPTS, ABORTS}
"""What the independent auditor sees too: it reads ledger, manifests and the trainer's log, and no reports."""
INDEPENDENT_SPECS = {
    "another_number_of_reward_workers_for_a_while",
    "another_learning_rate_for_a_while_without_another_coordinator",
    "a_recorded_spec_with_a_bound_that_was_not_in_force",
}
"""And of the specs, which it compares with each other, but not with the workers'."""
EXIT_CODES = {HOLDS: 0, VIOLATED: 1, UNFINISHED: 3, DAMAGED: 4}
AUDIT_PAGE = Path(__file__).parents[2] / "docs" / "audit.md"
REWARD = """
def spread(*, completion, item):
    return len(completion) % 5 / 4
"""


@dataclass(frozen=True)
class Finished:
    """A finished run, the messages of its streams, and the server on which its doctored copies are stored."""

    output: Path
    streams: dict[Channel, list[Message]]
    url: str
    copies: Path


def make_job(folder: Path, **changes: Any) -> Path:
    """A job on emulated engines and an emulated trainer."""
    spec: dict[str, Any] = {
        "steps": 6,
        "data": {"dataset": "chain_sum", "promptsPerStep": 4, "groupSize": 2},
        "pipeline": {"mode": "BoundedAsync", "maxStaleness": 2},
        "evaluation": {"data": {"dataset": "chain_sum"}, "samples": 4, "everySteps": 3},
        "rollout": {
            "engine": {"name": "Emulated"},
            "sampling": {"maxTokens": 6},
            "pools": [{"name": "cpu", "replicas": 1}],
        },
        "reward": {"functions": ["spread:spread"]},
        "trainer": {"backend": "Emulated"},
    }
    (folder / "spread.py").write_text(REWARD)
    return write_job(folder, **{**spec, **changes})


@contextmanager
def run_to_its_end(
    manifest: Path, factory: pytest.TempPathFactory, trouble: Callable[[LiveRun], None] = lambda run: None
) -> Iterator[Finished]:
    """Run a job, with trouble on the way, and serve its copies."""
    output = manifest.parent / "run"
    run = LiveRun(manifest, output)
    try:
        trouble(run)
        assert run.wait() == 0, run.said
    finally:
        run.stop()
    identity = json.loads((output / "job.json").read_text())
    copies = factory.mktemp("copies")
    with asyncio.Runner() as runner:

        async def streams() -> dict[Channel, list[Message]]:
            async with EmbeddedServer(output / "nats") as server:
                return await read_streams(server.url, job=identity["name"], uid=identity["uid"])

        found = runner.run(streams())
        server = EmbeddedServer(copies / "nats")
        runner.run(server.__aenter__())
        try:
            yield Finished(output, found, server.url, copies)
        finally:
            runner.run(server.__aexit__(None, None, None))


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Finished]:
    with run_to_its_end(make_job(tmp_path_factory.mktemp("finished")), tmp_path_factory) as run:
        yield run


@pytest.fixture(scope="module")
def troubled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Finished]:
    """A run with a prompt whose answers cannot be scored, and whose coordinator is killed on the way."""
    folder = tmp_path_factory.mktemp("troubled")
    files = {}
    for kind in ("trained", "heldout"):
        files[kind] = folder / f"{kind}.jsonl"
        rows = (json.dumps({"question": f"{kind} {n}", "answer": "1"}) for n in range(64))
        files[kind].write_text("\n".join(rows))
    data = {"source": "jsonl", "dataset": str(files["trained"]), "promptsPerStep": 4, "groupSize": 2}
    manifest = make_job(
        folder,
        steps=8,
        data=data,
        evaluation={"data": {"dataset": str(files["heldout"])}, "samples": 4, "everySteps": 4},
        trainer={"backend": "Emulated", "options": {"stepSeconds": 0.3}},
    )
    source = PromptSource(DataSpec.model_validate(data), model_uri=str(folder / "model"))
    poison = source.item(5)["question"]
    (folder / "spread.py").write_text(f"{REWARD.rstrip()} if item['question'] != '{poison}' else 1 / 0\n")

    def kill(run: LiveRun) -> None:
        run.until("two steps", lambda: run.steps() >= 2)
        run.kill("sums-coordinator-0")

    with run_to_its_end(manifest, tmp_path_factory, kill) as run:
        yield run


@pytest.mark.parametrize("name", DOCTORINGS)
def test_the_audit_is_not_fooled(finished: Finished, name: str) -> None:
    check(finished, name, DOCTORINGS)


@pytest.mark.parametrize("name", TROUBLED_DOCTORINGS)
def test_leniency_for_what_was_lost_hides_nothing(troubled: Finished, name: str) -> None:
    check(troubled, name, TROUBLED_DOCTORINGS)


def check(run: Finished, name: str, doctorings: dict[str, Doctoring]) -> None:
    """Doctor a copy, and audit it."""
    doctoring = doctorings[name]
    copy = copy_run(run.output, run.streams, run.copies / f"copy{list(doctorings).index(name)}")
    doctoring.apply(copy)
    copy.publish(run.url)
    ended = rljob("audit", copy.folder, "--json")
    found = [v["text"] for check in json.loads(ended.out)["checks"] for v in check["violations"]]
    assert json.loads(ended.out)["verdict"] == doctoring.verdict, found
    assert ended.code == EXIT_CODES[doctoring.verdict]
    if doctoring.what in INDEPENDENT or name in INDEPENDENT_SPECS:
        assert bool(independent_auditor.audit(copy.folder)) == (doctoring.verdict != HOLDS)


def test_a_ledger_whose_file_was_truncated(finished: Finished) -> None:
    copy = finished.copies / "truncated"
    shutil.copytree(finished.output, copy, symlinks=True, ignore=shutil.ignore_patterns("logs"))
    (block,) = copy.glob("nats/store/jetstream/*/streams/*_ledger/msgs/*.blk")
    os.truncate(block, block.stat().st_size // 2)
    ended = rljob("audit", copy)
    assert (ended.code, "verdict: unfinished" in ended.out) == (EXIT_CODES[UNFINISHED], True), ended.out


def table() -> list[str]:
    """What was altered, how many copies were made, and what the audit says of them."""
    verdicts = (VIOLATED, DAMAGED, UNFINISHED, HOLDS)
    lines = [
        f"| altered | copies | {' | '.join(f'`{v}`' for v in verdicts)} |",
        "|---|---:|" + "---:|" * len(verdicts),
    ]
    doctorings = [*DOCTORINGS.values(), *TROUBLED_DOCTORINGS.values()]
    kinds = dict.fromkeys(doctoring.what for doctoring in doctorings)
    for what in [*kinds, ""]:
        of_kind = [d.verdict for d in doctorings if what in {d.what, ""}]
        counts = " | ".join(str(of_kind.count(v) or "") for v in verdicts)
        lines.append(f"| {what or 'together'} | {len(of_kind)} | {counts} |".replace("  ", " "))
    return lines


def test_the_audits_page_has_the_table() -> None:
    assert "\n".join(table()) in AUDIT_PAGE.read_text(encoding="utf-8")


if __name__ == "__main__":
    sys.stdout.write("\n".join(table()) + "\n")
