"""`rljob samples`: what it shows, in words and as JSON, and what it says of folders without samples."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from example_job import write_model
from invocation import rljob, snapshot, started
from rich.console import Console
from sample_answers import answer, keep
from sample_files import write_samples

from rljob_cli.run_folder.folder import RunFolder
from rljob_cli.samples.show import print_page
from rljob_runtime.samples.places import SampleFolder
from rljob_runtime.samples.read import SampleReader
from rljob_runtime.samples.rows import SCHEMA

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture
def manifest(tmp_path: Path) -> Path:
    (shown,) = re.findall(r"```yaml\n(apiVersion.*?)```", (DOCS / "cli.md").read_text(), re.DOTALL)
    write_model(tmp_path / "model")
    file = tmp_path / "job.yaml"
    file.write_text(shown)
    return file


@pytest.fixture
def run(manifest: Path) -> RunFolder:
    return write_samples(manifest, manifest.parent / "out")


def test_samples_of_a_job_that_was_here_before_are_named_and_not_shown(run: RunFolder) -> None:
    keep(run.samples, answer("g9.0", at=99), writer="reward-1.x", job="before")
    ended = rljob("samples", run.path, "--limit", "1")
    assert ended.out.startswith("e2-0 ")
    (warning,) = ended.errors
    assert warning.startswith("warning: training-")
    assert "is of another job (UID 'before') and was left out" in warning


def test_groups_are_shown_with_what_became_of_their_answers(run: RunFolder) -> None:
    before = snapshot(run.path)
    ended = rljob("samples", run.path)
    assert ended.code == 0
    assert [line.rstrip() for line in ended.out.splitlines()] == [
        "e2-0 · evaluation of version 2 · reward 1.000 of 2",
        "9+9=",
        "1.00  18.  v2",
        "1.00  18.  v2, greedy",
        "",
        "g4 · not trained on · reward 1.000 of 1",
        "40-8=",
        "1.00  32.                            v2",
        "   –  32 RewardTimeout: exact_match  v2",
        "",
        "g3 · step 3 · reward 0.500 of 2",
        "7+5=",
        "expected: 12.",
        "1.00  12‹2›.  v1-2, stale 1, adv +1.00",
        "0.00  13.     v1, stale 1, adv -1.00",
        "",
        "groups 1-3 of 3 that match, 3 are kept",
    ]
    assert snapshot(run.path) == before


def test_flags_choose_groups(run: RunFolder) -> None:
    def groups(*flags: str) -> list[str]:
        return [
            group["group"] for group in json.loads(rljob("samples", run.path, "--json", *flags).out)["groups"]
        ]

    assert groups() == ["e2-0", "g4", "g3"]
    assert groups("--step", "3") == ["g3"]
    assert groups("--step", "2") == ["e2-0"]
    assert groups("--prompt", "7+") == ["g3"]
    assert groups("--reward-below", "0.9") == ["g3"]
    assert groups("--aborted") == ["g4"]
    assert groups("--evaluation") == ["e2-0"]
    assert groups("--training", "--order", "worst") == ["g3", "g4"]
    assert groups("--start", "1", "--limit", "1") == ["g4"]


def test_json_has_each_token(run: RunFolder) -> None:
    page = json.loads(rljob("samples", run.path, "--json", "--prompt", "7+5").out)
    assert (page["total"], page["start"], page["kept"], page["problems"]) == (1, 0, 3, [])
    (group,) = page["groups"]
    found = group["answers"][0]
    assert found["texts"] == ["1", "2", "."]
    assert found["versions"] == [1, 1, 2]
    assert found["logprobs"] == [-0.5] * 3
    assert found["parts"] == {"exact_match": 1.0}
    assert found["trained"] == {"step": 3, "staleness": 1, "advantage": 1.0}
    assert found["received"] == "2023-11-14T22:13:21Z"


def test_rewards_and_versions_have_colours_and_marks(run: RunFolder) -> None:
    console = Console(force_terminal=True, color_system="truecolor", width=80, record=True)
    with console.capture() as shown:
        print_page(console, SampleReader(SampleFolder(run.samples)).page())
    text = shown.get()
    assert "\x1b[32m1.00\x1b[0m" in text  # green
    assert "\x1b[31m0.00\x1b[0m" in text  # red
    assert re.search(r"\x1b\[7m‹2›\x1b\[0m\x1b\[36m\.\x1b\[0m", text)


def test_an_answer_commands_no_terminal(run: RunFolder) -> None:
    evil = "\x1b]0;owned\x07\x1b[2J[bold]x[/bold]\r\n\u202e\x9b"
    keep(run.samples, answer("g9.0", prompt=evil, response=evil, at=99), writer="reward-1.x")
    out = rljob("samples", run.path, "--limit", "1").out
    assert "␛]0;owned␇␛[2J[bold]x[/bold]␍↵��" in out
    assert not set(out) & set("\x1b\x07\r\u202e\x9b")


def test_a_long_answer_is_cut_and_a_long_prompt_too(run: RunFolder) -> None:
    keep(run.samples, answer("g9.0", prompt="p" * 9000, response="r" * 9000, at=99), writer="reward-1.x")
    out = rljob("samples", run.path, "--limit", "1").out
    assert len(out) < 4000
    assert "… (see --json)" in out.replace("\n", "").replace("      ", "")


def test_a_folder_without_samples_says_why(manifest: Path) -> None:
    run = started(manifest)

    def said() -> list[str]:
        ended = rljob("samples", run.path)
        assert (ended.code, ended.out) == (0, "")
        return ended.errors

    assert said() == [
        (
            f"{run.path}: no samples yet: they come with the first scores; if the job has steps already, "
            "logs/*-reward-*.log says why none are stored"
        )
    ]
    stored = json.loads(run.job.read_text())
    stored["manifest"]["spec"]["samples"] = {"share": None, "keepBytes": 0}
    run.job.write_text(json.dumps(stored))
    assert said() == [f"{run.path}: no samples: spec.samples.keepBytes is 0"]
    assert json.loads(rljob("samples", run.path, "--json").out)["groups"] == []
    run.job.write_text("{")
    assert said() == [f"{run.path}: no samples yet: they come with the first scores"]


@pytest.mark.parametrize(
    ("name", "flags", "message"),
    [
        ("nowhere", [], "does not exist: give the output folder of a run"),
        ("", [], "is not an output folder of rljob run: it has no job.json"),
        ("job.yaml", [], "is not the configuration of a job: give the output folder of a run"),
    ],
)
def test_what_is_no_run_is_refused(manifest: Path, name: str, flags: list[str], message: str) -> None:
    before = snapshot(manifest.parent)
    ended = rljob("samples", manifest.parent / name, *flags)
    assert (ended.code, ended.out) == (2, "")
    assert ended.errors == [f"error: {manifest.parent / name}: {message}"]
    assert snapshot(manifest.parent) == before


def test_an_unknown_order_is_refused(run: RunFolder) -> None:
    ended = rljob("samples", run.path, "--order", "random")
    assert (ended.code, ended.errors) == (
        2,
        ["error: --order: is one of newest, oldest, worst, best, not random"],
    )


def test_a_damaged_file_is_named_beside_what_is_left(run: RunFolder) -> None:
    (file,) = run.samples.glob("training-*")
    file.write_bytes(file.read_bytes()[:100])
    ended = rljob("samples", run.path)
    assert ended.code == 0
    assert ended.out.splitlines()[-1] == "groups 1-1 of 1 that match, 1 are kept"
    (warning,) = ended.errors
    assert warning.startswith(f"warning: {file.name} is damaged and was left out: ")


def test_without_pyarrow_the_remedy_is_said(run: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("rljob_runtime.samples")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delitem(sys.modules, "rljob_cli.samples.show", raising=False)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    ended = rljob("samples", run.path)
    assert ended.code == 2
    assert ended.errors[0].startswith("error: samples need pyarrow: run pip install 'rljob[data]'")


def test_the_program_of_the_page_prints_the_answers(manifest: Path) -> None:
    write_samples(manifest, manifest.parent / "runs/sums")
    (program,) = re.findall(r"```python\n(.*?)```", (DOCS / "samples.md").read_text(), re.DOTALL)
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=manifest.parent, capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[:2] == ["g3 13. 0.0 ", "g4 32 0.0 RewardTimeout: exact_match"]
    assert len(done.stdout.splitlines()) == 6


def test_the_page_names_the_columns(run: RunFolder) -> None:
    page = (DOCS / "samples.md").read_text()
    (table,) = re.findall(r"\| column \| holds \|\n\|---\|---\|\n(.*?)\n\n", page, re.DOTALL)
    said = re.findall(r"`(\w+)`", "\n".join(line.split("|")[1] for line in table.splitlines()))
    assert sorted(said) == sorted(SCHEMA.names)
    (file,) = run.samples.glob("training-*")
    assert pq.read_schema(file).names == SCHEMA.names
