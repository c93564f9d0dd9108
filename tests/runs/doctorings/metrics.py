"""Lines of metrics that were invented: a second one of a step, evaluations that never took place, another end."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from doctored_run import DoctoredRun, Json

from doctorings.registry import DOCTORINGS, VIOLATED, Doctoring
from rljob_core.ports import Channel

METRICS = "lines of metrics"


def of_step(lines: list[Json], version: int) -> Json:
    """A copy of the line of a step."""
    return _copy(
        next(line for line in lines if line["version"] == version and line["reward_mean"] is not None)
    )


def of_evaluation(lines: list[Json]) -> Json:
    """A copy of the line of an evaluation."""
    return _copy(next(line for line in lines if line["heldout_sampled"] is not None))


def _copy(line: Json) -> Json:
    copied: Json = json.loads(json.dumps(line))
    return copied


def hidden_staleness(lines: list[Json]) -> Json:
    line = of_step(lines, 3)
    line["stats"] |= {"staleness_mean": 0.0, "staleness_max": 0}
    return line


INVENTED: dict[str, Callable[[list[Json]], Json]] = {
    "a second, lying line of a step": lambda lines: of_step(lines, 3) | {"reward_mean": 0.9},
    "a second line of a step, with other rewards": lambda lines: of_step(lines, 3) | {"reward_std": 0.4},
    "a second line of a step, with other lengths": lambda lines: (
        of_step(lines, 3) | {"response_tokens_mean": 5.5}
    ),
    "a second line of a step, with no staleness": hidden_staleness,
    "a step that was never made": lambda lines: of_step(lines, 3) | {"version": 9, "step": 9},
    "a second evaluation": lambda lines: of_evaluation(lines) | {"heldout_sampled": 0.9},
    "an evaluation of mixed versions": lambda lines: (
        of_evaluation(lines) | {"heldout_mixed": 3, "heldout_newest": 2}
    ),
    "an evaluation that was not due": lambda lines: of_evaluation(lines) | {"version": 2, "step": 2},
    "an evaluation of no version": lambda lines: of_evaluation(lines) | {"version": 9, "step": 9},
    "another end": lambda lines: _copy(lines[-1]) | {"finished": "Failed"},
}


def in_the_file(make: Callable[[list[Json]], Json]) -> Callable[[DoctoredRun], Any]:
    return lambda run: run.change_lines("metrics.jsonl", lambda lines: lines.insert(5, make(lines)))


def in_the_stream(make: Callable[[list[Json]], Json]) -> Callable[[DoctoredRun], Any]:
    def add(run: DoctoredRun) -> None:
        messages = run.streams[Channel.METRICS]
        line = make([json.loads(message.data) for message in messages])
        headers = {**messages[0].headers, "Nats-Msg-Id": "invented"}
        messages.insert(5, replace(messages[0], data=json.dumps(line).encode(), headers=headers))

    return add


for what, make in INVENTED.items():
    DOCTORINGS[f"{what}, in metrics.jsonl"] = Doctoring(in_the_file(make), VIOLATED, METRICS)
    DOCTORINGS[f"{what}, in the metrics stream"] = Doctoring(in_the_stream(make), VIOLATED, METRICS)
