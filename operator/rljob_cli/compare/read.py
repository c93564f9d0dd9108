"""Reads a run's folder for a comparison: whatever can be read, and in words what cannot."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from rljob_cli.compare.curve import CurvePoint, Measure, curve, prices_of, totals
from rljob_cli.run_folder.folder import LARGEST_FILE, RunFolder
from rljob_core.errors import SpecError
from rljob_core.messages import STEP_METRICS, StepMetrics
from rljob_core.spec import RLJob
from rljob_runtime.storage.plain_files import read_plain


@dataclass(frozen=True, slots=True)
class ComparedRun:
    """One run.

    Attributes:
        path: as the user gave it.
        manifest: as it was run last, with defaults; empty if it cannot be read.
        model: identity of the initial model's content; empty if it is not known.
        lines: of `metrics.jsonl`, as far as they can be read.
        outcome: `Succeeded`, `Failed`, `Interrupted`, `Running`, or empty if nothing says so.
        notes: what could not be read, in words.
    """

    path: str
    manifest: Mapping[str, Any]
    model: str
    lines: tuple[StepMetrics, ...]
    outcome: str
    notes: tuple[str, ...]

    def curve(self, measure: Measure) -> list[CurvePoint]:
        """Its reward, in order."""
        return curve(self.lines, measure, prices_of(self.manifest))

    @property
    def totals(self) -> CurvePoint | None:
        """What it has taken so far; None before its first line."""
        return totals(self.lines, prices_of(self.manifest))


def read_run(path: Path) -> ComparedRun:
    """Read a run; nothing is written.

    Raises:
        SpecError: there is no such folder, or it holds no run at all.
    """
    if not path.is_dir():
        raise SpecError(str(path), "there is no such folder: give the output folder of an `rljob run`")
    folder = RunFolder(path)
    if not folder.job.exists() and not folder.metrics.exists():
        raise SpecError(
            str(path),
            "holds no run, neither job.json nor metrics.jsonl: give the output folder of an `rljob run`",
        )
    folder.check_plain()
    manifest, model, manifest_notes = _manifest(folder)
    lines, line_notes = _lines(folder)
    outcome = folder.earlier_summary().get("exit", "")
    if folder.in_use():
        outcome = "Running"
    return ComparedRun(str(path), manifest, model, tuple(lines), str(outcome), (*manifest_notes, *line_notes))


def _manifest(folder: RunFolder) -> tuple[dict[str, Any], str, list[str]]:
    """The manifest, the identity of the model, and what is wrong with them."""
    try:
        content = json.loads(read_plain(folder.job, limit=LARGEST_FILE))
        stored, model = content["manifest"], str(content.get("model", ""))
        stored["spec"]["rollout"]["pools"]
    except FileNotFoundError:
        return {}, "", ["job.json is missing: its manifest is not compared"]
    except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
        return (
            {},
            "",
            [f"job.json is damaged ({type(error).__name__}: {error}): its manifest is not compared"],
        )
    try:
        job = RLJob.model_validate(stored, by_alias=True, by_name=False)
    except ValidationError as error:
        fields = ", ".join(
            ".".join(map(str, detail["loc"])) for detail in error.errors(include_url=False)[:3]
        )
        return {}, model, [f"job.json holds no valid job ({fields}): its manifest is not compared"]
    return job.model_dump(mode="json", by_alias=True), model, []


def _lines(folder: RunFolder) -> tuple[list[StepMetrics], list[str]]:
    try:
        content = folder.metrics.read_bytes()
    except FileNotFoundError:
        return [], ["it has no metrics.jsonl yet"]
    except OSError as error:
        return [], [f"metrics.jsonl cannot be read: {error.strerror}"]
    found: list[StepMetrics] = []
    wrong: list[int] = []
    texts = content.split(b"\n")
    for number, text in enumerate(texts[:-1], start=1):  # the last one is still being written, or empty
        try:
            found.append(STEP_METRICS.validate_json(text))
        except ValidationError:
            wrong.append(number)
    notes = []
    if wrong:
        numbers = ", ".join(map(str, wrong[:5])) + (", …" if len(wrong) > 5 else "")
        notes.append(
            f"metrics.jsonl: {len(wrong)} of {len(texts) - 1} lines are damaged (line {numbers}), and left out"
        )
    if not found and not wrong:
        notes.append("metrics.jsonl is empty: no step yet")
    return found, notes
