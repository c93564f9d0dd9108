"""What docs/cli.md and docs/audit.md show is what the command does."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from evidence_builder import job
from example_job import write_model
from invocation import started
from test_audit_read import leave
from typer.testing import CliRunner

from rljob_cli.audit import audit
from rljob_cli.main import app
from rljob_cli.run_folder import RunFolder

DOCS = Path(__file__).parents[2] / "docs"


def console(page: str) -> list[tuple[list[str], str]]:
    """Commands of a page with the output that it shows."""
    found = []
    for block in re.findall(r"```console\n(.*?)```", (DOCS / page).read_text(), re.DOTALL):
        for example in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, _, output = example.partition("\n")
            found.append((shlex.split(command), output))
    assert found
    return found


def test_cli_examples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (manifest,) = re.findall(r"```yaml\n(.*?)```", (DOCS / "cli.md").read_text(), re.DOTALL)
    Path("job.yaml").write_text(manifest)
    write_model(tmp_path / "model")
    for (program, *arguments), shown in console("cli.md"):
        assert program == "rljob"
        if arguments[0] == "patch" and not Path("runs/sums").exists():
            started(tmp_path / "job.yaml", Path("runs/sums"))
        result = CliRunner().invoke(app, arguments)
        assert result.output.replace(f"{tmp_path}/", "") == shown
        assert result.exit_code == (2 if shown.startswith("error") else 0)


def test_audit_examples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    leave(job(), RunFolder(Path("runs/sums")))
    for (program, *arguments), _ in console("audit.md"):
        assert program == "rljob"
        result = CliRunner().invoke(app, arguments)
        assert result.exit_code == 0, result.output


def test_audit_page_has_every_claim() -> None:
    told = re.findall(r"^\| `([a-z-]+)` \| (.*) \|$", (DOCS / "audit.md").read_text(), re.MULTILINE)
    assert told == [(check.name, check.claim) for check in audit(job().evidence()).checks]


def test_checking_a_job_loads_no_torch(tmp_path: Path) -> None:
    (manifest,) = re.findall(r"```yaml\n(.*?)```", (DOCS / "cli.md").read_text(), re.DOTALL)
    (tmp_path / "job.yaml").write_text(manifest)
    write_model(tmp_path / "model")
    script = (
        "import sys; from rljob_cli.main import app; app(['validate', 'job.yaml'], standalone_mode=False); "
        "import rljob_cli.run; print(sorted({'torch', 'transformers'} & set(sys.modules)))"
    )
    ended = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.stdout.splitlines()[-1:] == ["[]"], ended.stderr
