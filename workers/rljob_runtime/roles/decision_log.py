"""Writes all observations and decisions of a coordinator as JSON lines; `rljob replay` runs them through the planner.

One file per coordinator, `<folder>/<instance>.jsonl`: the first line has the job's configuration and the state after
the ledger's replay, each further line a batch of observations with the decision. Values are the plain JSON of the
dataclasses; a value that may be of several types has the name of its type. If the coordinator is
killed, the last line may be incomplete.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any, get_args

import pydantic_core
from pydantic import TypeAdapter

from rljob_core import actions, messages, records
from rljob_core.actions import Observation
from rljob_core.config import JobConfig
from rljob_core.job_state import JobState, snapshot
from rljob_core.planner import Decision

Json = dict[str, Any]

_KINDS: dict[str, type] = {
    kind.__name__: kind
    for union in (actions.Observation, actions.Action, records.Record, messages.CoordinatorEvent)
    for kind in get_args(union)
}

FORMAT = 4
"""Raised whenever the same observations lead to other decisions than in the release before."""


@cache
def _adapter(name: str) -> TypeAdapter[Any]:
    """That of the kind with this name. Making all takes a while, and every coordinator imports this module."""
    return TypeAdapter(_KINDS[name])


@dataclass(frozen=True, slots=True)
class Begun:
    """The first line of a log.

    Attributes:
        instance: name of the coordinator.
        config: of the job.
        state: after the replay of the ledger.
        now: on the coordinator's own clock, seconds.
        prefetch: of the planner.
    """

    instance: str
    config: JobConfig
    state: JobState
    now: float
    prefetch: float


@dataclass(frozen=True, slots=True)
class Decided:
    """Any other line of a log.

    Attributes:
        observations: of the batch.
        now: on the coordinator's own clock, seconds.
        decision: records and actions as JSON; empty if the coordinator was fenced.
        fenced: why the coordinator stopped; empty if it did not.
    """

    observations: tuple[Observation, ...]
    now: float
    decision: Json
    fenced: str = ""


class DecisionLog:
    """Writes one coordinator's file.

    Args:
        folder: created if it does not exist.
        instance: name of the coordinator.
    """

    def __init__(self, folder: Path, *, instance: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._file = (folder / f"{instance}.jsonl").open("wb")
        self._instance = instance

    def begin(self, config: JobConfig, state: JobState, now: float, *, prefetch: float) -> JobState:
        """Write the first line, before any decision.

        Returns the state to decide on: a copy whose collections have the order that they have in the log.
        """
        data = snapshot.dump(state)
        self._line(
            {
                "format": FORMAT,
                "release": metadata.version("rljob"),
                "instance": self._instance,
                "config": config.model_dump(mode="json", by_alias=True),
                "state": base64.b64encode(data).decode(),
                "now": now,
                "prefetch": prefetch,
            }
        )
        return snapshot.load(data)

    def write(self, observations: Sequence[Observation], now: float, decision: Decision) -> None:
        """Write a decision, before its records are stored and its actions carried out."""
        self._line({"now": now, "observations": [*map(encode, observations)], **encode_decision(decision)})

    def end(self, observations: Sequence[Observation], now: float, reason: str) -> None:
        """Write the observations by which the coordinator learned that another one has replaced it."""
        self._line({"now": now, "observations": [*map(encode, observations)], "fenced": reason})

    def _line(self, content: Json) -> None:
        self._file.write(pydantic_core.to_json(content) + b"\n")
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def read_begun(line: bytes) -> Begun:
    """The first line of a log.

    Raises:
        ValueError: it is not the first line of a log, or another release wrote it.
    """
    try:
        content = pydantic_core.from_json(line)
    except ValueError:
        content = None
    if not isinstance(content, dict) or "release" not in content:
        raise ValueError("it is not a log of a coordinator's decisions")
    try:
        if content["format"] != FORMAT:
            raise ValueError(f"format {content['format']}")
        return Begun(
            content["instance"],
            JobConfig.model_validate(content["config"]),
            snapshot.load(base64.b64decode(content["state"])),
            content["now"],
            content["prefetch"],
        )
    except (KeyError, ValueError) as error:
        raise ValueError(
            f"rljob {content['release']} wrote it, and this is {metadata.version('rljob')}, which cannot read it "
            f"({_reason(error)}): replay it with the release that wrote it"
        ) from error


def read_decided(line: bytes) -> Decided:
    """Any other line.

    Raises:
        ValueError: it holds a type or a value that this release does not know.
    """
    try:
        content = pydantic_core.from_json(line)
        observations = tuple(map(decode, content["observations"]))
        if "fenced" in content:
            return Decided(observations, content["now"], {}, content["fenced"])
        decision = {part: content[part] for part in ("records", "actions")}
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"it holds what this release does not know ({_reason(error)})") from error
    return Decided(observations, content["now"], decision)


def _reason(error: Exception) -> str:
    return str(error).partition("\n")[0]


def encode(value: object) -> Json:
    """An observation, action or record with the name of its type."""
    name = type(value).__name__
    return {"type": name, "value": _adapter(name).dump_python(value, mode="json")}


def decode(content: Json) -> Any:
    """The value that `encode` was given.

    Raises:
        KeyError, pydantic.ValidationError: another release wrote it.
    """
    return _adapter(content["type"]).validate_python(content["value"])


def encode_decision(decision: Decision) -> Json:
    """Records and actions, in order."""
    return {
        "records": [encode(record) for record in decision.records],
        "actions": [encode(action) for action in decision.actions],
    }
