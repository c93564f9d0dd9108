"""Replays a coordinator's decision log: the same observations must lead to the same decisions.

A difference comes from something that is not in the log (a clock, an order that differs between processes, other code).
It means that a coordinator that recovers may decide otherwise than the one before it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

import pydantic_core

from rljob_core.errors import Fenced, RLJobError, SpecError
from rljob_core.planner import Planner
from rljob_runtime.roles.decision_log import Decided, Json, encode_decision, read_begun, read_decided

_SHOWN_CHARACTERS = 2000


@dataclass(frozen=True, slots=True)
class ReplayDifference:
    """The first decision whose replay differs.

    Attributes:
        decision: its number, from 1; it is line `decision + 1` of the log.
        now: when it was made, in seconds since the coordinator's start.
        what: the part that differs: `record 3`, `action 0`, …
        logged, replayed: that part as JSON; "nothing" where it is absent.
    """

    decision: int
    now: float
    what: str
    logged: str
    replayed: str


@dataclass(frozen=True, slots=True)
class Replayed:
    """The result of replaying one log.

    Attributes:
        instance: name of the coordinator.
        epoch: number of coordinators that the job has had, this one included.
        decisions, observations: numbers of those that were replayed with equal results.
        seconds: duration of the replay.
        ended: why the coordinator stopped, if another one replaced it.
        cut: whether the last line is incomplete or the log is empty: the coordinator was killed.
        difference: the first decision that differs; None if none does.
    """

    instance: str
    epoch: int
    decisions: int
    observations: int
    seconds: float
    ended: str = ""
    cut: bool = False
    difference: ReplayDifference | None = None


def replay(path: Path) -> Replayed:
    """Replay one log.

    Raises:
        SpecError: the file is no decision log, or another release wrote it.
    """
    lines = _lines(path)
    first = next(lines, b"")
    if not first.endswith(b"\n"):
        return Replayed(path.stem, 0, 0, 0, 0.0, cut=True)
    try:
        begun = read_begun(first)
    except ValueError as error:
        raise SpecError(str(path), str(error)) from error
    planner = Planner(begun.config, prefetch=begun.prefetch, state=begun.state, held_out=begun.held_out)
    started = time.perf_counter()
    planner.start(begun.instance, begun.now)
    decisions = observations = 0
    ended, cut, difference = "", False, None
    for number, line in enumerate(lines, start=2):
        if cut := not line.endswith(b"\n"):
            break
        try:
            decided = read_decided(line)
        except ValueError as error:
            raise SpecError(f"{path}, line {number}", str(error)) from error
        if (found := _compare(planner, decided)) is not None:
            what, logged, replayed = found
            difference = ReplayDifference(number - 1, decided.now - begun.now, what, logged, replayed)
            break
        decisions += 1
        observations += len(decided.observations)
        ended = decided.fenced
    seconds = time.perf_counter() - started
    epoch = planner.state.writer.count
    return Replayed(begun.instance, epoch, decisions, observations, seconds, ended, cut, difference)


def _lines(path: Path) -> Iterator[bytes]:
    try:
        with path.open("rb") as file:
            yield from file
    except OSError as error:
        raise SpecError(str(path), f"cannot be read: {error.strerror or error}") from error


def _compare(planner: Planner, decided: Decided) -> tuple[str, str, str] | None:
    """The part that differs, as it was logged and as it is replayed; None if nothing differs."""
    try:
        decision = planner.decide(decided.observations, decided.now)
    except Fenced as error:
        now = str(error)
        return (
            None if now == decided.fenced else ("the end", decided.fenced or "a decision", f"Fenced: {now}")
        )
    except (RLJobError, LookupError) as error:
        return "the decision", decided.fenced or "a decision", f"{type(error).__name__}: {error}"
    if decided.fenced:
        return "the end", f"Fenced: {decided.fenced}", "a decision"
    replayed = encode_decision(decision)
    for part, name in (("records", "record"), ("actions", "action")):
        # As text, in which NaN equals itself.
        pairs = zip_longest(
            map(_text, decided.decision[part]), map(_text, replayed[part]), fillvalue="nothing"
        )
        for place, (one, other) in enumerate(pairs):
            if one != other:
                return f"{name} {place}", _shown(one), _shown(other)
    return None


def _text(item: Json) -> str:
    return f"{item['type']} {pydantic_core.to_json(item['value']).decode()}"


def _shown(text: str) -> str:
    return text if len(text) <= _SHOWN_CHARACTERS else text[:_SHOWN_CHARACTERS] + " …"
