"""The check that summary.json tells of the job what the ledger and the published metrics tell.

`rljob run` writes it every few seconds and once more at its end, then from the ledger. What it says of a job that has
not ended may be older than the ledger, but not ahead of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import isclose
from statistics import fmean
from typing import Any

from rljob_cli.audit.audited_run import AuditedRun, CheckOutcome
from rljob_cli.audit.evidence import Verdict, Violation, damage
from rljob_cli.audit.history import History
from rljob_cli.audit.metrics import step_statistics
from rljob_cli.manifest.differences import value_in
from rljob_core.spec import PipelineSpec

_ENDS = ("Succeeded", "Failed")
_OPEN = ("Running", "Interrupted")
_NAME = ("summary.json",)
_FIGURES = (
    ("reward", "heldout_sampled", "sampled"),
    ("greedy", "heldout_greedy", "greedy"),
    ("reward_ci95", "heldout_sampled_ci95", "sampled_ci95"),
    ("greedy_ci95", "heldout_greedy_ci95", "greedy_ci95"),
    ("mixed", "heldout_mixed", "mixed"),
    ("failed", "heldout_failed", "failed"),
)
"""Of an evaluation: names in summary.json, fields of a line of metrics, and of the record."""


def summary(run: AuditedRun) -> CheckOutcome:
    """Check summary.json, if there is one."""
    history, written = run.history, run.evidence.summary
    if written is None:
        return 0, []
    end = written.get("exit")
    if end not in (*_ENDS, *_OPEN):
        return 1, [Violation(_NAME, f"says exit {end}, but no run ends in that way")]
    for section in ("trajectories", "trajectories.aborted", "attempts_failed"):
        if not isinstance(stated := value_in(written, section), dict | None):
            return 1, [Violation(_NAME, f"says {section} {stated}, which are no counts")]
    if run.evidence.in_use and end in _OPEN:
        return 1, []
    if history.finished is None:
        return 1, list(_ahead(run, written))
    if end in _OPEN:
        text = f"says exit {end}, but the job has ended as {history.finished.outcome}, as if the run had been killed"
        return 1, [damage(_NAME, f"{text} before it wrote this: `rljob run --resume` writes it again")]
    expected = _expected(run, history.finished.outcome)
    found = [
        Violation(_NAME, f"says {field} {stated}, the ledger says {_shown(right)}")
        for field, right in expected.items()
        if (stated := value_in(written, field)) is not None and not _agrees(stated, right)
    ]
    return len(expected), found


def _ahead(run: AuditedRun, written: dict[str, Any]) -> Iterator[Violation]:
    """What the summary says of a job that has not ended, by the ledger, and the ledger cannot have had before."""
    history = run.history
    if written["exit"] == "Succeeded":
        text = "says that the job has succeeded, but the ledger has no end: `rljob run --resume` finishes it"
        yield Violation(_NAME, text, Verdict.UNFINISHED)
    if history.revoked:  # it may be older than the rollback
        return
    for field, most in _limits(run, written).items():
        stated = value_in(written, field)
        if stated is None:
            continue
        if not isinstance(stated, int | float) or not stated >= 0:
            yield Violation(_NAME, f"says {field} {stated}, which is no such number")
        elif stated > most:
            yield _lost(field, stated, most)
    for field, known in _known(run).items():
        if (stated := value_in(written, field)) is not None and not _agrees(stated, known):
            yield _lost(field, stated, known)


def _lost(field: str, stated: object, right: object) -> Violation:
    text = f"says {field} {stated}, but the ledger has {_shown(right) or 'none'}, as if it had lost its end"
    return Violation(_NAME, f"{text}: `rljob run --resume` restores what it can", Verdict.UNFINISHED)


def _limits(run: AuditedRun, written: dict[str, Any]) -> dict[str, int]:
    """What only grows while a job runs, as the ledger has it now."""
    history = run.history
    limits = {
        "steps": history.version,
        "coordinator_epochs": history.writers,
        "trainer_attempts": _gangs(history),
        "trajectories.planned": history.planned,
        "trajectories.generated": history.generated,
        "trajectories.consumed": history.consumed,
    }
    for section, counts in ("attempts_failed", history.resets), ("trajectories.aborted", history.aborted):
        stated = value_in(written, section)
        limits |= {f"{section}.{name}": counts[name] for name in (stated if isinstance(stated, dict) else ())}
    statistics = step_statistics(run)
    if len(statistics) == history.version:
        largest = max((int(one["staleness_max"]) for one in statistics.values()), default=0)
        limits |= {"staleness_max": largest, "staleness_mean": largest}
    return limits


def _known(run: AuditedRun) -> dict[str, frozenset[object]]:
    """What was so at some time, by the ledger, the published metrics and the user's spec."""
    history, lines = run.history, [line for line in run.evidence.metrics if line.is_evaluation]
    found: dict[str, frozenset[object]] = {}
    for name, published, recorded in _FIGURES:
        values = {getattr(one, recorded) for one in history.evaluated.values()}
        values |= {getattr(line, published) for line in lines} | (
            {0} if name in {"mixed", "failed"} else set()
        )
        found |= {f"heldout_{name}_{when}": frozenset(values) for when in ("before", "after")}
    if history.pipelines.settings and run.evidence.user_spec:
        user = PipelineSpec.model_validate(run.evidence.user_spec["pipeline"])
        found["mode"] = frozenset({str(user.mode), *(one.mode for one in history.pipelines.settings)})
        bounds = {user.bound, *(one.max_staleness for one in history.pipelines.settings)}
        found["max_staleness"] = frozenset(bounds)
    return found


def _expected(run: AuditedRun, outcome: str) -> dict[str, object]:
    """What the summary of a job that has ended must say; a range or a set is of what it may say."""
    history = run.history
    failure = history.finished.failure if history.finished is not None else None
    values: dict[str, object] = {
        "exit": outcome,
        "reason": failure.reason if failure is not None else "",
        "message": failure.detail if failure is not None else "",
        "steps": history.version,
        "trajectories.consumed": sum(len(commit.consumed) for commit in history.commits),
        "trajectories.generated": history.generated,
        "attempts_failed": dict(history.resets),
        # A coordinator or a gang may start once more after the end, and a backup may be restored.
        "coordinator_epochs": range(history.end_writer, history.writers + 1),
        "trainer_attempts": range(history.end_attempt, _gangs(history) + 1),
    }
    if outcome == "Succeeded" and not run.evidence.patched:
        values["steps_planned"] = history.version
    if not history.revoked and not any(commit.restored for commit in history.commits):
        values["trajectories.planned"] = sum(len(group.members) for group in history.groups.values())
        values["trajectories.aborted"] = dict(history.aborted)
    if history.pipelines.settings:
        newest = history.pipelines.settings[-1]
        values |= {"mode": newest.mode, "max_staleness": newest.max_staleness}
    return values | _evaluated(run) | _staleness(run)


def _gangs(history: History) -> int:
    return max((start.attempt for start in history.attempts), default=0)


def _evaluated(run: AuditedRun) -> dict[str, object]:
    """Scores of the first and of the last evaluation."""
    history = run.history
    values: dict[str, object] = {}
    for when, choose in (("before", min), ("after", max)):
        if not history.evaluated:
            continue
        record = history.evaluated[choose(history.evaluated)]
        # A lost evaluation is repeated, with other scores; the summary may have those of the first one.
        lines = [line for line in run.evidence.metrics if line.version == record.version]
        for name, field, recorded in _FIGURES:
            published = [getattr(line, field) for line in lines if line.is_evaluation]
            values[f"heldout_{name}_{when}"] = frozenset([getattr(record, recorded), *published])
        for name, score in record.sets.items():
            for figure in ("sampled", "greedy", "failed"):
                published = [
                    getattr(line.heldout_sets[name], figure) for line in lines if name in line.heldout_sets
                ]
                right = getattr(score, figure)
                values[f"heldout_sets_{when}.{name}.{figure}"] = frozenset([right, *published])
    return values


def _staleness(run: AuditedRun) -> dict[str, object]:
    """The largest staleness, and the mean over all steps whose lines `rljob run` has read."""
    statistics, lines = step_statistics(run), run.evidence.metrics_file or run.evidence.metrics
    versions = {line.version for line in lines if line.reward_mean is not None and line.stats is not None}
    known = [statistics[version] for version in versions if version in statistics]
    if not known or len(known) < len(versions):
        return {}
    if not run.evidence.metrics_file and len(known) < run.history.version:
        return {}
    means = [statistic["staleness_mean"] for statistic in known if "staleness_mean" in statistic]
    mean = {"staleness_mean": fmean(means)} if len(means) == len(known) else {}
    return {"staleness_max": max(statistic["staleness_max"] for statistic in known), **mean}


def _agrees(stated: object, right: object) -> bool:
    if isinstance(right, range):
        return stated in right
    if isinstance(right, frozenset):
        return any(_agrees(stated, one) for one in right)
    if isinstance(stated, float) and isinstance(right, float):
        return isclose(stated, right)
    return stated == right


def _shown(right: object) -> object:
    if isinstance(right, frozenset):
        return " or ".join(sorted(map(str, right)))
    return right.stop - 1 if isinstance(right, range) else right
