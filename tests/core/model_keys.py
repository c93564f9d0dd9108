"""Copies and keys of the model in `interleavings`, for searches: states with the same futures have equal keys."""

from __future__ import annotations

import dataclasses
from collections import Counter, deque
from collections.abc import Callable
from enum import Enum
from typing import Any

from model_roles import ModelTrainer
from pydantic import BaseModel

from rljob_core.job_state import JobState
from rljob_core.messages import MicroBatch


def state_key(state: JobState, names: dict[str, str] | None = None) -> tuple[Any, ...]:
    """Return a hashable copy of a job's state, with engines renamed."""
    names = names or {}
    return (
        tuple(
            (b.step, b.max_staleness, tuple((e.group, e.base, e.state) for e in b.entries.values()))
            for b in state.buffers.buffers.values()
        ),
        state.buffers.version,
        state.buffers.next_step,
        tuple(
            (
                g.id,
                s.attempt,
                s.state,
                names.get(s.engine, s.engine),
                s.min_version,
                s.first,
                s.inherited,
                s.deaths,
                s.failures,
                s.payload.span if s.payload is not None else None,
                s.reward,
            )
            for g in state.groups.values()
            for s in g.siblings
        ),
        tuple((m.micro_batch, m.groups, m.last) for m in state.micro_batches),
        (state.trainer.attempt, state.trainer.epoch) if state.trainer else None,
        (state.commit.version, state.commit.manifest),
        tuple(state.lineage.items()),
        state.pipeline,
        state.checkpoint.version if state.checkpoint else None,
        state.finished.outcome if state.finished else None,
        state.next_prompt,
        tuple(sorted(state.restored)),
        state.writer.number,
        tuple(sorted((names.get(e, e), tuple(ids)) for e, ids in state.generating.items())),
        tuple(state.unscored),
        tuple(sorted(state.quarantined)),
        tuple(state.given_up),
    )


def trainer_key(trainer: ModelTrainer, where: dict[int, Any]) -> tuple[Any, ...]:
    """What a gang is and has."""
    return (
        trainer.attempt,
        trainer.epoch,
        trainer.resumed,
        trainer.version,
        trainer.manifest,
        trainer.proposal.manifest if trainer.proposal else None,
        trainer.missing,
        tuple(trainer.fed) if trainer.fed is not None else None,
        tuple(message_key(message.work, where) for message in trainer.inbox),
    )


def message_key(message: Any, where: dict[int, Any]) -> Any:
    """A message, with payloads identified by what they are instead of by their sequences."""
    if isinstance(message, MicroBatch):
        items = tuple(where.get(i.sequence) for i in message.items)
        return (
            "micro-batch",
            message.step,
            message.micro_batch,
            message.attempt,
            message.epoch,
            message.resume,
            items,
        )
    return repr(message)


_FIXED: set[type] = {str, int, float, bool, type(None), tuple, frozenset}
"""Kinds whose objects never change."""
_SHALLOW = {set, deque}
"""Kinds that hold nothing that changes."""
_WAYS: dict[type, Callable[[Any, Any], None]] = {}
"""How a new object of a kind takes over what another one has."""


def fork(thing: Any) -> Any:
    """A copy that shares what never changes; nothing that changes may be in two places of the original."""
    kind = type(thing)
    if kind in _FIXED:
        return thing
    if kind is dict:
        return {k: v if type(v) in _FIXED else fork(v) for k, v in thing.items()} if thing else {}
    if kind is list:
        return [v if type(v) in _FIXED else fork(v) for v in thing] if thing else []
    if kind in _SHALLOW:
        return thing.copy()
    if kind is Counter:
        same: Counter[Any] = Counter.__new__(Counter)
        dict.update(same, thing)  # its own `copy` takes ten times as long
        return same
    way = _WAYS.get(kind)
    if way is None:
        names = _attributes(kind, thing)
        if not names:
            _FIXED.add(kind)
            return thing
        way = _WAYS[kind] = _way(names)
    copy = kind.__new__(kind)
    way(copy, thing)
    return copy


def _way(names: tuple[str, ...]) -> Callable[[Any, Any], None]:
    """Written out attribute by attribute: searches spend most of their time here."""
    lines = [f"    v = thing.{n}\n    copy.{n} = v if type(v) in fixed else fork(v)\n" for n in names]
    scope: dict[str, Any] = {"fixed": _FIXED, "fork": fork}
    exec("def way(copy, thing):\n" + "".join(lines), scope)
    way: Callable[[Any, Any], None] = scope["way"]
    return way


def _attributes(kind: type, thing: Any) -> tuple[str, ...]:
    """Of an object that may change; none of one that does not."""
    frozen = dataclasses.is_dataclass(kind) and kind.__dataclass_params__.frozen  # type: ignore[attr-defined]
    if frozen or issubclass(kind, Enum | BaseModel | tuple):
        return ()
    return tuple(getattr(kind, "__slots__", ())) or tuple(vars(thing))
