"""Writes an audit's verdict as Prometheus reads it: for the textfile collector of node_exporter, or a push gateway."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path

from rljob_cli.audit.evidence import Findings, Verdict
from rljob_cli.exits import name_folder_in_errors
from rljob_cli.run_folder.folder import RunFolder
from rljob_core.config import JobConfig
from rljob_core.errors import SpecError
from rljob_operator.cluster.local.replace_text import replace_text
from rljob_runtime.telemetry.catalogue import CATALOGUE, AuditMetrics
from rljob_runtime.telemetry.recorder import Recorder
from rljob_runtime.telemetry.serve import as_text


def write_metrics(file: Path, findings: Findings, folder: Path, config: JobConfig | None) -> None:
    """Write the file, at once.

    Args:
        file: its path; a collector of files wants names that end in `.prom`.
        findings: of the audit.
        folder: the run's.
        config: the job's, in a pod; None for a run's folder.

    Raises:
        SpecError: its folder does not exist, or it is no regular file.
        OSError: it cannot be written; the error names the file.
    """
    identity = None if config is not None else RunFolder(folder).identity()
    job = config.job if config is not None else "" if identity is None else identity.name
    namespace = config.namespace if config is not None else "" if identity is None else identity.namespace
    recorder = Recorder(CATALOGUE["audit"])
    found = Counter(violation.verdict for check in findings.checks for violation in check.violations)
    for verdict in Verdict:
        if verdict is not Verdict.HOLDS:
            recorder.set(AuditMetrics.VIOLATIONS, found[verdict], namespace, job, verdict.value)
    recorder.set(AuditMetrics.TIMESTAMP, time.time(), namespace, job)
    if not file.parent.is_dir():
        raise SpecError("--metrics", f"{file} cannot be written: its folder does not exist")
    if file.is_symlink() or (file.exists() and not file.is_file()):  # a device, too, would be replaced
        raise SpecError("--metrics", f"{file} is no regular file: name another one")
    with name_folder_in_errors(file):
        replace_text(file, as_text(recorder))
