"""Records what an engine does as metrics for Prometheus."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

from rljob_core.messages import EngineSignal
from rljob_runtime.telemetry.catalogue import CATALOGUE
from rljob_runtime.telemetry.catalogue import RolloutMetrics as Metrics
from rljob_runtime.telemetry.recorder import Recorder


class EngineMetrics:
    """The metrics of one engine instance.

    Args:
        recorder: takes them; None if nobody reads them.
    """

    def __init__(self, recorder: Recorder | None) -> None:
        self._recorder = Recorder(CATALOGUE["rollout"]) if recorder is None else recorder
        self._recorder.enter(Metrics.SECONDS, "starting")
        self._swapping = False

    def heartbeat(self, signal: EngineSignal, *, generating: bool, storing: int, awaiting: bool) -> None:
        """Take the engine's signal, which it sends every second.

        Args:
            generating: whether the engine has any request.
            storing: trajectories that are being stored.
            awaiting: whether any work waits for newer weights.
        """
        recorder = self._recorder
        for metric, value in (
            (Metrics.VERSION, signal.version),
            (Metrics.SLOTS, signal.slots),
            (Metrics.RUNNING, signal.running),
            (Metrics.WAITING, signal.waiting),
            (Metrics.IN_ENVIRONMENT, signal.in_environment),
            (Metrics.STORING, storing),
            (Metrics.TOKENS, signal.tokens),
            (Metrics.CONTEXT_TOKENS, signal.context),
            (Metrics.KV_TOKENS, signal.kv_tokens),
            (Metrics.DRAINING, signal.draining),
            (Metrics.OUTBOX_BYTES, signal.outbox_bytes if signal.site else None),
            (Metrics.OUTBOX_LIMIT_BYTES, signal.outbox_limit or None),
        ):
            if value is not None:
                recorder.set(metric, value)
        if not self._swapping:
            state = "generating" if generating else "waiting" if awaiting else "idle"
            recorder.enter(Metrics.SECONDS, state)

    def ended(self, *, completed: bool) -> None:
        """An attempt has ended."""
        self._recorder.add(Metrics.ENDED, 1, "completed" if completed else "stopped")

    def storing(self) -> AbstractContextManager[None]:
        """Trajectories are stored during the block."""
        return self._recorder.timed(Metrics.STORE_SECONDS)

    def reading_weights(self) -> AbstractContextManager[None]:
        """A version's weights are read during the block."""
        return self._recorder.timed(Metrics.READ_SECONDS)

    @contextmanager
    def swapping(self) -> Iterator[None]:
        """The engine takes new weights during the block."""
        self._swapping = True
        try:
            with (
                self._recorder.during(Metrics.SECONDS, "swapping"),
                self._recorder.timed(Metrics.SWAP_SECONDS),
            ):
                yield
        finally:
            self._swapping = False

    def weights_failed(self, reason: str) -> None:
        """A version could not be loaded."""
        self._recorder.add(Metrics.REJECTED, 1, reason)
