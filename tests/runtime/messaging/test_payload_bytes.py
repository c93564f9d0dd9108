"""What a stored payload takes on a real server is never more than what the planner reserves for it."""

from __future__ import annotations

from dataclasses import replace
from uuid import uuid4

import nats
import numpy as np
import pytest
from e2e.harness.nats_server import EmbeddedServer

from rljob_core.ports import Channel
from rljob_core.spec import MOST_TURNS
from rljob_core.stream_names import StreamNames
from rljob_core.streams_budget import payload_bytes
from rljob_core.trajectory import FinishReason, Segment, Source, Trajectory, VersionSpan
from rljob_runtime.messaging.nats.store import NatsStore
from rljob_runtime.messaging.trajectories import TrajectoryStore

LONGEST_NAME = "n" * 63
SHAPES = [
    (1, 1),
    (0, 1),
    (7, 513),
    (5_000, 1),
    (100_000, 64),
    (600_000, 1_000),
    (100, 100_000),
    (300_000, 300_000),
]


def generated(number: int, *, prompt: int, response: int) -> Trajectory:
    """A trajectory as a rollout makes it, as large as it can be: each of its tokens is of another version."""
    draw = np.random.default_rng(number)
    versions = np.arange(response, dtype=np.int32) % 60
    given = Segment(
        Source.PROMPT,
        draw.integers(0, 2**31 - 1, prompt).astype(np.int32),
        np.zeros(prompt, np.uint8),
        np.zeros(prompt, np.float32),
        np.full(prompt, -1, np.int32),
    )
    made = Segment(
        Source.MODEL,
        draw.integers(0, 2**31 - 1, response).astype(np.int32),
        np.ones(response, np.uint8),
        draw.standard_normal(response).astype(np.float32),
        versions,
    )
    return Trajectory(
        id=f"g2147483647.{number}",
        attempt=2**31 - 1,
        prompt=2**31 - 1,
        segments=(given, made),
        span=VersionSpan(0, int(versions.max())),
        finish=FinishReason.LENGTH,
        engine=f"{LONGEST_NAME}.12345678",
        sample="sampled",
    )


def episode(turns: int) -> Trajectory:
    """An episode of so many turns of 1 to 9 tokens, of as many versions, each with an observation before the next."""
    segments = [*generated(0, prompt=5, response=3).segments]
    for turn in range(1, turns):
        seen, made = generated(turn, prompt=1 + turn % 9, response=1 + 4 * turn % 9).segments
        segments += [replace(seen, source=Source.ENVIRONMENT), made]
    return replace(generated(0, prompt=5, response=3), segments=tuple(segments), score=-1.2345678901234567e-7)


async def test_an_episode_takes_no_more_than_is_reserved_for_it(nats_server: EmbeddedServer) -> None:
    names = StreamNames.of_job(namespace=LONGEST_NAME, job="j" * 52, uid=str(uuid4()))
    store = NatsStore(nats_server.url, subject=names.subject, stream_prefix=names.prefix)
    await store.open()
    client = await nats.connect(nats_server.url)
    taken = 0
    for turns in (2, 5, 40, MOST_TURNS):
        played = episode(turns)
        await TrajectoryStore(store).put([played])
        info = await client.jetstream().stream_info(names.stream(Channel.TRAJECTORIES))
        taken, before = info.state.bytes, taken
        behind = sum(len(s.tokens) for s in played.segments[1:])
        assert taken - before <= payload_bytes(prompt_tokens=5, response_tokens=behind, turns=turns), turns
    await client.close()
    await store.close()


@pytest.mark.parametrize("together", [1, 3])
async def test_a_payload_takes_no_more_than_is_reserved_for_it(
    nats_server: EmbeddedServer, together: int
) -> None:
    names = StreamNames.of_job(namespace=LONGEST_NAME, job="j" * 52, uid=str(uuid4()))
    store = NatsStore(nats_server.url, subject=names.subject, stream_prefix=names.prefix)
    await store.open()
    client = await nats.connect(nats_server.url)
    taken = 0
    for prompt, response in SHAPES:
        await TrajectoryStore(store).put(
            [generated(number, prompt=prompt, response=response) for number in range(together)]
        )
        info = await client.jetstream().stream_info(names.stream(Channel.TRAJECTORIES))
        taken, before = info.state.bytes, taken
        reserved = together * payload_bytes(prompt_tokens=prompt, response_tokens=response)
        assert taken - before <= reserved, (prompt, response)
        # It is not reserved for nothing, either.
        assert taken - before > reserved - together * 2048 - reserved // 100, (prompt, response)
    await client.close()
    await store.close()
