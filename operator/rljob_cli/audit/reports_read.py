"""Reads what a run's folder says about itself: job.json, the workers' configurations, metrics.jsonl, summary.json."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from rljob_cli.audit.evidence import Evidence
from rljob_cli.audit.streams import metrics_lines
from rljob_cli.run_folder.folder import Identity, RunFolder
from rljob_core.config import JobConfig
from rljob_core.spec import RLJobSpec


def add_reports(evidence: Evidence, folder: RunFolder, identity: Identity, *, in_use: bool) -> Evidence:
    """Add what the folder's files say to the evidence from the streams; `in_use`: see `Evidence`."""
    unreadable = list(evidence.unreadable)
    patched = (text.partition("=")[0].strip().removeprefix("spec.") for text in identity.patches)
    return replace(
        evidence,
        metrics_file=_metrics(folder, unreadable),
        summary=_summary(folder, unreadable),
        user_spec=_spec(identity, unreadable),
        patched=tuple(patched),
        in_use=in_use,
        worker_specs=tuple(worker_specs(_configurations(folder), unreadable)),
        unreadable=tuple(unreadable),
    )


def _metrics(folder: RunFolder, unreadable: list[str]) -> Any:
    if not folder.metrics.is_file():
        return ()
    # The last line may be half written: by a run that was killed, or that is writing it now.
    lines = [line for line in folder.metrics.read_bytes().splitlines(keepends=True) if line.endswith(b"\n")]
    return metrics_lines(lines, unreadable)


def _summary(folder: RunFolder, unreadable: list[str]) -> dict[str, Any] | None:
    if not folder.summary.is_file():
        return None
    try:
        found = json.loads(folder.summary.read_bytes())
    except ValueError as error:
        unreadable.append(f"summary.json cannot be read: {error}")
        return None
    if not isinstance(found, dict):
        unreadable.append("summary.json is not a JSON object")
        return None
    return found


def _spec(identity: Identity, unreadable: list[str]) -> dict[str, Any] | None:
    try:
        spec = RLJobSpec.model_validate(identity.manifest["spec"])
    except (ValidationError, LookupError) as error:
        unreadable.append(f"the spec in job.json is not valid: {error}")
        return None
    return spec.model_dump(mode="json", by_alias=True)


def _configurations(folder: RunFolder) -> Iterator[tuple[str, Path]]:
    for file in sorted(folder.path.glob("pods/*/volumes/config/config.json")):
        yield file.relative_to(folder.path / "pods").parts[0], file


def mounted_configurations(folder: Path) -> list[tuple[str, Path]]:
    """Name and path of the configurations that an audit's pod on a cluster mounts (`names.WORKER_CONFIGS_FOLDER`)."""
    return [(file.stem, file) for file in sorted(folder.glob("*.json"))]


def worker_specs(
    files: Iterable[tuple[str, Path]], unreadable: list[str]
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the specs in workers' configuration files, each with the name that its file was given.

    Args:
        files: name and path of each file.
        unreadable: gets a sentence for each file that does not read.
    """
    for name, file in files:
        try:
            config = JobConfig.model_validate_json(file.read_bytes())
        except ValidationError as error:
            unreadable.append(f"the configuration of {name} cannot be read: {error.errors()[0]['msg']}")
            continue
        yield name, config.spec.model_dump(mode="json", by_alias=True)
