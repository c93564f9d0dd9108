"""The list of runs costs little however often it is asked for, and runs that nobody looks at are closed."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
from served_page import LINE, PORT, TOKEN, a_run, page
from tests.waiting import until_async

from rljob_cli.page import catalog
from rljob_cli.page.catalog import Catalog
from rljob_cli.page.server import page_app


async def test_the_list_is_made_in_a_thread_and_kept_for_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(120):
        a_run(tmp_path / "runs" / f"run-{number:03}")
    monkeypatch.setattr(catalog, "_SCAN_SECONDS", 3600.0)
    rows: list[threading.Thread] = []
    asked: list[threading.Thread] = []
    row_of, running = catalog._row, catalog.is_running

    def count_row(listed: Any) -> dict[str, Any]:
        rows.append(threading.current_thread())
        return row_of(listed)

    def count_running(folder: Any) -> bool:
        asked.append(threading.current_thread())
        return running(folder)

    monkeypatch.setattr(catalog, "_row", count_row)
    monkeypatch.setattr(catalog, "is_running", count_running)
    async with page(tmp_path / "runs") as client:
        for start, shown in ((0, 100), (100, 20)):
            found = (await client.get(f"/api/runs?start={start}")).json()
            assert (found["total"], len(found["runs"])) == (120, shown)
    assert (len(rows), len(asked)) == (120, 120)
    assert threading.main_thread() not in {*rows, *asked}


async def test_runs_are_closed_although_nobody_asks_for_anything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(catalog, "_IDLE_SECONDS", 0.0)
    monkeypatch.setattr(catalog, "_CLOSING_SECONDS", 0.01)
    runs = Catalog([a_run(tmp_path / "run", LINE)])
    app = page_app(runs, token=TOKEN, port=PORT)
    async with app.router.lifespan_context(app):
        run = await runs.run(0)
        assert run is not None
        await until_async(lambda: run.streams.closing and not run._tasks)
        await run.open()
        assert run._tasks == []  # nothing follows a run that the catalog no longer knows
        assert (await runs.run(0)) is not run
