"""Decides whether an engine still generates: one that hangs sends heartbeats forever, and never a response.

A prompt may make an engine wait for what never comes, or stop its process altogether. So the rollout says that it is
alive only while its engine has nothing to generate, or has made a token since. The watching process ends it when it
has said nothing for `spec.rollout.hangSeconds`; then the coordinator suspects what the engine held, as after any other
death. The lease cannot find this: it ends when no heartbeat comes, and it must be short.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from rljob_core.ports import Engine
from rljob_runtime.process.alive import AliveWriter

_EVERY_SECONDS = 1.0


async def say_while_it_generates(
    engine: Engine, alive: AliveWriter, *, hang_seconds: int, swapping: Callable[[], bool]
) -> None:
    """Say that the process is alive for as long as the engine makes progress, until cancelled.

    Args:
        engine: started, with weights.
        alive: takes the word of it.
        hang_seconds: how long it may take from one token to the next.
        swapping: whether the engine takes new weights now, for which what it was not begun may wait.
    """
    before: tuple[int, int, int] | None = None
    try:
        while True:
            load = engine.load()
            now = load.tokens, load.running, engine.version
            busy = load.running > 0 or (load.waiting > 0 and not swapping())
            if not busy or now != before:
                alive.say(hang_seconds)
            before = now
            await asyncio.sleep(_EVERY_SECONDS)
    finally:
        alive.say(0)  # how long it takes to hand work over depends on the server, too
