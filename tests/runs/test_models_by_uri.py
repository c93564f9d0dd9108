"""The run of docs/models-and-data.md: downloaded through cuts, at one revision from its start to its last step."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.hub import Hub, running_hub

from runs import LiveRun

MODEL = Path("manifests/examples/models/chain-sum")
PAGE = Path("docs/models-and-data.md")
DATA = Path("manifests/examples/data")


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    monkeypatch.setenv("RLJOB_CACHE", str(tmp_path / "cache"))
    with running_hub() as hub:
        yield hub


def test_a_run_keeps_the_revision_with_which_it_began(hub: Hub, tmp_path: Path):
    model = hub.model("acme/sums", MODEL, cuts=[1_000_000, 500_000])
    lines = (DATA / "sums-train.jsonl").read_bytes().splitlines(keepends=True)
    parts = {"train/a.jsonl": b"".join(lines[:100]), "train/b.jsonl": b"".join(lines[100:])}
    rows = hub.data("acme/rows", {**parts, "README.md": b"rows"})
    (shown,) = re.findall(r"```yaml\n(apiVersion: .*?)```", PAGE.read_text(), re.DOTALL)
    manifest = tmp_path / "job.yaml"
    manifest.write_text(shown)
    began = {
        "hf://acme/sums@main": model.branches["main"],
        "hf://datasets/acme/rows/train/*.jsonl": rows.branches["main"],
    }
    first = LiveRun(manifest, tmp_path / "out", "--set", "steps=1")
    try:
        assert first.wait() == 0, first.said + first.logs()
    finally:
        first.stop()
    assert revisions(tmp_path) == began
    ranges = [one.range for one in hub.downloads()]
    assert ranges[0] == ""
    # The branches move on, to what no run could use.
    model.commit({"config.json": b"{}"})
    rows.commit({"train/a.jsonl": b'{"another": "row"}\n'})
    second = LiveRun(manifest, tmp_path / "out", "--resume", "--set", "steps=2")
    try:
        assert second.wait() == 0, second.said + second.logs()
        assert second.summary()["steps"] == 2
        second.check_audit()
    finally:
        second.stop()
    assert revisions(tmp_path) == began
    assert [one.range for one in hub.downloads()] == ranges


def revisions(folder: Path) -> dict[str, str]:
    downloads = json.loads((folder / "out" / "job.json").read_text())["downloads"]
    return {found["uri"]: found["revision"] for found in downloads.values()}
