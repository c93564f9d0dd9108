"""Decides whether an engine still generates: one that hangs sends heartbeats forever, and never a response.

A prompt may make an engine wait for what never comes, or stop its process altogether. So the rollout says that it is
alive only while its engine has nothing to generate, or has made a token since. The watching process ends it when it has
said nothing for as long as it may be silent (`rljob_core.hang_limit`; at most `spec.rollout.hangSeconds`); then the
coordinator counts the death for what the engine held, as after any other death. The lease cannot find this: it ends
when no heartbeat comes, and it must be short.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from rljob_core.hang_limit import EngineAtWork, HangLimit
from rljob_core.ports import Engine
from rljob_runtime.process.alive import AliveWriter
from rljob_runtime.roles.rollout.pauses_file import PausesFile
from rljob_runtime.roles.rollout.running import Running

_EVERY_SECONDS = 1.0
_WRITE_SECONDS = 15
"""Seconds between two writes of what the pod's next engine is to know."""


class HangWatch:
    """Says that the engine's process is alive, for as long as the engine makes progress.

    Args:
        engine: started, with weights, when `say_forever` is called.
        alive: takes the word of it.
        running: what the engine generates, by request.
        longest_answered: gives the longest prompt that it has answered since the last call, in tokens.
        hang_seconds: how long it may take from one token to the next, at most.
        pauses: what is known of the pauses of the pod's engines; None if this engine's say nothing about later ones.
        swapping: whether the engine takes new weights now.
    """

    def __init__(
        self,
        engine: Engine,
        alive: AliveWriter,
        *,
        running: Mapping[str, Running],
        longest_answered: Callable[[], int],
        hang_seconds: int,
        pauses: PausesFile | None,
        swapping: Callable[[], bool],
    ) -> None:
        self._engine = engine
        self._alive = alive
        self._running = running
        self._longest_answered = longest_answered
        self._most = hang_seconds
        self._pauses = pauses
        self._limit = HangLimit(hang_seconds, None if pauses is None else pauses.read())
        self._swapping = swapping

    async def say_forever(self) -> None:
        """Say it until cancelled."""
        loop = asyncio.get_running_loop()
        before: tuple[int, int, int, bool] | None = None
        said, looks = 0, 0
        try:
            while True:
                load = self._engine.load()
                busy = load.running + load.waiting > 0
                now = load.tokens, load.running, self._engine.version, busy
                self._limit.observe(loop.time(), self._at_work(load.tokens, busy=busy))
                seconds = self._most if self._pauses is None else self._limit.seconds
                # A longer limit is said at once: what needs it may come while the engine makes no token.
                if not busy or now != before or seconds > said:
                    self._alive.say(seconds)
                    said = seconds
                before = now
                if self._pauses is not None and looks % _WRITE_SECONDS == 0:
                    self._pauses.write(self._limit.for_successor())
                looks += 1
                await asyncio.sleep(_EVERY_SECONDS)
        finally:
            self._alive.say(0)  # how long it takes to hand work over depends on the server, too

    def _at_work(self, tokens: int, *, busy: bool) -> EngineAtWork:
        all_running = list(self._running.values())
        prompts = [running.prefill_tokens for running in all_running]
        return EngineAtWork(
            tokens=tokens,
            version=self._engine.version,
            busy=busy,
            swapping=self._swapping(),
            longest=max(prompts, default=0),
            total=sum(prompts),
            answered=self._longest_answered(),
            quarantined=bool(all_running) and all(running.work.survivor for running in all_running),
        )
