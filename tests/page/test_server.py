"""The page's server: who may read it, what it answers of good and of bad folders, and that it writes nothing there."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from example_job import write_job, write_model
from invocation import rljob, snapshot
from sample_files import write_samples
from served_page import LINE, PORT, TOKEN, a_run, page, until

from rljob_cli.page.access import HEADERS
from rljob_cli.page.command import _listen
from rljob_cli.run_folder.folder import FORMAT
from rljob_core.errors import SpecError
from rljob_runtime.samples.read import SampleReader


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Path]:
    """A folder whose content the test must leave as it is."""
    folder = a_run(tmp_path / "run", LINE)
    before = snapshot(folder)
    yield folder
    assert snapshot(folder) == before


# ------------------------------------------------------------------------------------------ who may read


@pytest.mark.parametrize("path", ["/", "/api/runs", "/api/runs/0", "/static/app.js", "/nothing"])
async def test_nothing_is_answered_without_the_token(run: Path, path: str) -> None:
    async with page(run, headers={}) as client:
        for headers in (
            {},
            {"Authorization": "Bearer x"},
            {"Cookie": f"rljob-ui-{PORT}=x"},
            {"Cookie": ";;=\x01"},
        ):
            answer = await client.get(path, headers=headers)
            assert answer.status_code == 401
            assert "rljob ui" in answer.text
        assert (await client.get(path, params={"token": "wrong"})).status_code == 401


async def test_the_token_moves_from_the_url_into_a_cookie_for_this_page_alone(run: Path) -> None:
    async with page(run, headers={}) as client:
        answer = await client.get("/", params={"token": TOKEN})
        assert (answer.status_code, answer.headers["location"]) == (303, "/")
        cookie = answer.headers["set-cookie"]
        assert "HttpOnly" in cookie
        assert "samesite=strict" in cookie.lower()
        assert (await client.get("/")).status_code == 200


async def test_the_redirect_leads_nowhere_else(run: Path) -> None:
    async with page(run, headers={}) as client:
        answer = await client.get("//elsewhere.example/", params={"token": TOKEN})
        assert answer.headers["location"] == "/"


@pytest.mark.parametrize(
    "host", ["elsewhere.example", f"elsewhere.example:{PORT}", "127.0.0.1", "127.0.0.1:1", ""]
)
async def test_another_host_s_name_is_refused_whatever_it_carries(run: Path, host: str) -> None:
    async with page(run) as client:
        assert (await client.get("/api/runs", headers={"Host": host})).status_code == 421


async def test_a_refused_name_says_how_the_page_is_reached_from_another_machine(run: Path) -> None:
    async with page(run) as client:
        answer = await client.get("/", headers={"Host": "127.0.0.1:9"})
    assert f"ssh -L {PORT}:127.0.0.1:{PORT}" in answer.text


@pytest.mark.parametrize("other", ["a[b]=1", "a b=1", '"', "{}", "ä=1", "=", "token"])
async def test_cookies_of_other_servers_of_this_machine_do_no_harm(run: Path, other: str) -> None:
    cookie = f"rljob-ui-{PORT}={TOKEN}"
    async with page(run, headers={}) as client:
        for text in (f"{other}; {cookie}", f"{cookie}; {other}"):
            headers = {"Cookie": text.encode()}
            assert (await client.get("/", headers=headers)).status_code == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
async def test_nothing_can_be_changed(run: Path, method: str) -> None:
    async with page(run) as client:
        assert (await client.request(method, "/api/runs/0")).status_code == 405


async def test_every_answer_forbids_scripts_and_frames_from_elsewhere(run: Path) -> None:
    async with page(run) as client:
        answers = [
            await client.get(path)
            for path in ("/", "/api/runs", "/static/app.js", "/static/none", "/api/runs/9")
        ]
        answers.append(await client.get("/", headers={"Authorization": ""}))
    for answer in answers:
        assert {name: answer.headers[name] for name in HEADERS} == dict(HEADERS)
    policy = HEADERS["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "http" not in policy


async def test_the_front_end_names_nothing_elsewhere() -> None:
    static = Path("operator/rljob_cli/page/static")
    for file in (Path(__file__).parents[2] / static).rglob("*.*"):
        text = file.read_text(encoding="utf-8").replace("http://www.w3.org/2000/svg", "")
        assert "//" not in text.replace("// ", "").replace("://", "!") or "http" not in text, file
        assert "https:" not in text, file
        assert "innerHTML" not in text, file
        assert "style=" not in text, file


@pytest.mark.parametrize(
    "path", ["/static/../page_run.py", "/static/%2e%2e/page_run.py", "/static/..%2fpage_run.py", "/static//etc/passwd",
             "/static/%2fetc/passwd", "/api/runs/..%2f..%2fetc", "/api/runs/-1", "/api/runs/1",
             "/api/runs/9999999999999999"]
)  # fmt: skip
async def test_no_path_leads_out(run: Path, path: str) -> None:
    async with page(run) as client:
        assert (await client.get(path)).status_code == 404


def test_only_the_loopback_interface_is_listened_on() -> None:
    listener = _listen(0)
    assert listener.getsockname()[0] == "127.0.0.1"
    with pytest.raises(SpecError, match="--port"):
        _listen(listener.getsockname()[1])
    listener.close()


# ------------------------------------------------------------------------------------------ documents


async def test_a_document_that_has_not_changed_is_not_sent_again(run: Path) -> None:
    async with page(run) as client:
        first = await client.get("/api/runs/0/curves")
        again = await client.get("/api/runs/0/curves", headers={"If-None-Match": first.headers["ETag"]})
    assert (first.status_code, again.status_code, again.content) == (200, 304, b"")


async def test_lines_that_are_added_come_alone_and_a_half_written_one_waits(tmp_path: Path) -> None:
    folder = a_run(tmp_path / "run", LINE)
    async with page(folder) as client:
        first = (await client.get("/api/runs/0/curves")).json()
        with (folder / "metrics.jsonl").open("ab") as file:
            text = json.dumps({**LINE, "version": 2}).encode() + b"\n"
            file.write(text[:20])
            file.flush()
            await until(client, lambda state: state["revisions"]["curves"] == "0.0:1")
            file.write(text[20:])
            file.flush()
            await until(client, lambda state: state["revisions"]["curves"] == "0.0:2")
        query = {"start": first["end"], "generation": first["generation"]}
        added = (await client.get("/api/runs/0/curves", params=query)).json()
        assert (added["start"], added["versions"]) == (1, [2])
        # A run that is resumed writes the file again.
        (folder / "metrics.jsonl").unlink()
        a_run(folder, {**LINE, "version": 7})
        await until(client, lambda state: state["step"] == 7)
        fresh = (await client.get("/api/runs/0/curves", params=query)).json()
        assert (fresh["start"], fresh["versions"]) == (0, [7])


@pytest.mark.parametrize("query", ["start=x", "start=nan", "start=1e300", "buckets=inf", "start=0&end=zz"])
async def test_a_query_that_is_no_number_is_refused(run: Path, query: str) -> None:
    async with page(run) as client:
        assert (await client.get(f"/api/runs/0/timeline?{query}")).status_code == 400


@pytest.mark.parametrize("runs", ["9" * 5000, "1,x", "-1", "1.5", "٣"])
async def test_what_is_no_run_s_number_is_refused(run: Path, runs: str) -> None:
    async with page(run) as client:
        assert (await client.get("/api/compare", params={"runs": runs})).status_code == 400
        assert (await client.get(f"/api/runs/{runs}")).status_code == 404


@pytest.mark.parametrize(
    ("files", "state", "problem"),
    [
        ({}, "finished", "nats/store is missing"),
        ({"job.json": b"{"}, "damaged", "job.json cannot be read"),
        ({"job.json": b"[]"}, "damaged", "job.json holds no JSON object"),
        (
            {"job.json": {"format": FORMAT, "name": "of somebody else", "colour": 1}},
            "damaged",
            "job.json cannot be read",
        ),
        ({"summary.json": b"\x00"}, "interrupted", "summary.json cannot be read"),
        ({"status.json": b"[1]"}, "finished", "status.json holds no JSON object"),
        ({"engines.json": b'{"a": 1}'}, "finished", "engines.json cannot be read"),
        ({"engines.json": b'[{"engine": 1}]'}, "finished", "engines.json cannot be read"),
    ],
)
async def test_a_damaged_folder_is_shown_as_far_as_it_can_be_read(
    tmp_path: Path, files: dict[str, Any], state: str, problem: str
) -> None:
    folder = a_run(tmp_path / "run", LINE, b"no line\n", b'{"version": 2, "half', **files)
    before = snapshot(folder)
    async with page(folder) as client:
        # Streams are looked at a little later than files.
        found = await until(client, lambda state: any(problem in text for text in state["problems"]))
        assert found["state"] == state
        assert any("line 2 is not a line of metrics" in text for text in found["problems"])
        for name in ("curves", "timeline", "buffers", "engines", "audit"):
            assert (await client.get(f"/api/runs/0/{name}")).status_code == 200
        assert (await client.get("/api/runs/0/curves")).json()["versions"] == [1]
        assert (await client.get("/api/compare?runs=0,0")).status_code == 200
    assert snapshot(folder) == before


@pytest.mark.parametrize("name", ["metrics.jsonl", "summary.json", "job.json", "engines.json", "status.json"])
async def test_a_pipe_in_the_place_of_a_file_holds_nothing_up(tmp_path: Path, name: str) -> None:
    folder = a_run(tmp_path / "run", LINE)
    (folder / name).unlink(missing_ok=True)
    os.mkfifo(folder / name)
    async with page(folder) as client:
        state = (await client.get("/api/runs/0")).json()
        assert f"{name} cannot be read: it is not a plain file" in state["problems"]
        assert (await client.get("/api/runs")).status_code == 200


@pytest.fixture(scope="module")
def answered(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose samples were kept."""
    folder = tmp_path_factory.mktemp("answered")
    write_model(folder / "model")
    return write_samples(write_job(folder), folder / "out").path


async def test_samples_come_page_by_page_with_every_token(answered: Path) -> None:
    before = snapshot(answered)
    async with page(answered) as client:
        whole = (await client.get("/api/runs/0/samples")).json()
        assert (whole["total"], whole["kept"], whole["reason"]) == (3, 3, "")
        second = (await client.get("/api/runs/0/samples?start=1&limit=1&order=worst")).json()
        assert (second["start"], len(second["groups"])) == (1, 1)
        found = (await client.get("/api/runs/0/samples?prompt=7%2B5&step=3&aborted=no&evaluation=no")).json()
        (group,) = found["groups"]
        answer = group["answers"][0]
        assert (group["group"], answer["response"], answer["versions"]) == ("g3", "12.", [1, 1, 2])
        assert answer["trained"]["advantage"] == 1.0
        assert len(answer["texts"]) == len(answer["logprobs"]) == len(answer["tokens"])
        assert (await client.get("/api/runs/0/samples?reward_below=0.9&evaluation=yes")).json()["total"] == 0
        for query in ("order=x", "start=x", "reward_below=x", "step=1.5"):
            assert (await client.get(f"/api/runs/0/samples?{query}")).status_code == 400
    assert snapshot(answered) == before


async def test_no_more_tokens_are_sent_than_are_asked_for(answered: Path) -> None:
    async with page(answered) as client:
        query = {"prompt": "7+5", "step": 3}
        whole = (await client.get("/api/runs/0/samples", params=query)).json()["groups"][0]["answers"][0]
        part = (await client.get("/api/runs/0/samples", params={**query, "tokens": 2})).json()
    answer = part["groups"][0]["answers"][0]
    assert whole["length"] == answer["length"] == len(whole["tokens"]) == 3
    assert [len(answer[name]) for name in ("tokens", "texts", "logprobs", "versions")] == [2] * 4
    assert answer["response"] == "".join(whole["texts"][:2])


async def test_samples_are_read_again_only_when_a_file_has_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_model(tmp_path / "model")
    folder = write_samples(write_job(tmp_path), tmp_path / "out")
    asked: list[str] = []
    of = SampleReader.page

    def count(self: SampleReader, *chosen: Any, **more: Any) -> Any:
        asked.append(more["order"])
        return of(self, *chosen, **more)

    monkeypatch.setattr(SampleReader, "page", count)
    async with page(folder.path) as client:
        for order in ("newest", "worst", "newest", "worst"):
            assert (await client.get(f"/api/runs/0/samples?order={order}")).json()["total"] == 3
        assert asked == ["newest", "worst"]
        (log,) = folder.trainer.iterdir()
        with log.open("ab") as file:
            file.write(b"{}\n")
        await client.get("/api/runs/0/samples")
        assert asked == ["newest", "worst", "newest"]
        next(iter(folder.samples.glob("*.parquet"))).unlink()
        assert (await client.get("/api/runs/0/samples")).json()["total"] < 3


async def test_a_run_without_samples_says_why(run: Path) -> None:
    async with page(run) as client:
        found = (await client.get("/api/runs/0/samples")).json()
    assert found["groups"] == []
    assert "no samples yet: they come with the first scores" in found["reason"]


async def test_a_folder_that_is_no_run_and_one_that_is_removed(tmp_path: Path) -> None:
    folder = tmp_path / "notes"
    folder.mkdir()
    (folder / "note.txt").write_text("no run")
    async with page(folder) as client:
        assert (await client.get("/api/runs/0")).json()["state"] == "no run"
        (folder / "note.txt").unlink()
        folder.rmdir()
        assert (await client.get("/api/runs/0")).status_code == 200
        assert (await client.get("/api/runs")).json()["runs"][0]["state"] == "gone"


async def test_an_empty_folder_shows_the_run_that_begins_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rljob_cli.page.catalog._SCAN_SECONDS", 0.0)
    async with page(tmp_path) as client:
        assert (await client.get("/api/runs")).json()["total"] == 0
        assert (await client.get("/api/runs/0")).status_code == 404
        a_run(tmp_path, LINE)
        assert (await client.get("/api/runs/0")).json()["state"] == "finished"


async def test_a_thousand_runs_of_a_folder_come_page_by_page(tmp_path: Path) -> None:
    for number in range(1000):
        a_run(tmp_path / "runs" / f"run-{number:04}")
    (tmp_path / "runs" / "no-run").mkdir()
    async with page(tmp_path / "runs") as client:
        found = (await client.get("/api/runs")).json()
        assert (found["total"], len(found["runs"])) == (1000, 100)
        found = (await client.get("/api/runs?find=run-0999")).json()
        assert [row["name"] for row in found["runs"]] == ["run-0999"]
        number = found["runs"][0]["id"]
        assert (await client.get(f"/api/runs/{number}")).json()["path"].endswith("run-0999")


@pytest.mark.parametrize("name", ["nothing", "file"])
def test_what_is_no_folder_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").write_text("")
    ended = rljob("ui", tmp_path / name)
    assert ended.code == 2
    assert "give the output folder of an `rljob run`" in ended.errors[0]
