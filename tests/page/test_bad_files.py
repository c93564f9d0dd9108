"""Whatever the files of a run hold, the page answers, says what it could not read, and shows the rest."""

from __future__ import annotations

import asyncio
import json
import math
import os
import threading
from pathlib import Path
from typing import Any

import pytest
from served_page import LINE, a_run, page, until
from tests.waiting import within

from rljob_cli.page.files import RunFiles, is_running
from rljob_cli.page.page_run import PageRun
from rljob_cli.page.streams import RunStreams
from rljob_cli.run_folder.folder import FORMAT, RunFolder

PATIENCE = 300.0
HUGE = 10**400
DEEP = b"[" * 100_000
DOCUMENTS = ("", "/curves", "/timeline", "/buffers", "/engines", "/audit", "/samples")


def manifest(**spec: Any) -> dict[str, Any]:
    return {
        "name": "sums",
        "namespace": "default",
        "uid": "0",
        "format": FORMAT,
        "model": "",
        "nats_url": "",
        "manifest": {"metadata": None, "spec": {"steps": 4, **spec}},
    }


@pytest.mark.parametrize(
    ("lines", "files", "problem"),
    [
        ([{**LINE, "loss": HUGE, "seconds": HUGE}], {}, ""),
        ([{**LINE, "engines": HUGE, "pools": {"a": {"engines": HUGE}}}], {}, ""),
        ([LINE], {"engines.json": DEEP}, "engines.json cannot be read"),
        ([LINE], {"job.json": DEEP}, "job.json cannot be read"),
        ([LINE], {"job.json": manifest(rollout={"pools": [{"name": "a", "costPerHour": HUGE}]})}, ""),
        ([LINE], {"job.json": manifest(rollout={"pools": [{"name": "a", "replicas": HUGE}]})}, ""),
        ([LINE], {"job.json": manifest()}, ""),
        ([b'{"version": 1, "a": ' + b'{"a":' * 900 + b"1" + b"}" * 901 + b"\n", LINE], {}, ""),
    ],
)
async def test_every_document_of_a_run_with_a_bad_file_is_answered(
    tmp_path: Path, lines: list[Any], files: dict[str, Any], problem: str
) -> None:
    async with within(), page(a_run(tmp_path / "run", *lines, **files)) as client:
        state = (await client.get("/api/runs/0")).json()
        assert any(problem in text for text in state["problems"]) or not problem
        assert state["step"] == 1
        for name in DOCUMENTS:
            assert (await client.get(f"/api/runs/0{name}")).status_code == 200


async def test_an_error_that_nobody_foresaw_becomes_a_problem_that_the_page_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: RunFiles) -> bool:
        raise ZeroDivisionError("of a file")

    async def fail_as_well(_: RunStreams) -> None:
        raise ZeroDivisionError("of a stream")

    monkeypatch.setattr(RunFiles, "refresh", fail)
    monkeypatch.setattr(RunStreams, "_follow_once", fail_as_well)
    async with within(), page(a_run(tmp_path / "run", LINE)) as client:
        await until(client, lambda state: "files cannot be read now: of a file" in str(state["problems"]))
        await until(client, lambda state: "streams cannot be read now: of a stream" in str(state["problems"]))
        monkeypatch.undo()
        await until(client, lambda state: "of a" not in str(state["problems"]) and state["step"] == 1)


async def test_a_request_for_a_run_that_is_closed_meanwhile_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def never(_: PageRun) -> None:
        await asyncio.sleep(3600)

    monkeypatch.setattr(PageRun, "_follow_files", never)
    run = PageRun(a_run(tmp_path / "run", LINE))
    waiting = asyncio.create_task(run.open())
    await asyncio.sleep(0)
    await run.close()
    async with within():
        await waiting


def test_a_lock_that_is_a_pipe_or_large_is_not_read(tmp_path: Path) -> None:
    folder = RunFolder(a_run(tmp_path / "run"))
    lock = folder.path / ".lock"
    with folder.locked():
        assert is_running(folder)
        lock.write_text(f"{os.getpid():>65}", encoding="ascii")
        assert not is_running(folder)
    lock.unlink()
    os.mkfifo(lock)
    found: list[bool] = []
    thread = threading.Thread(target=lambda: found.append(is_running(folder)), daemon=True)
    thread.start()
    thread.join(PATIENCE)
    assert found == [False]


def strict(text: str) -> Any:
    def refuse(sign: str) -> None:
        raise AssertionError(f"{sign} is not JSON")

    return json.loads(text, parse_constant=refuse)


async def test_numbers_that_json_does_not_have_are_null(tmp_path: Path) -> None:
    summary = {"exit": "Running", "steps": 1, "heldout_reward_after": math.nan, "wall_seconds": math.inf}
    line = {**LINE, "trajectories": {"open": math.nan, "done": 2}, "aborted": None, "pipeline": None}
    a_run(tmp_path / "runs" / "bad", line, **{"summary.json": summary})
    a_run(tmp_path / "runs" / "words", LINE, **{"summary.json": {"steps": [], "mode": None, "exit": {}}})
    async with page(tmp_path / "runs") as client:
        rows = {row["name"]: row for row in strict((await client.get("/api/runs")).text)["runs"]}
        assert (rows["bad"]["step"], rows["bad"]["held_out"], rows["bad"]["wall_seconds"]) == (1, None, None)
        assert (rows["words"]["step"], rows["words"]["mode"]) == (None, "")
        state = strict((await client.get(f"/api/runs/{rows['bad']['id']}")).text)
        assert state["trajectories"] == {"open": None, "done": 2}
        assert state["aborted"] == {}
