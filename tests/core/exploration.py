"""Exhaustive search over all interleavings of a small job."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from interleavings import LATE, Choice, Model, Violated, require
from model_sites import POOLS, ModelOverSites
from world import job_config

from rljob_core.config import JobConfig
from rljob_core.spec import PipelineSpec, RolloutSpec
from rljob_core.trajectory import group_of

#: A window of 0 holds nothing back: a search then goes every way that any window leaves open.
SYNCHRONOUS = PipelineSpec.model_validate({"mode": "Synchronous", "window": 0})
WIDER = PipelineSpec.model_validate({"mode": "BoundedAsync", "maxStaleness": 2, "window": 0})


def small_job(**changes: Any) -> JobConfig:
    """One prompt a step, so that two groups are open at η = 1."""
    spec: dict[str, Any] = {
        "steps": 3,
        "data": {"promptsPerStep": 1, "groupSize": 1},
        "pipeline": {"mode": "BoundedAsync", "maxStaleness": 1, "window": 0},
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
    limit: int = 10**9,
    kind: type[Model] = Model,
    **scope: Any,
) -> Explored:
    """Visit every state that can be reached from `kind(config, **scope)`, or `limit` of them.

    Raises:
        Found: an invariant does not hold, nothing can happen although the job is not over, or (if all was visited)
            there is a state from which no way leads to the job's end.
    """
    start = kind(config, **scope)
    stack: list[tuple[Model, int, tuple[Any, ...] | None]] = [(start, start.key(), None)]
    seen = {start.key()}
    explored = Explored(states=1)
    before: dict[int, list[int]] = {}
    ways: dict[int, Any] = {}
    ends: list[int] = []
    while stack and explored.states < limit:
        here, origin, way = stack.pop()
        ways[origin] = way
        newest = here.ledger[-1]
        choices = here.choices() + here.mishaps()
        for number, choice in enumerate(choices, start=1):
            model = here.fork() if number < len(choices) else here
            explored.transitions += 1
            step = (way, choice)
            try:
                model.do(choice)
                key = model.key()
                if choice != LATE:  # an end that is only reached by this is none
                    before.setdefault(key, []).append(origin)
                if key in seen:
                    continue
                seen.add(key)
                explored.states += 1
                if model.ledger[-1] is not newest:
                    model.replays()
                if model.finished:
                    require(model.finished == "Succeeded", f"[end] the job ended as {model.finished}")
                    model.gave_up_nothing_harmless()
                    explored.ends[model.finished] = explored.ends.get(model.finished, 0) + 1
                    ends.append(key)
                    continue
                require(model.choices() not in ([], [LATE]), "[progress] nothing can happen any more")
            except Exception as error:
                raise _found(error, step) from error
            stack.append((model, key, step))
    if not stack:
        _require_an_end(before, ways, ends)
    return explored


def _require_an_end(before: dict[int, list[int]], ways: dict[int, Any], ends: list[int]) -> None:
    """From wherever one can get, one can get to the job's end."""
    reached, left = set(ends), list(ends)
    while left:
        for origin in before.get(left.pop(), ()):
            if origin not in reached:
                reached.add(origin)
                left.append(origin)
    for state, way in ways.items():
        if state not in reached:
            raise _found(Violated("[progress] no way leads to the job's end any more"), way)


def _found(error: Exception, step: tuple[Any, ...] | None) -> Found:
    lines = "\n".join(" ".join(choice) for choice in _way(step))
    return Found(f"{type(error).__name__}: {error}, after\n{lines}")


def _way(step: tuple[Any, ...] | None) -> Iterator[Choice]:
    choices: list[Choice] = []
    while step is not None:
        step, choice = step
        choices.append(choice)
    yield from reversed(choices)


def any_job(chance: random.Random, *, poison: str = "", sites: bool = False) -> Model:
    """A job of any shape, to which anything may happen; with poison, engines hold several trajectories.

    Args:
        sites: whether an engine is at another site, whose link may be cut.
    """
    most = 4 if poison else 2
    bound = chance.randrange(4)
    mode = (
        {"mode": "BoundedAsync", "maxStaleness": bound} if bound else {"mode": "Streaming", "maxStaleness": 0}
    )
    window = random.Random(repr(chance.getstate())).choice([0, 0.25, 0.75])  # which changes no other draw
    config = small_job(
        steps=chance.randint(1, 4),
        data={"promptsPerStep": chance.randint(1, most), "groupSize": chance.randint(1, most)},
        pipeline={
            **mode,
            "window": window,
            "maxResamples": 1,
            "maxAttempts": chance.randint(1, 3) if poison else 3,
        },
        algorithm={"dropUniformGroups": chance.random() < 0.3},
        trainer={"microBatchTokens": chance.randint(1, 3)},
    )
    change = chance.choice([None, SYNCHRONOUS, WIDER])
    engines = chance.choice([1, 1, 2, 3]) if poison else chance.randint(1, 3)
    deaths, losses = chance.choice([0, 0, 1, 3]) if poison else chance.randint(0, 3), chance.randint(0, 3)
    restless, progress = chance.random() < 0.3, chance.choice([0, 2, 8])
    kind: Callable[..., Model] = Model
    if sites:
        aside = random.Random(repr(chance.getstate()))
        pools = RolloutSpec.model_validate({"pools": POOLS})
        spec = config.spec.model_copy(update={"rollout": pools})
        config, engines = config.model_copy(update={"spec": spec}), max(engines, 2)
        kind = partial(ModelOverSites, cuts=aside.choice([1, 2, 4]))
    return kind(
        config,
        engines=engines,
        deaths=deaths,
        change=change,
        losses=losses,
        progress=progress,
        restless=restless,
        poison=poison,
        slots=chance.randint(2, 7) if poison else 1,
    )


def walk(
    chance: random.Random, *, steps: int = 400, slow: str = "", poison: str = "", sites: bool = False
) -> Model:
    """One way through any job, to its end; the job at its end.

    Args:
        sites: see `any_job`.
        poison: a group that kills its engines.
        slow: a trajectory that takes long: much else happens before it ends, and its progress is published.

    Raises:
        Found: an invariant does not hold, or nothing can happen although the job is not over.
    """
    model = any_job(chance, poison=poison, sites=sites)
    if slow:
        while len(model.engines) < 2:
            model = any_job(chance, sites=sites)
        model.deaths, model.publishing = model.deaths + 2, 8
        model.harmless_deaths = model.deaths
    mishap_rate = chance.choice([0.02, 0.1, 0.3])
    deadly = bool(poison) and chance.random() < 0.5
    way: tuple[Any, ...] | None = None
    for number in range(10_000):
        if number > steps:
            model.deaths = model.losses = model.publishing = 0
            model.restless, model.late = False, []
        choices = model.choices()
        if not choices:
            break
        if slow and number <= steps:
            choices = _before(slow, choices, chance)
        if deadly:  # at once: so others die beside it again and again
            choices = (
                [c for c in choices if c[0] == "succumb"]
                or [c for c in choices if c[0] != "finish"]
                or choices
            )
        mishaps = model.mishaps()
        if slow in model.progress:
            mishaps = _upon(slow, model) or mishaps
        if deadly and (unlucky := _upon_trial(poison, model)) and chance.random() < 0.5:
            choices, mishaps = unlucky, []
        choice = chance.choice(mishaps if mishaps and chance.random() < mishap_rate else choices)
        if choice == LATE and chance.random() < 0.5:
            model.late = []  # never
            continue
        way = (way, choice)
        try:
            model.do(choice)
        except Exception as error:
            raise _found(error, way) from error
    if model.finished != "Succeeded":
        raise _found(Violated(f"[progress] the job ended as {model.finished or 'nothing'}"), way)
    try:
        model.replays()
        model.gave_up_nothing_harmless()
    except Violated as error:
        raise _found(error, way) from error
    return model


def _upon(slow: str, model: Model) -> list[Choice]:
    """What may go wrong with the engine that has a trajectory."""
    holders = [name for name, engine in model.engines.items() if any(t == slow for t, _ in engine.running)]
    return [c for c in model.mishaps() if c[0] in {"die", "drain"} and c[1] in holders]


def _upon_trial(poison: str, model: Model) -> list[Choice]:
    """Deaths of engines that try a harmless group alone."""
    state, apart = model.planner.state, model.apart()
    tried = {name: set(map(group_of, ids)) for name, ids in state.generating.items() if apart & set(ids)}
    unlucky = {name for name, groups in tried.items() if len(groups) == 1 and poison not in groups}
    return [c for c in model.mishaps() if c[0] == "die" and c[1] in unlucky] if unlucky else []


def _before(slow: str, choices: list[Choice], chance: random.Random) -> list[Choice]:
    """What happens before a trajectory ends, for the most part."""
    about = [choice for choice in choices if f" {slow}@" in choice[1]]
    if chance.random() < 0.1:
        return choices
    return [c for c in about if c[0] == "publish"] or [c for c in choices if c not in about] or choices
