"""Decides whether an engine still generates: one that hangs sends heartbeats forever, and never a response.

A prompt may make an engine wait for what never comes, or stop its process altogether. So the rollout says that it is
alive only while its engine has nothing to generate, or has made a token since. The watching process ends it when it has
said nothing for as long as it may be silent (`rljob_core.hang_limit`; at most `spec.rollout.hangSeconds`); then the
coordinator counts the death for what the engine held, as after any other death. The lease cannot find this: it ends
when no heartbeat comes, and it must be short.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

from rljob_core import worker_protocol
from rljob_core.hang_limit import EngineAtWork, HangLimit, KnownPauses
from rljob_core.ports import Engine
from rljob_runtime.engines.registry import find_engine
from rljob_runtime.process.alive import AliveWriter
from rljob_runtime.roles.rollout.running import Running

_EVERY_SECONDS = 1.0
_WRITE_SECONDS = 15
"""Seconds between two writes of what the pod's next engine is to know."""

PAUSES = "pauses.json"
"""Name of the file in which pauses are kept."""

log = logging.getLogger(__name__)


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


class PausesFile:
    """Keeps what a pod's engines have shown of their pauses, for the process that follows when one of them has died.

    The file is beside the one that says that the worker is ready: on a volume that lives as long as the pod, so it
    outlives each of its processes, and tells nothing to a pod on another machine. Nothing is kept without one.

    Args:
        path: of it.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._written: KnownPauses | None = None

    @classmethod
    def beside(cls, ready_file: str | None) -> PausesFile:
        """The one of the pod whose worker is ready once `ready_file` exists."""
        return cls(Path(ready_file).with_name(PAUSES) if ready_file else None)

    def read(self) -> KnownPauses | None:
        """What earlier processes of the pod have left; None if that is nothing, or nothing that can be read."""
        if self._path is None:
            return None
        with suppress(OSError, ValueError, TypeError, AttributeError):
            found = json.loads(self._path.read_bytes())
            return KnownPauses(**{name: int(value) for name, value in found.items()})
        return None

    def write(self, known: KnownPauses | None) -> None:
        """Leave this for the next process; a disk that takes nothing more costs no more than what it would know."""
        if self._path is None or known is None or known == self._written:
            return
        temporary = self._path.with_suffix(".new")
        try:
            temporary.write_text(json.dumps(asdict(known)))
            temporary.replace(self._path)
        except OSError as error:
            log.warning("%s: %s", self._path, error)
        self._written = known


def pauses_file(engine: str) -> PausesFile | None:
    """The file of this worker's pod; None if the pauses of such an engine say nothing about later ones.

    Args:
        engine: `spec.rollout.engine.name`.
    """
    if not find_engine(engine).is_paced:
        return None
    return PausesFile.beside(os.environ.get(worker_protocol.READY_FILE))
