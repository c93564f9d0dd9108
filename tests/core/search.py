"""Exhaustive search over all interleavings of a small job."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from interleavings import Choice, Model, Violated, require
from world import job_config

from rljob_core.config import JobConfig
from rljob_core.spec import PipelineSpec

SYNCHRONOUS = PipelineSpec.model_validate({"mode": "Synchronous"})
WIDER = PipelineSpec.model_validate({"mode": "BoundedAsync", "maxStaleness": 2})


def small_job(**changes: Any) -> JobConfig:
    """One prompt a step, so that two groups are open at η = 1."""
    spec: dict[str, Any] = {
        "steps": 3,
        "data": {"promptsPerStep": 1, "groupSize": 1},
        "pipeline": {"mode": "BoundedAsync", "maxStaleness": 1},
        "trainer": {"microBatchTokens": 1, "checkpoint": {"everySteps": 100}},
    }
    for section, change in changes.items():
        spec[section] = {**spec.get(section, {}), **change} if isinstance(change, dict) else change
    return job_config(**spec)


@dataclass
class Explored:
    """What a search has seen."""

    states: int = 0
    transitions: int = 0
    ends: dict[str, int] = field(default_factory=dict)


class Found(AssertionError):
    """An invariant is violated; the message has the way there."""


def explore(
    config: JobConfig,
    *,
    engines: int,
    deaths: int,
    change: PipelineSpec | None = None,
    server_fails: bool = False,
    limit: int = 10**9,
) -> Explored:
    """Visit every state that can be reached, or `limit` of them.

    Raises:
        Found: an invariant does not hold, or nothing can happen although the job is not over.
    """
    start = Model(config, engines=engines, deaths=deaths, change=change, server_fails=server_fails)
    seen = {start.key()}
    stack: list[tuple[Model, tuple[Any, ...] | None]] = [(start, None)]
    explored = Explored(states=1)
    while stack and explored.states < limit:
        here, way = stack.pop()
        for choice in here.choices():
            model = here.fork()
            explored.transitions += 1
            step = (way, choice)
            try:
                model.do(choice)
                key = model.key()
                if key in seen:
                    continue
                seen.add(key)
                explored.states += 1
                model.replays()
                if model.finished:
                    require(model.finished == "Succeeded", f"[end] the job ended as {model.finished}")
                    explored.ends[model.finished] = explored.ends.get(model.finished, 0) + 1
                    continue
                require(bool(model.choices()), "[progress] nothing can happen any more")
            except Exception as error:
                raise _found(error, step) from error
            stack.append((model, step))
    return explored


def _found(error: Exception, step: tuple[Any, ...] | None) -> Found:
    lines = "\n".join(" ".join(choice) for choice in _way(step))
    return Found(f"{type(error).__name__}: {error}, after\n{lines}")


def _way(step: tuple[Any, ...] | None) -> Iterator[Choice]:
    if step is not None:
        yield from _way(step[0])
        yield step[1]


def any_job(chance: random.Random) -> Model:
    """A job of any shape, to which anything may happen."""
    bound = chance.randrange(4)
    mode = (
        {"mode": "BoundedAsync", "maxStaleness": bound} if bound else {"mode": "Streaming", "maxStaleness": 0}
    )
    config = small_job(
        steps=chance.randint(1, 4),
        data={"promptsPerStep": chance.randint(1, 2), "groupSize": chance.randint(1, 2)},
        pipeline={**mode, "maxResamples": 1},
        algorithm={"dropUniformGroups": chance.random() < 0.3},
        trainer={"microBatchTokens": chance.randint(1, 3)},
    )
    change = chance.choice([None, SYNCHRONOUS, WIDER])
    engines, deaths = chance.randint(1, 3), chance.randint(0, 4)
    return Model(config, engines=engines, deaths=deaths, change=change, server_fails=True)


def walk(chance: random.Random, *, steps: int = 400) -> None:
    """One way through any job, to its end.

    Raises:
        Found: an invariant does not hold, or nothing can happen although the job is not over.
    """
    model = any_job(chance)
    way: tuple[Any, ...] | None = None
    for number in range(10_000):
        if number > steps:
            model.deaths = 0
        choices = model.choices()
        if not choices:
            break
        choice = chance.choice(choices)
        way = (way, choice)
        try:
            model.do(choice)
        except Exception as error:
            raise _found(error, way) from error
    if model.finished != "Succeeded":
        raise _found(Violated(f"[progress] the job ended as {model.finished or 'nothing'}"), way)
    model.replays()
