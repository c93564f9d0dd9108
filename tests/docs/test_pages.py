"""What the pages show of `rljob` is what the command does.

Every `console` block of every page, and every other one that shows a `$ rljob …` command, is run here and its output
compared, unless a comment before it says who runs it, `<!-- tested by: tests/runs/test_custom.py -->`, or why nobody
can, `<!-- not run: it needs a GPU -->`. Only `rljob` is run here, so that a block of other commands needs the comment.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import get_args

import pytest
from evidence_builder import job
from evidence_files import write_run
from example_job import write_model
from invocation import started
from sample_files import write_samples
from scenarios import job_config
from simulated_run import write_simulated_run
from typer.testing import CliRunner

from rljob_cli.audit import audit
from rljob_cli.commands import app
from rljob_cli.manifest.load import load_job
from rljob_cli.run_folder.folder import RunFolder
from rljob_core.coordinator_reads import COORDINATOR_READS
from rljob_core.records import Record
from rljob_sim import EngineKind, Scenario, TrainerProfile
from rljob_sim.scenario import STREAMRL_LENGTHS

CHECKOUT = Path(__file__).parents[2]
DOCS = CHECKOUT / "docs"
UPDATE = bool(os.environ.get("RLJOB_UPDATE_PAGES"))
"""Whether outputs are written into the pages instead of compared."""
PAGES = sorted({*DOCS.rglob("*.md"), *CHECKOUT.glob("*.md"), CHECKOUT / "e2e/README.md"})

_BLOCK = re.compile(
    r"(?:<!-- (?P<mark>tested by|not run): (?P<reason>.+?) -->\n+)?```(?P<language>console|text)\n(?P<body>.*?)```",
    re.DOTALL,
)


@dataclass(frozen=True)
class Block:
    """A block of a page that shows commands, with the comment before it that says who runs them, if any."""

    page: Path
    mark: str | None
    reason: str | None
    examples: tuple[tuple[str, str], ...]
    """Each command, and the output that the page shows for it."""


def blocks(page: Path) -> list[Block]:
    """The blocks of a page in which a reader is shown what to type, and what is answered."""
    found = []
    for block in _BLOCK.finditer(page.read_text(encoding="utf-8")):
        parts = re.split(r"^\$ ", block["body"], flags=re.MULTILINE)[1:]
        examples = tuple((command, shown) for command, _, shown in (part.partition("\n") for part in parts))
        if block["language"] == "console" or any(command.split()[0] == "rljob" for command, _ in examples):
            found.append(Block(page, block["mark"], block["reason"], examples))
    return found


BLOCKS = [block for page in PAGES for block in blocks(page)]
RUN_HERE = sorted({block.page for block in BLOCKS if block.mark is None})


def name(page: Path) -> str:
    return str(page.relative_to(CHECKOUT))


def manifest_of(page: Path) -> str | None:
    """The job that a page shows as a whole."""
    shown = re.findall(r"```yaml\n(apiVersion: .*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    return next((manifest for manifest in shown if "kind: RLJob" in manifest), None)


@pytest.fixture
def reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A reader's folder: `model`, the manifests of the checkout, and job.yaml of cli.md, unless a page has its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    Path("job.yaml").write_text(manifest_of(DOCS / "cli.md") or "")
    write_model(tmp_path / "model")
    Path("manifests").symlink_to(CHECKOUT / "manifests")
    return tmp_path


def ensure_run(arguments: list[str]) -> None:
    """The run that a command reads: one that has trained; for a patch, one that has only begun."""
    if Path("runs/sums").exists():
        return
    match arguments:
        case ["audit", *_]:
            write_run(job(), RunFolder(Path("runs/sums")))
        case ["samples", *_]:
            write_samples(Path("job.yaml").absolute(), Path("runs/sums"))
        case ["patch", *_]:
            started(Path("job.yaml").absolute(), Path("runs/sums"))
        case ["simulate", "--from", *_]:
            spec = load_job(Path("job.yaml"), ["spec.steps=12"]).spec
            engines = replace(EngineKind.of("H100", 2, 64), name="gpus")
            config = job_config().model_copy(update={"spec": spec})
            lengths = replace(STREAMRL_LENGTHS, max=spec.rollout.sampling.max_tokens)
            trainer = TrainerProfile(1e-4, publish_seconds=2.0)
            scenario = Scenario(config, (engines,), trainer, lengths)
            write_simulated_run(RunFolder(Path("runs/sums")), scenario)


@pytest.mark.parametrize("page", RUN_HERE, ids=name)
def test_a_page_shows_what_the_command_does(page: Path, reader: Path) -> None:
    """Commands of one page run one after another in one folder. A command without shown output must only succeed."""
    if (manifest := manifest_of(page)) is not None:
        (reader / "job.yaml").write_text(manifest)
    for block in blocks(page):
        if block.mark is not None:
            continue
        for command, shown in block.examples:
            _, *arguments = shlex.split(command)
            ensure_run(arguments)
            result = CliRunner().invoke(app, arguments)
            assert result.exit_code == (2 if shown.startswith("error") else 0), (command, result.output)
            said = result.output.replace(f"{reader}/", "")
            if shown and UPDATE:
                page.write_text(page.read_text().replace(shown, said))
            elif shown:
                assert said == shown, f"RLJOB_UPDATE_PAGES=1 writes it into {name(page)}"


def test_pages_are_run() -> None:
    assert {name(page) for page in RUN_HERE} >= {"docs/api.md", "docs/audit.md", "docs/cli.md"}


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block.page.stem)
def test_a_block_is_run_here_or_marked(block: Block) -> None:
    assert block.examples, "a console block shows a command after `$ `"
    if block.mark is None:
        others = [command for command, _ in block.examples if command.split()[0] != "rljob"]
        assert others == [], "only rljob is run here: write `<!-- tested by: … -->` or `<!-- not run: … -->`"


@pytest.mark.parametrize("block", [b for b in BLOCKS if b.mark], ids=lambda block: block.page.stem)
def test_a_marked_block_says_who_runs_it_or_why_nobody_does(block: Block) -> None:
    assert block.reason
    if block.mark == "tested by":
        assert (CHECKOUT / block.reason).is_file()


def test_streams_page_has_every_record_and_field() -> None:
    page = (DOCS / "design" / "streams.md").read_text()
    said = dict(
        re.findall(r"^\| `([a-z]+)` \| (.*?): .* \|$", page[page.index("## Records") :], re.MULTILINE)
    )
    for record in get_args(Record):
        names = [field.name for field in fields(record) if field.name != "kind"]
        kind = next(field.default for field in fields(record) if field.name == "kind")
        assert re.findall(r"`(\w+)`", said.pop(kind)) == names
    assert said == {}


@pytest.mark.parametrize(
    ("kind", "begin", "end", "quoted"),
    [
        ("PayloadSummary", "with,\nfor each trajectory in it,", ". A span", r"`(\w+)`"),
        ("VersionSpan", ". A span is", "the oldest", r'"(\w+)"'),
        ("RewardResult", '{"results": [{', "}]}", r'"(\w+)"'),
        ("VersionAnnounced", "the newest announcement:", "|", r'"(\w+)"'),
        ("RecordBatch", "message is JSON:", ". Snapshots", r'"(\w+)": '),
        ("Writer", '"writer": {', "}", r'"(\w+)"'),
        ("WeightManifest", "`manifest.json`:", ". `digest`", r"`(\w+)`"),
        ("FedMicroBatch", "backward pass:", ", each with", r"`(\w+)`"),
        ("FedTrajectory", "`items`, each with", ". A step", r"`(\w+)`"),
    ],
)
def test_streams_page_has_the_names_of_the_schema(kind: str, begin: str, end: str, quoted: str) -> None:
    page = (DOCS / "design" / "streams.md").read_text()
    assert page.count(begin) == 1
    said = re.findall(quoted, page.split(begin)[1].split(end)[0])
    schema = json.loads((DOCS / "design" / "records.schema.json").read_text())
    assert set(said) - {"payload"} == set(schema["$defs"][kind]["properties"])


def test_streams_page_has_the_fields_that_coordinators_read() -> None:
    page = (DOCS / "design" / "streams.md").read_text()
    said = page.split("all that coordinators read:")[1].split(". Its `pipeline`")[0]
    assert tuple(re.findall(r"`([\w.]+)`", said)) == COORDINATOR_READS


def test_the_schema_of_what_a_job_stores_is_up_to_date(tmp_path: Path) -> None:
    file = DOCS / "design" / "records.schema.json"
    assert CliRunner().invoke(app, ["record-schema", "--check", "--output", str(file)]).exit_code == 0
    changed = tmp_path / "changed.json"
    changed.write_text(file.read_text().replace('"inherited"', '"other"'))
    result = CliRunner().invoke(app, ["record-schema", "--check", "--output", str(changed)])
    assert result.exit_code == 1
    assert "make crds" in result.output


def test_audit_page_has_every_claim() -> None:
    said = re.findall(r"^\| `([a-z-]+)` \| (.*) \|$", (DOCS / "audit.md").read_text(), re.MULTILINE)
    assert said == [(check.name, check.claim) for check in audit(job().evidence()).checks]


def test_checking_a_job_loads_no_torch(tmp_path: Path) -> None:
    (manifest,) = re.findall(r"```yaml\n(.*?)```", (DOCS / "cli.md").read_text(), re.DOTALL)
    (tmp_path / "job.yaml").write_text(manifest)
    write_model(tmp_path / "model")
    script = (
        "import sys; from rljob_cli.commands import app; app(['validate', 'job.yaml'], standalone_mode=False); "
        "import rljob_cli.run.run; print(sorted({'torch', 'transformers'} & set(sys.modules)))"
    )
    ended = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.stdout.splitlines()[-1:] == ["[]"], ended.stderr
