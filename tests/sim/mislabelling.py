"""First attempts that cannot be true: without log-probabilities, of weights to come, or with turns that grow older."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from faulty_store import Faults, FaultyStore
from replicas import Replicas
from tests.memory.store import MemoryStore

from rljob_core.ports import Channel, Completed
from rljob_core.trajectory import VersionSpan, group_of
from rljob_runtime.engines.emulated.engine import EmulatedEngine
from rljob_runtime.engines.emulated.options import EmulatedEngineOptions
from rljob_runtime.messaging.payload_index import SUMMARY_HEADER
from rljob_runtime.messaging.summaries import PayloadSummary, decode_summaries, encode_summaries


class MislabellingStore(FaultyStore):
    """A store that alters the headers of the first attempts of one group: its own worker's checks come before it.

    Args:
        group: id of the group.
        happened: counts how often.
    """

    def __init__(
        self,
        store: MemoryStore,
        faults: Faults,
        chance: random.Random,
        replicas: Replicas,
        *,
        group: str,
        happened: Counter[str],
    ) -> None:
        super().__init__(store, faults, chance, replicas)
        self._group, self._happened = group, happened

    async def publish(
        self,
        channel: Channel,
        suffix: str,
        data: bytes,
        *,
        headers: Mapping[str, str] | None = None,
        message_id: str | None = None,
        expected_sequence: int | None = None,
        expected_id: str | None = None,
    ) -> int:
        """See `MessageStore`."""
        if channel is Channel.TRAJECTORIES and headers is not None and SUMMARY_HEADER in headers:
            said = decode_summaries(headers[SUMMARY_HEADER])
            headers = {**headers, SUMMARY_HEADER: encode_summaries([self._mislabel(s) for s in said])}
        return await super().publish(
            channel,
            suffix,
            data,
            headers=headers,
            message_id=message_id,
            expected_sequence=expected_sequence,
            expected_id=expected_id,
        )

    def _mislabel(self, summary: PayloadSummary) -> PayloadSummary:
        if group_of(summary.trajectory) != self._group or summary.attempt != 1:
            return summary
        self._happened["mislabelled"] += 1
        newer = summary.span.max + 9
        return replace(summary, span=VersionSpan(newer, newer))


class GarblingEngine(EmulatedEngine):
    """An engine whose responses to the first attempts of one group have log-probabilities that are none.

    Args:
        group: id of the group; "" for none.
        aged: id of a group of episodes whose later responses it says were made by older weights; "" for none.
    """

    def __init__(self, options: EmulatedEngineOptions, group: str, aged: str) -> None:
        super().__init__(options)
        self._group, self._aged = group, aged

    def _completed(self, response: Any) -> Completed:
        completed = super()._completed(response)
        trajectory, _, name = completed.id.partition("@")
        attempt, _, turn = name.partition("/")
        if group_of(trajectory) == self._aged and attempt == "1" and turn:
            return replace(completed, versions=completed.versions - 1)
        if group_of(trajectory) != self._group or attempt != "1":
            return completed
        return replace(completed, logprobs=np.full_like(completed.logprobs, np.nan))
