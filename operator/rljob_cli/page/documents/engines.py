"""The engines of a run: their newest heartbeats, and what these have shown over time."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rljob_cli.page.documents.ledger_story import lane_of
from rljob_cli.page.documents.swaps import SeenSwaps
from rljob_core.messages import ENGINE_SIGNAL, SWAPS_SIGNALLED, EngineSignal

WAITING = "waiting for weights"
_RATE_SECONDS = 15.0
_SILENCE_SECONDS = 4.0
_PHASES_KEPT = 20_000


@dataclass(slots=True)
class SeenPhase:
    """A time in which an engine was seen to do one thing; times are seconds since 1970."""

    what: str
    start: float
    end: float


class SeenEngine:
    """One engine's heartbeats so far."""

    def __init__(self, signal: EngineSignal, time: float) -> None:
        self.signal = signal
        self.time = time
        self._tokens: deque[tuple[float, int]] = deque([(time, signal.tokens)])

    def hear(self, signal: EngineSignal, time: float) -> None:
        """Record the next heartbeat."""
        self.signal, self.time = signal, time
        self._tokens.append((time, signal.tokens))
        while time - self._tokens[0][0] > _RATE_SECONDS and len(self._tokens) > 2:
            self._tokens.popleft()

    @property
    def tokens_per_second(self) -> float | None:
        """Over the last seconds; None with one heartbeat."""
        (since, before), (now, tokens) = self._tokens[0], self._tokens[-1]
        return (tokens - before) / (now - since) if now > since else None


class SeenEngines:
    """The engines of a run, from their heartbeats.

    Args:
        swaps: to which what engines say of their swaps is added.

    Attributes:
        engines: by the signal's key.
        phases: by lane, when an engine was seen to wait for weights.
        slots: by lane.
    """

    def __init__(self, swaps: SeenSwaps | None = None) -> None:
        self._swaps = SeenSwaps() if swaps is None else swaps
        self.engines: dict[str, SeenEngine] = {}
        self.phases: dict[str, list[SeenPhase]] = {}
        self.slots: dict[str, int] = {}

    def hear(self, key: str, signal: EngineSignal | None, time: float) -> None:
        """Record a heartbeat at a time in seconds since 1970; None: the engine has ended."""
        before = self.engines.get(key)
        if signal is None:
            self.engines.pop(key, None)
            return
        lane = lane_of(signal.engine)
        self.slots[lane] = signal.slots
        self._swaps.add(signal.engine, signal.swaps[-SWAPS_SIGNALLED:])
        if before is None or before.signal.engine != signal.engine:
            self.engines[key] = SeenEngine(signal, time)
            return
        # Heartbeats come every second: after a longer silence nobody knows what the engine did.
        if _waits(before.signal) and time - before.time < _SILENCE_SECONDS:
            self._extend(lane, WAITING, before.time, time)
        before.hear(signal, time)

    def _extend(self, lane: str, what: str, start: float, end: float) -> None:
        phases = self.phases.setdefault(lane, [])
        if phases and phases[-1].what == what and start - phases[-1].end < 0.001:
            phases[-1].end = end
        elif len(phases) < _PHASES_KEPT:
            phases.append(SeenPhase(what, start, end))


def _waits(signal: EngineSignal) -> bool:
    """Whether the engine holds work and runs none: the work waits for newer weights than the engine has."""
    return signal.running == 0 and signal.waiting > 0


def engines_document(seen: SeenEngines, *, now: float, version: int, live: bool) -> dict[str, Any]:
    """The engines now, by pool and name.

    Args:
        seen: heartbeats.
        now: seconds since 1970.
        version: the newest policy version.
        live: whether the job runs; else the heartbeats are the last ones.
    """
    rows = [_row(engine, now=now, version=version, live=live) for engine in seen.engines.values()]
    rows.sort(key=lambda row: (row["pool"], row["engine"]))
    return {"live": live, "engines": rows}


def engines_of_file(content: bytes, time: float, swaps: SeenSwaps | None = None) -> SeenEngines:
    """The engines in `engines.json`.

    Args:
        content: of the file: a list of heartbeats.
        time: when it was written, in seconds since 1970.
        swaps: to which those of the engines are added.

    Raises:
        ValueError: it is no such list.
    """
    import json

    found = json.loads(content)
    if not isinstance(found, list):
        raise TypeError("no list of heartbeats")
    seen = SeenEngines(swaps)
    for item in found:
        signal = ENGINE_SIGNAL.validate_python(item)
        seen.hear(signal.engine, signal, time)
    return seen


def _row(engine: SeenEngine, *, now: float, version: int, live: bool) -> dict[str, Any]:
    signal = engine.signal
    rate = engine.tokens_per_second
    return {
        "engine": lane_of(signal.engine),
        "pool": signal.pool,
        "site": signal.site or "",
        "state": _state(signal) if live else "ended",
        "version": signal.version,
        "behind": max(version - signal.version, 0),
        "slots": signal.slots,
        "running": signal.running,
        "waiting": signal.waiting,
        "in_environment": signal.in_environment,
        "held": signal.held,
        "tokens": signal.tokens,
        "tokens_per_second": rate if live else None,
        "kv_tokens": signal.kv_tokens,
        "kv_used": signal.context,
        "drain": _drain(signal),
        "stuck": f"{signal.stuck}: {signal.stuck_detail}" if signal.stuck else "",
        "age": max(now - engine.time, 0.0),
        "up": max(now - signal.started, 0.0) if live and signal.started else None,
    }


def _state(signal: EngineSignal) -> str:
    if signal.draining:
        return "draining"
    if signal.stuck:
        return "stuck"
    if _waits(signal):
        return WAITING
    if signal.running:
        return "generating"
    return "waiting for environments" if signal.in_environment else "idle"


def _drain(signal: EngineSignal) -> Mapping[str, int]:
    """What would go to other engines if this one were drained now."""
    return {"trajectories": signal.held, "tokens": signal.context}
