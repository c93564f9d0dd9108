"""A run of 1,000 steps: every document of it stays small, and says what the ledger says."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from pathlib import Path

import pytest
from invocation import snapshot
from large_run import ENGINES, write_large_run
from tests.night import NIGHT
from tests.waiting import until_async, within

from rljob_cli.page.auditing import RunAudits
from rljob_cli.page.page_run import PageRun
from rljob_cli.run_folder.folder import RunFolder

STEPS = 1000


@pytest.mark.slow
async def test_a_large_run_is_read_to_its_end_and_shown_window_by_window(tmp_path: Path) -> None:
    trajectories = 2048 if NIGHT else 64
    folder = RunFolder(tmp_path / "run")
    await asyncio.to_thread(write_large_run, folder, steps=STEPS, trajectories=trajectories)
    before = snapshot(folder.path) if not NIGHT else None
    run = PageRun(folder.path)
    await run.open()
    try:
        # Curves need nothing of the ledger.
        curves = run.curves_document(0, "")
        assert curves["versions"] == list(range(1, STEPS + 1))
        assert "cost" in curves["columns"]
        while not run.streams.whole:
            assert run.streams.problem == ""
            await asyncio.sleep(0.1)
        assert run.streams.state_problem == ""
        assert len(run.streams.state.waiting) == 0  # it does not grow with the trajectories
        assert run.buffers_document()["counts"]["consumed"] == STEPS * trajectories
        whole = run.timeline_document(None, None, 1000)
        assert [lane["name"] for lane in whole["lanes"]][1:-1] == [
            f"big-rollout-cpu-{i}" for i in range(ENGINES)
        ]
        assert [step[0] for step in whole["steps"]] == list(range(1, STEPS + 1))
        assert {step[4] for step in whole["steps"]} == {trajectories}
        # Twenty steps by their own times: how long the writing of each took is the machine's affair.
        (_, begin, *_), (_, _, end, *_) = whole["steps"][STEPS // 2], whole["steps"][STEPS // 2 + 19]
        part = run.timeline_document(begin, end, 1000)
        assert 0 < len(part["steps"]) < 100
        for document in (curves, whole, part, run.state_document(), run.buffers_document()):
            assert len(json.dumps(document)) < 1 << 20
    finally:
        await run.close()
    if before is not None:
        assert snapshot(folder.path) == before


class UnstoppableAudits(RunAudits):
    """Audits that end by themselves in spite of a cancellation, as a server that is just being stopped does."""

    begun = False

    async def audit(self, url: str, *, records: int) -> None:
        self.begun = True
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(3600)


async def test_a_page_ends_although_a_cancellation_is_lost(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    await asyncio.to_thread(write_large_run, folder, steps=2, trajectories=64)
    run = PageRun(folder.path)
    audits = run.streams._audits = UnstoppableAudits(folder.path)
    await run.open()
    await until_async(lambda: audits.begun)
    async with within():
        await run.close()
