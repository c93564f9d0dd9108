"""All that a coordinator saw and decided, as JSON lines: `rljob replay` feeds it through the planner again.

One file per coordinator, `<folder>/<instance>.jsonl`: first the job's configuration and the state that the ledger led
to, then each batch of observations with what was decided. Plain JSON of the dataclasses; a value that may be of
several types names its own. A coordinator that was killed may leave half a line at the end.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass
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

_ADAPTERS: dict[str, TypeAdapter[Any]] = {
    kind.__name__: TypeAdapter(kind)
    for union in (actions.Observation, actions.Action, records.Record, messages.CoordinatorEvent)
    for kind in get_args(union)
}


FORMAT = 1


@dataclass(frozen=True, slots=True)
class Begun:
    """A coordinator's start.

    Attributes:
        state: that the ledger led to.
        now: on the coordinator's own clock, seconds.
        prefetch: as the planner's.
    """

    instance: str
    config: JobConfig
    state: JobState
    now: float
    prefetch: float


@dataclass(frozen=True, slots=True)
class Decided:
    """What was seen, and what was decided, as JSON; or why nothing more was."""

    observations: tuple[Observation, ...]
    now: float
    decision: Json
    fenced: str = ""


class DecisionLog:
    """Writes one coordinator's file.

    Args:
        folder: made if it does not exist.
    """

    def __init__(self, folder: Path, *, instance: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._file = (folder / f"{instance}.jsonl").open("wb")
        self._instance = instance

    def begin(self, config: JobConfig, state: JobState, now: float, *, prefetch: float) -> JobState:
        """Write down the state before anything is decided.

        Returns the state to decide on: in it, things are in the log's order.
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
        """One decision; it is in the file before anything of it is done."""
        self._line({"now": now, "observations": [*map(encode, observations)], **encode_decision(decision)})

    def end(self, observations: Sequence[Observation], now: float, reason: str) -> None:
        """This made the coordinator stop: somebody else is in charge."""
        self._line({"now": now, "observations": [*map(encode, observations)], "fenced": reason})

    def _line(self, content: Json) -> None:
        self._file.write(pydantic_core.to_json(content) + b"\n")
        self._file.flush()

    def close(self) -> None:
        """Nothing more follows."""
        self._file.close()


def read_begun(line: bytes) -> Begun:
    """The first line of a log.

    Raises:
        ValueError: it is none; of another release if it says so.
    """
    try:
        content = pydantic_core.from_json(line)
    except ValueError:
        content = None
    if not isinstance(content, dict) or "release" not in content:
        raise ValueError("it is no log of a coordinator's decisions")
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
            f"rljob {content['release']} wrote it, and this is {metadata.version('rljob')}, which does not read it "
            f"({_reason(error)}): replay it with the release that wrote it"
        ) from error


def read_decided(line: bytes) -> Decided:
    """Any other line.

    Raises:
        ValueError: this release does not know what is in it.
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
    return {"type": name, "value": _ADAPTERS[name].dump_python(value, mode="json")}


def decode(content: Json) -> Any:
    """What `encode` was given.

    Raises:
        KeyError, pydantic.ValidationError: another release wrote it.
    """
    return _ADAPTERS[content["type"]].validate_python(content["value"])


def encode_decision(decision: Decision) -> Json:
    """Records and actions, in order."""
    return {
        "records": [encode(record) for record in decision.records],
        "actions": [encode(action) for action in decision.actions],
    }
