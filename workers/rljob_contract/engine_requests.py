"""Helpers of the engine checks: they send an engine requests, wait for its responses, and check these."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from rljob_contract.check import ContractBroken, require
from rljob_core.ports import Completed, Engine, EngineEvent, Progress, Request

#: Columns of a response and their types.
COLUMNS: Mapping[str, type] = {"tokens": np.int32, "logprobs": np.float32, "versions": np.int32}
#: Seconds between looks at an engine, which announces responses and not tokens.
LOOK = 0.001


def ask(
    name: str,
    length: int,
    *,
    seed: int = 0,
    prompt: Iterable[int] = (1, 2, 3),
    temperature: float = 1.0,
    inherited: Progress | None = None,
) -> Request:
    """A request for a response of `length` tokens."""
    return Request(
        id=name,
        tokens=np.array(list(prompt), np.int32),
        temperature=temperature,
        top_p=1.0,
        max_tokens=length,
        stop_tokens=frozenset(),
        stop=(),
        seed=seed,
        inherited=inherited,
    )


async def gather(engine: Engine, names: Iterable[str]) -> dict[str, EngineEvent]:
    """The events of these requests.

    Raises:
        ContractBroken: another one came, or a second one of the same.
    """
    missing, found = set(names), dict[str, EngineEvent]()
    while missing:
        events = await engine.events()
        require(bool(events), "events() returned without an event")
        for event in events:
            require(event.id not in found, f"a second event came about {event.id!r}: {shown(event)}")
            require(
                event.id in missing,
                f"an event came about {event.id!r}, which was not asked for: {shown(event)}",
            )
            found[event.id] = event
            missing.discard(event.id)
    return found


async def completed(engine: Engine, names: Iterable[str]) -> dict[str, Completed]:
    """The responses to these requests.

    Raises:
        ContractBroken: as `gather`, or one has stopped.
    """
    done = dict[str, Completed]()
    for name, event in (await gather(engine, names)).items():
        if not isinstance(event, Completed):
            raise ContractBroken(f"{name!r} has not completed: {shown(event)}")
        done[name] = event
    return done


async def generating(engine: Engine) -> None:
    """Until more tokens come out."""
    before = engine.load().tokens
    while engine.load().tokens == before:  # noqa: ASYNC110  an engine announces responses, not tokens
        await asyncio.sleep(LOOK)


async def use(engine: Engine, *, inflight: str = "Update") -> int:
    """Swap to the initial weights as the next version; that version."""
    version = engine.version + 1
    await engine.swap(version, None, inflight)
    require(engine.version == version, f"after swap({version}, …) the version is {engine.version}")
    return version


def versions(event: Completed) -> list[int]:
    """The versions of a response's tokens."""
    return [int(version) for version in event.versions]


def upto(done: Completed, tokens: int) -> Progress:
    """A response as it was when it had so many tokens."""
    return Progress(done.id, done.tokens[:tokens], done.logprobs[:tokens], done.versions[:tokens])


def shown(event: EngineEvent) -> str:
    """An event, in words."""
    if isinstance(event, Completed):
        return f"Completed with {len(event.tokens)} tokens, {event.finish}"
    return f"Stopped({event.reason!r}, failure={event.failure}, detail={event.detail!r})"


def require_columns(made: Completed | Progress, length: int) -> None:
    """Require that a response has that many tokens, and its columns their types."""
    for column, dtype in COLUMNS.items():
        array = getattr(made, column)
        require(
            isinstance(array, np.ndarray) and array.shape == (length,) and array.dtype == dtype,
            f"{column} of {made.id!r} are {getattr(array, 'dtype', type(array).__name__)}"
            f"{list(np.shape(array))}, not {np.dtype(dtype)}[{length}]",
        )


def require_versions(event: Completed, expected: Sequence[int]) -> None:
    """Require that the tokens of a response have these versions."""
    found = versions(event)
    require(
        found == list(expected), f"versions of {event.id!r} are {runs(found)}, not {runs(list(expected))}"
    )


def runs(numbers: Sequence[int]) -> str:
    """Equal numbers in a row, as `0 x 5, 3 x 7`."""
    found = list[tuple[int, int]]()
    for number in numbers:
        if found and found[-1][0] == number:
            found[-1] = (number, found[-1][1] + 1)
        else:
            found.append((number, 1))
    return ", ".join(f"{number} x {count}" for number, count in found[:6]) + (", …" if len(found) > 6 else "")
