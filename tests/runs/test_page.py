"""The page of `rljob ui` in a browser: a run that loses an engine, aborts groups and ends; an empty run; two runs.

One browser and one run serve all tests, which follow each other. Screenshots go to the folder that RLJOB_SCREENSHOTS
names, else to a temporary one. `RLJOB_BROWSER` names another Chromium than Debian's.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
from e2e.harness.availability import available
from e2e.harness.errors import NotAvailableError
from invocation import snapshot
from playwright.sync_api import Browser, Page, sync_playwright
from tests.emulated import emulated
from tests.waiting import until

from runs import RLJOB, LiveRun, write_job

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900), pytest.mark.xdist_group("page")]

PATIENCE = 300.0
SIX = ("live", "finished", "timeline-with-a-kill", "samples", "compare", "dark-narrow")
"""The screenshots that `make screenshots` is for."""
VIEWS = ("curves", "timeline", "buffers", "engines", "samples", "audit")
REWARD = '''"""Fails on some prompts."""
import zlib


def score(*, completion, item):
    number = zlib.crc32(item["question"].encode())
    if number % 29 == 3:
        raise ValueError("no verifier for this task")
    return (number % 7) / 7
'''


class PageProcess:
    """`rljob ui` in the background."""

    def __init__(self, *arguments: str | Path) -> None:
        self.process = subprocess.Popen(
            [RLJOB, "ui", *map(str, arguments)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        assert self.process.stdout is not None
        self.url = self.process.stdout.readline().strip()
        assert self.url.startswith("http://127.0.0.1:"), self.url + self.process.stdout.read()

    @property
    def port(self) -> str:
        return self.url.split(":")[2].split("/")[0]

    def stop(self) -> str:
        """Ctrl-C; what it said besides the URL."""
        self.process.send_signal(signal.SIGINT)
        said, _ = self.process.communicate(timeout=PATIENCE)
        return said

    def end(self) -> None:
        """End it, whatever the test did; by a signal on which it removes its copy of the streams."""
        assert self.process.stdout is not None
        self.process.terminate()
        try:
            self.process.wait(PATIENCE)
        finally:
            self.process.kill()
            self.process.wait()
            self.process.stdout.close()


@dataclass
class Stage:
    """What the tests share.

    Attributes:
        said: what the browser's console said.
    """

    run: LiveRun
    ui: PageProcess
    page: Page
    pictures: Path
    folders: dict[str, Path]
    said: list[str] = field(default_factory=list)

    def show(self, path: str) -> None:
        self.page.goto(f"http://127.0.0.1:{self.ui.port}/#/{path}")

    def text(self, selector: str = "body") -> str:
        return self.page.inner_text(selector)

    def until_text(self, text: str, selector: str = "body") -> None:
        until(lambda: text in self.text(selector), f"{text!r} on the page")

    def picture(self, name: str) -> None:
        self.page.screenshot(path=self.pictures / f"{name}.png")

    def events(self) -> set[str]:
        """The kinds of the timeline's events."""
        return set(self.page.locator(".events td:nth-child(2)").all_inner_texts())


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    names = (os.environ.get("RLJOB_BROWSER", ""), "chromium", "google-chrome")
    program = next((found for name in names if name and (found := shutil.which(name))), None)
    with available():
        if program is None:
            raise NotAvailableError("there is no chromium: e2e/install-packages.sh installs it")
    assert program is not None
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def stage(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    folder = tmp_path_factory.mktemp("page")
    (folder / "sometimes.py").write_text(REWARD)
    model = Path(__file__).parents[2] / "manifests/examples/models/chain-sum"
    # Engines that are slower than the trainer: they have work when one of them dies.
    parts = emulated(step_seconds=0.05, decode_seconds=0.05)
    pools = [{"name": "cpu", "replicas": 2, "costPerHour": "1.50"}]
    manifest = write_job(
        folder, model, steps=600, reward={"functions": ["sometimes:score"]},
        evaluation={"everySteps": 10, "samples": 4},
        rollout={**parts["rollout"], "pools": pools}, trainer=parts["trainer"],
    )  # fmt: skip
    empty = folder / "runs" / "empty"
    empty.mkdir(parents=True)
    run = LiveRun(manifest, folder / "runs" / "live")
    stage = None
    try:
        until(lambda: (run.output / "job.json").exists() or run.process.poll() is not None, "folder")
        (empty / "job.json").write_bytes((run.output / "job.json").read_bytes())
        ui = PageProcess(run.output, empty)
        pictures = Path(os.environ.get("RLJOB_SCREENSHOTS") or folder / "pictures")
        pictures.mkdir(parents=True, exist_ok=True)
        page = browser.new_page(viewport={"width": 1280, "height": 860})
        stage = Stage(run, ui, page, pictures, {"live": run.output, "empty": empty})
        page.on("console", lambda message: stage.said.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: stage.said.append(f"raised: {error}"))
        page.goto(ui.url)
        yield stage
        page.close()
    finally:
        run.stop()
        if stage is not None:
            stage.ui.end()


@pytest.mark.smoke
def test_a_live_run_is_followed(stage: Stage) -> None:
    stage.show("run/0/curves")
    stage.until_text("running", "#head")
    stage.run.until("two steps", lambda: stage.run.steps() >= 2)
    stage.until_text("held out, sampled", "#content")
    assert "token" not in stage.page.url
    for title in (
        "Reward",
        "Loss",
        "KL divergence",
        "Clipped tokens",
        "Staleness",
        "Tokens per second",
        "Cost so far",
    ):
        assert title in stage.text("#content")
    before = stage.text(".chart .readout >> nth=0")
    until(lambda: stage.text(".chart .readout >> nth=0") != before, "newer numbers")
    stage.picture("live")


@pytest.mark.smoke
def test_an_engine_s_death_and_an_aborted_group_are_marked(stage: Stage) -> None:
    stage.show("run/0/timeline")
    until(
        lambda: "job-rollout-cpu" in str(stage.run.pids()) and stage.page.locator("canvas.timeline").count(),
        "lanes",
    )

    def died() -> bool:
        """Whether an engine's death is marked: that of an engine without work is not, so another one is needed."""
        if "death" not in stage.events():
            with suppress(KeyError, ProcessLookupError):  # the next one has not started yet
                stage.run.kill("job-rollout-cpu-1")
        return "death" in stage.events()

    until(died, "mark of the death", every=2.0)
    until(lambda: "abort" in stage.events(), "mark of an aborted group")
    assert "job-rollout-cpu-1 died" in stage.text(".events")
    assert "no verifier for this task" in stage.text(".events")
    until(lambda: "start" in stage.events(), "mark of its next process")
    stage.picture("timeline-with-a-kill")


def test_the_timeline_is_zoomed_by_wheel_and_by_keys(stage: Stage) -> None:
    canvas = stage.page.locator("canvas.timeline")
    canvas.focus()
    whole = stage.text(".readout")
    for key in ("+", "+", "ArrowLeft"):
        stage.page.keyboard.press(key)
    until(lambda: not stage.text(".readout").startswith("0.0"), "a smaller window")
    stage.page.keyboard.press("Home")
    until(lambda: stage.text(".readout").startswith("0"), "the whole run")
    canvas.hover()
    stage.page.mouse.wheel(0, -400)
    until(
        lambda: "version" in stage.text(".readout") or "of" in stage.text(".readout"),
        "words on what is under the pointer",
    )
    assert whole
    stage.page.mouse.move(0, 0)


def test_buffers_engines_and_audit_of_a_live_run(stage: Stage) -> None:
    stage.page.keyboard.press("3")
    stage.until_text("stamp BoundedAsync 1", "#content")
    stage.picture("live-buffers")
    stage.page.keyboard.press("4")
    stage.until_text("job-rollout-cpu-0", "#content")
    stage.until_text("of 16", "#content")
    stage.picture("live-engines")
    stage.page.keyboard.press("6")
    stage.until_text("Every claim holds.", "#content")
    assert "holds" in stage.text("#head")
    stage.picture("live-audit")


def test_samples_show_what_was_answered_and_why_it_has_no_score(stage: Stage) -> None:
    stage.page.keyboard.press("5")
    until(lambda: stage.page.locator(".answer").count() > 1, "answers")
    stage.page.locator(".tokens").first.focus()
    stage.page.keyboard.press("ArrowRight")
    assert "log-probability" in stage.text(".answer .readout >> nth=0")
    stage.picture("samples")
    stage.page.select_option("select[name=aborted]", "yes")
    stage.until_text("no verifier for this task", "#content")
    stage.page.fill("input[name=prompt]", "no prompt has this")
    stage.until_text("0 groups match", "#content")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_view_fits_a_narrow_screen_in_dark_and_light(stage: Stage, scheme: Any) -> None:
    stage.page.emulate_media(color_scheme=scheme)
    stage.page.set_viewport_size({"width": 400, "height": 800})
    for view in VIEWS:
        stage.show(f"run/0/{view}")
        until(lambda: "Loading" not in stage.text("#content") and stage.text("#content"), "content")
        if view == "timeline":
            until(lambda: stage.page.locator(".events td").count(), "its events")
        assert stage.page.evaluate("document.documentElement.scrollWidth") <= 400, view
        stage.picture(f"{scheme}-narrow-{view}" if view != "timeline" else f"{scheme}-narrow")
    stage.page.set_viewport_size({"width": 1280, "height": 860})
    stage.page.emulate_media(color_scheme="light")


def test_an_empty_run_says_that_it_is_empty(stage: Stage) -> None:
    stage.show("run/1/curves")
    stage.until_text("No step is finished yet", "#content")
    stage.until_text("empty", "#head")
    for view, words in (
        ("timeline", "The ledger has told nothing yet"),
        ("buffers", "nothing"),
        ("engines", "No engine"),
        ("samples", "no samples"),
    ):
        stage.show(f"run/1/{view}")
        stage.until_text(words, "#content")
    assert [entry.name for entry in stage.folders["empty"].iterdir()] == ["job.json"]


@pytest.mark.smoke
def test_the_run_ends_and_is_read_without_writing_into_it(stage: Stage) -> None:
    stage.run.patch("spec.steps=1")  # it ends with the steps that have begun
    assert stage.run.wait() == 0
    before = snapshot(stage.run.output)
    stage.show("run/0/timeline")
    stage.until_text("finished", "#head")
    until(
        lambda: "trainer" in stage.text(".readout") and {"death", "end"} <= stage.events(),
        "the end of the ledger",
    )
    stage.picture("finished-timeline")
    stage.show("run/0/curves")
    stage.until_text("held out, sampled", "#content")
    stage.picture("finished")
    stage.show("run/0/engines")
    stage.until_text("ended", "#content")
    # A page that is opened afterwards reads it from the beginning, from a copy of the streams.
    later = PageProcess(stage.run.output)
    try:
        with httpx.Client(base_url=later.url.split("/?")[0]) as client:
            client.get(later.url)

            def ended() -> bool:
                state = client.get("/api/runs/0").json()
                return (
                    state["ledger"]["whole"]
                    and state["audit_state"] == "done"
                    and state["verdict"] == "holds"
                )

            until(ended, "its ledger and its audit")
            lanes = {lane["name"]: lane for lane in client.get("/api/runs/0/timeline").json()["lanes"]}
            engines = ["job-rollout-cpu-0", "job-rollout-cpu-1"]
            assert list(lanes) == ["trainer", *engines, "rewards", "evaluation"]
            assert all(lanes[engine]["swaps"] for engine in engines)
            assert any(end > start for _, start, end, _ in lanes["evaluation"]["spans"])
    finally:
        said = later.stop()
    assert "Traceback" not in said
    assert snapshot(stage.run.output) == before


def test_two_runs_are_compared(stage: Stage) -> None:
    other = stage.run.output.with_name("other")
    shutil.copytree(stage.run.output, other, symlinks=True)
    text = (other / "job.json").read_text().replace('"learningRate": 0.0001', '"learningRate": 0.0003')
    (other / "job.json").write_text(text)
    metrics = other / "metrics.jsonl"
    metrics.write_text(
        re.sub(r'(_sampled|_greedy|_mean|_mean_trained)":0\.', r'\1":0.1', metrics.read_text())
    )
    old, stage.ui = stage.ui, PageProcess(stage.run.output, other)
    old.stop()
    stage.page.goto(stage.ui.url)
    stage.show("compare/0,1")
    stage.until_text("spec.algorithm.learningRate", "#content")
    stage.until_text("other", "#content .chart")
    stage.picture("compare")
    assert [name for name in SIX if not (stage.pictures / f"{name}.png").exists()] == []
    stage.show("run/0/curves")
    stage.until_text("finished", "#head")
    stage.show("runs")
    stage.until_text("2 runs", "#content")
    stage.show("run/0/curves")
    stage.until_text("finished", "#head")


def test_a_browser_that_reconnects_is_told_what_to_do(stage: Stage) -> None:
    port = stage.ui.port
    stage.show("run/0/curves")
    stage.until_text("live", "#places")
    stage.ui.stop()
    stage.until_text("does not answer", "#banner")
    stage.ui = PageProcess(stage.run.output, "--port", port)
    stage.until_text("open the address that it printed", "#banner")
    stage.page.goto(stage.ui.url)
    until(lambda: stage.text("#banner") == "" and "Reward" in stage.text("#content"), "the page again")


@pytest.mark.smoke
def test_the_browser_had_nothing_to_complain_of(stage: Stage) -> None:
    # While the server was away, and of its first answer to an old token.
    allowed = ("ERR_CONNECTION_REFUSED", "ERR_EMPTY_RESPONSE", "ERR_CONNECTION_RESET", "status of 401")
    assert [line for line in stage.said if not any(words in line for words in allowed)] == []


def test_a_run_serves_its_own_page_until_it_ends(tmp_path: Path) -> None:
    model = Path(__file__).parents[2] / "manifests/examples/models/chain-sum"
    run = LiveRun(write_job(tmp_path, model, steps=100_000, **emulated()), tmp_path / "run", "--ui")
    try:
        run.until("the page's address", lambda: "live page: http://127.0.0.1:" in run.said)
        address = run.said.partition("live page: ")[2].split()[0]
        assert httpx.get(address, follow_redirects=True).status_code == 200
        run.process.send_signal(signal.SIGINT)
        assert run.wait() == 130
        with pytest.raises(httpx.ConnectError):
            httpx.get(address)
    finally:
        run.stop()
