"""`rljob audit --metrics` writes the verdict as Prometheus reads it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from evidence_builder import job
from evidence_files import IDENTITY, write_run
from prometheus_client.parser import text_string_to_metric_families
from typer.testing import CliRunner

from rljob_cli.audit.evidence import AuditCheck, Findings, Verdict, Violation
from rljob_cli.audit.metrics_file import write_metrics
from rljob_cli.commands import app
from rljob_cli.run_folder.folder import RunFolder
from rljob_core.errors import SpecError


def samples(file: Path) -> dict[tuple[str, ...], float]:
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(file.read_text())
        for sample in family.samples
    }


def findings(*verdicts: Verdict) -> Findings:
    found = tuple(Violation(("g0.0",), "text", verdict) for verdict in verdicts)
    return Findings((AuditCheck("check", "claim", 1, found),), {})


def test_the_file_has_the_verdicts_of_a_run_by_the_command(tmp_path: Path) -> None:
    folder, file = tmp_path / "run", tmp_path / "audit.prom"
    write_run(job(), RunFolder(folder))
    result = CliRunner().invoke(app, ["audit", str(folder), "--metrics", str(file)])
    assert result.exit_code == 0, result.output
    found = samples(file)
    name = IDENTITY.name
    for verdict in ("violated", "unfinished", "damaged"):
        assert found["rljob_audit_violations", "default", name, verdict] == 0
    assert found["rljob_audit_timestamp_seconds", "default", name] > 0


def test_violations_count_by_what_follows_from_them(tmp_path: Path) -> None:
    file, folder = tmp_path / "audit.prom", RunFolder(tmp_path / "run")
    folder.claim(IDENTITY)
    write_metrics(file, findings(Verdict.VIOLATED, Verdict.DAMAGED, Verdict.VIOLATED), folder.path, None)
    found = {
        labels[-1]: value for labels, value in samples(file).items() if labels[0] == "rljob_audit_violations"
    }
    assert found == {"violated": 2, "unfinished": 0, "damaged": 1}


def test_a_file_that_cannot_be_written_is_an_error_that_names_it(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"--metrics: .*no/audit.prom cannot be written"):
        write_metrics(tmp_path / "no/audit.prom", findings(), tmp_path, None)


def test_what_is_no_regular_file_is_not_replaced(tmp_path: Path) -> None:
    pipe, link = tmp_path / "pipe", tmp_path / "link"
    os.mkfifo(pipe)
    link.symlink_to(tmp_path / "elsewhere")
    for path in pipe, link:
        with pytest.raises(SpecError, match="is no regular file: name another one"):
            write_metrics(path, findings(), tmp_path, None)
    assert pipe.is_fifo()
    assert link.is_symlink()
