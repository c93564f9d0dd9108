"""Whatever workers send as events and signals: the coordinator goes on, the job ends, and the proof holds."""

from __future__ import annotations

import pytest
from hostile import Sent, messages, send
from hypothesis import example, given, settings
from hypothesis import strategies as st
from simulation import simulate
from tests.memory.store import MemoryStore
from tests.night import NIGHT

from rljob_core.messages import ENGINE_SIGNALS
from rljob_core.ports import Channel

pytestmark = pytest.mark.computes

#: Empty heartbeats under a living engine's name, which are not the end of it.
EMPTY = [Sent(2.0, f"{ENGINE_SIGNALS}rollout-0.1", b"", signal=True)] * 3


@settings(max_examples=500 if NIGHT else 40)
@example(sent=EMPTY, seed=0)
@given(sent=messages(), seed=st.integers(0, 50))
def test_nothing_that_workers_send_ends_the_coordinator_or_the_truth(sent: list[Sent], seed: int) -> None:
    job = simulate(seed, beside=lambda job: send(MemoryStore(job.server, subject=job.config.subject), sent))
    left = job.server.job(job.config.subject).streams[Channel.LEDGER]
    assert all(len(message.data) < 200_000 for message in left.since(1))
