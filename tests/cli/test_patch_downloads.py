"""`rljob patch` of a data set's URI: it is downloaded before the change is checked and written."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from example_job import write_job
from invocation import rljob, started
from tests.hub import Hub, running_hub

from rljob_cli.run_folder.folder import RunFolder

ROWS = Path("manifests/examples/data/sums-train.jsonl")
HELD_OUT = ROWS.with_name("sums-heldout.jsonl")
URI = "hf://datasets/acme/rows/held-out.jsonl"


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    monkeypatch.setenv("RLJOB_CACHE", str(tmp_path / "cache"))
    with running_hub() as hub:
        yield hub


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    """The folder of a run without held-out data."""
    data = {"dataset": str(ROWS.resolve()), "source": "jsonl", "promptsPerStep": 2, "groupSize": 2}
    return started(write_job(tmp_path, data=data, reward={"functions": ["exact_match"]}))


def test_a_data_set_that_a_patch_names_is_downloaded(hub: Hub, folder: RunFolder) -> None:
    rows = hub.data("acme/rows", {"held-out.jsonl": HELD_OUT.read_bytes()})
    assert (
        rljob("patch", folder.path, "--set", f"evaluation={{samples: 64, data: {{dataset: {URI}}}}}").code
        == 0
    )
    identity = folder.identity()
    assert identity is not None
    assert identity.manifest["spec"]["evaluation"]["data"]["dataset"] == URI
    (found,) = identity.downloads.values()
    assert found["revision"] == rows.branches["main"]
    # A change of something else keeps the revision, and asks no hub.
    asked = len(hub.requests)
    rows.commit({"held-out.jsonl": b'{"another": "row"}\n'})
    assert rljob("patch", folder.path, "--set", "steps=9").code == 0
    again = folder.identity()
    assert again is not None
    assert (again.downloads, len(hub.requests)) == (identity.downloads, asked)


def test_a_data_set_that_does_not_exist_changes_nothing(hub: Hub, folder: RunFolder) -> None:
    before = folder.job.read_bytes()
    ended = rljob("patch", folder.path, "--set", f"evaluation={{samples: 64, data: {{dataset: {URI}}}}}")
    assert ended.code == 2
    assert ended.errors[0].startswith("error: spec.evaluation.data.dataset: ")
    assert "shows no dataset acme/rows" in ended.errors[0]
    assert folder.job.read_bytes() == before


def test_a_resumed_run_downloads_what_a_patch_names(hub: Hub, folder: RunFolder, tmp_path: Path) -> None:
    hub.data("acme/rows", {"held-out.jsonl": HELD_OUT.read_bytes()})
    assert (
        rljob("patch", folder.path, "--set", f"evaluation={{samples: 64, data: {{dataset: {URI}}}}}").code
        == 0
    )
    shutil.rmtree(tmp_path / "cache")
    hub.repositories.clear()
    ended = rljob("run", tmp_path / "job.yaml", "--output", folder.path, "--resume")
    assert ended.code == 2
    assert "spec.evaluation.data.dataset" in ended.errors[0]
    assert "shows no dataset acme/rows" in ended.errors[0]
