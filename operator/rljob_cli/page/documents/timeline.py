"""A window of a run's timeline: lanes with what they did in each of its equal parts, steps, and marks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rljob_cli.page.documents.engines import SeenPhase
from rljob_cli.page.documents.ledger_story import LedgerStory, TimeMark
from rljob_cli.page.documents.swaps import SeenSwaps

MOST_BUCKETS = 2000
_STEPS_SHOWN, _MARKS_SHOWN, _SWAPS_SHOWN = 1500, 400, 300
_WEIGHT = {
    "death": 0,
    "end": 0,
    "back": 0,
    "trainer": 1,
    "coordinator": 1,
    "abort": 2,
    "start": 2,
    "pipeline": 2,
}
"""Which marks are kept where there are too many: those of the least number."""


def timeline(
    story: LedgerStory,
    *,
    start: float | None,
    end: float | None,
    buckets: int,
    slots: Mapping[str, int],
    phases: Mapping[str, list[SeenPhase]],
    publishing: Mapping[int, float],
    swaps: SeenSwaps,
    evaluating: Mapping[int, float],
    now: float | None = None,
) -> dict[str, Any]:
    """The document of a window.

    Args:
        story: of the run.
        start, end: seconds since the run's start; None for its start and its end.
        buckets: number of equal parts.
        slots: of each engine's lane, as far as they are known.
        phases: what engines were seen to do, by lane: waits for weights.
        publishing: seconds that steps took to publish their version, by version.
        swaps: of the engines' weights.
        evaluating: seconds that evaluations took, by version.
        now: while the job runs, the time until which nothing was stored is known to be quiet.
    """
    if story.start is None or story.now is None:
        return {"empty": True, "lanes": [], "steps": [], "marks": []}
    origin = story.start
    last = max(story.now, now or story.now)
    buckets = min(max(buckets, 10), MOST_BUCKETS)
    first = origin + max(start or 0.0, 0.0)
    until = min(origin + end, last) if end is not None else last
    if until <= first:
        first, until = origin, max(last, origin + 0.001)
    found = [_trainer(story, first, until)]
    for name, lane in sorted(story.engines.items()):
        means, busy = lane.window(first, until, buckets)
        seen = [
            [phase.what, round(max(phase.start, first) - origin, 4), round(min(phase.end, until) - origin, 4)]
            for phase in phases.get(name, ())
            if phase.end > first and phase.start < until
        ]
        found.append(
            {
                "name": name,
                "kind": "engine",
                "mean": means,
                "busy": busy,
                "slots": slots.get(name, 0),
                "seen": seen,
                "swaps": [
                    [version, round(max(begun, first) - origin, 4), round(min(ended, until) - origin, 4)]
                    for begun, ended, version in swaps.window(name, first, until, most=_SWAPS_SHOWN)
                ],
            }
        )
    means, busy = story.rewards.window(first, until, buckets)
    found.append({"name": "rewards", "kind": "rewards", "mean": means, "busy": busy, "slots": 0, "seen": []})
    if story.evaluations:
        found.append(_evaluations(story, evaluating, first, until))
    steps = story.steps_between(first, until)
    stride = -(-len(steps) // _STEPS_SHOWN) or 1
    return {
        "empty": False,
        "origin": origin,
        "length": last - origin,
        "start": first - origin,
        "end": until - origin,
        "buckets": buckets,
        "lanes": found,
        "steps": [
            [
                step.version,
                round(step.start - origin, 4),
                round(step.end - origin, 4),
                step.groups,
                step.trajectories,
                round(min(publishing.get(step.version, 0.0), step.end - step.start), 4),
            ]
            for step in steps[::stride]
        ],
        "steps_left_out": len(steps) - len(steps[::stride]),
        **_marks(story.marks_between(first, until + 1e-6), origin),
    }


def _trainer(story: LedgerStory, first: float, until: float) -> dict[str, Any]:
    since = story.training_since
    open_ = [] if since is None or since > until else [max(since, first) - (story.start or 0.0)]
    return {"name": "trainer", "kind": "trainer", "open": open_}


def _evaluations(
    story: LedgerStory, seconds: Mapping[int, float], first: float, until: float
) -> dict[str, Any]:
    """The lane of evaluations: engines answer held-out prompts, which the ledger does not tell of them."""
    origin = story.start or 0.0
    spans = [
        [
            version,
            round(max(end - seconds.get(version, 0.0), first) - origin, 4),
            round(end - origin, 4),
            score,
        ]
        for version, end, score in story.evaluations
        if end >= first and end - seconds.get(version, 0.0) <= until
    ]
    return {"name": "evaluation", "kind": "evaluation", "spans": spans[-_STEPS_SHOWN:]}


def _marks(marks: list[TimeMark], origin: float) -> dict[str, Any]:
    """The marks of a window, the weightier ones where they are too many."""
    shown = marks
    if len(marks) > _MARKS_SHOWN:
        weighty = sorted(marks, key=lambda mark: _WEIGHT.get(mark.kind, 3))[:_MARKS_SHOWN]
        shown = sorted(weighty, key=lambda mark: mark.time)
    return {
        "marks": [[round(m.time - origin, 4), m.kind, m.lane, m.text] for m in shown],
        "marks_left_out": len(marks) - len(shown),
    }
