"""How much each engine of a job has to do, by the signals that its rollout workers write.

Whoever has the credentials of a job's rollout may write any number of signals, under any keys: only the newest are
kept, of twice as many pods as the job may have.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

from nats.aio.client import Client
from pydantic import ValidationError

from rljob_core.messages import ENGINE_SIGNAL, ENGINE_SIGNALS
from rljob_core.spec import RLJobSpec

SIGNAL_BYTES = 16 << 10
"""Longer signals are passed over; those of engines have a few hundred bytes."""
_OTHERS = 64
"""Pods that are read besides twice as many as the job may have: signals of engines that are gone stay for a while."""


class EngineLoads:
    """The newest signals of a job's engines, which are parsed when they are asked for.

    Args:
        spec: of the job.
    """

    def __init__(self, spec: RLJobSpec) -> None:
        self._most = 2 * sum(pool.most_replicas for pool in spec.rollout.pools) + _OTHERS
        self._newest: dict[str, bytes] = {}

    def __len__(self) -> int:
        return len(self._newest)

    def take(self, key: str, value: bytes) -> None:
        """Take a signal that was written after all that were taken before."""
        if len(value) > SIGNAL_BYTES:
            return
        pod = key.removeprefix(ENGINE_SIGNALS).rpartition(".")[0]
        self._newest.pop(pod, None)
        self._newest[pod] = value
        if len(self._newest) > self._most:
            del self._newest[next(iter(self._newest))]

    async def read(self, client: Client, stream: str) -> None:
        """Take all signals that a job's bucket has now.

        Args:
            client: in the account of the job's streams.
            stream: of the bucket.

        Raises:
            TimeoutError, nats.errors.Error: the server does not answer, or refuses.
        """
        bucket = await client.jetstream().key_value(stream.removeprefix("KV_"))
        async for entry in await bucket.watch(f"{ENGINE_SIGNALS}>", ignore_deletes=True):
            if entry is None:  # the end of what is stored now
                break
            self.take(entry.key, entry.value or b"")

    def by_pod(self) -> dict[str, int]:
        """By pod, the number of trajectories that its engine generates or has queued."""
        return dict(self._read())

    def _read(self) -> Iterator[tuple[str, int]]:
        for pod, value in self._newest.items():
            with suppress(ValidationError):
                signal = ENGINE_SIGNAL.validate_json(value)
                yield pod, signal.running + signal.waiting
