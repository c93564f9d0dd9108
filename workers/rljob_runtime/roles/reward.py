"""The reward role: it scores the trajectories that the rollouts have stored, and publishes one result for each.

Any number of reward workers share one durable queue over the trajectories. A worker acknowledges a message once the
results of all its trajectories are stored. The messages of a worker that dies are delivered again to another one, so
a result may be published twice: the coordinator counts the first result per trajectory and attempt.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import logging
from collections.abc import Callable
from functools import partial

import numpy as np
import xxhash
from numpy.typing import NDArray

from rljob_core.config import JobConfig
from rljob_core.messages import REWARD_BATCH, REWARD_QUEUE, RewardBatch, RewardResult
from rljob_core.ports import Channel, MessageStore
from rljob_core.trajectory import Source, Trajectory, is_evaluation
from rljob_runtime.locations import model_folder
from rljob_runtime.messaging.backpressure import retry_while_full
from rljob_runtime.messaging.summaries import PayloadSummary
from rljob_runtime.messaging.trajectories import TrajectoryDelivery, TrajectoryStore
from rljob_runtime.model.tokenizer import Tokenizer
from rljob_runtime.rewards.pool import RewardPool
from rljob_runtime.rewards.process import ScoringJob, ScoringOutcome

SUFFIX = "results"
"""Suffix of result messages."""

log = logging.getLogger(__name__)

# Seconds after which the messages of a dead worker are delivered again; a living worker restarts the timer three
# times meanwhile.
_ACK_WAIT = 10.0
#: Messages that one worker scores at once, and that one fetch asks for.
_IN_HAND, _FETCH = 256, 64
#: Results in one message at most (each takes a few hundred bytes).
_BATCH = 512
_ERROR_CHARACTERS = 500


async def run_reward(
    config: JobConfig,
    store: MessageStore,
    *,
    stop: asyncio.Event,
    ready: Callable[[], None],
    workers: int | None = None,
) -> None:
    """Score trajectories until `stop` is set; then finish the messages that were fetched.

    Args:
        config: of the job.
        store: the job's streams, open.
        stop: set to drain.
        ready: called once trajectories can be scored.
        workers: processes of the pool; see `RewardPool`.

    Raises:
        SpecError: the data set or a reward function does not fit the spec.
        StoreUnavailable: the server cannot be reached.
    """
    tokenizer = Tokenizer(model_folder(config))
    pool = RewardPool(config, workers=workers)
    try:
        await pool.start()
        queue = await TrajectoryStore(store).queue(REWARD_QUEUE, ack_wait=_ACK_WAIT)
        publisher = ResultPublisher(store)
        in_hand = dict[asyncio.Task[None], TrajectoryDelivery]()

        async def handle(delivery: TrajectoryDelivery) -> None:
            async with asyncio.TaskGroup() as members:
                for trajectory, digest in zip(delivery.trajectories, delivery.digests, strict=True):
                    members.create_task(one(trajectory, digest))
                for summary in delivery.lost:
                    members.create_task(publisher.publish(lost(summary)))
            await delivery.ack()

        async def one(trajectory: Trajectory, digest: str) -> None:
            await publisher.publish(await score(trajectory, digest, pool=pool, tokenizer=tokenizer))

        async def keep() -> None:
            while True:
                await asyncio.sleep(_ACK_WAIT / 3)
                await asyncio.gather(*(delivery.in_progress() for delivery in in_hand.values()))

        ready()
        async with asyncio.TaskGroup() as tasks:
            keeper = tasks.create_task(keep())
            while not stop.is_set():
                if len(in_hand) >= _IN_HAND:
                    await asyncio.wait(in_hand, return_when=asyncio.FIRST_COMPLETED)
                    continue
                room = min(_FETCH, _IN_HAND - len(in_hand))
                for delivery in await queue.fetch(messages=room, timeout=0.5):
                    task = tasks.create_task(handle(delivery))
                    in_hand[task] = delivery
                    task.add_done_callback(in_hand.pop)
            log.info("draining: %d messages in hand", len(in_hand))
            if in_hand:
                await asyncio.wait(in_hand)
            keeper.cancel()
    finally:
        await pool.close()


async def score(
    trajectory: Trajectory, digest: str, *, pool: RewardPool, tokenizer: Tokenizer
) -> RewardResult:
    """The result for a trajectory.

    Args:
        digest: of its payload, which the result repeats.
    """
    try:
        completion = tokenizer.decode(response(trajectory))
    except (
        OverflowError
    ) as error:  # token ids out of any range; without a result the message would be redelivered for ever
        outcome = ScoringOutcome(error=f"RewardRaised: the response does not decode: {error}")
    else:
        outcome = await pool.score(ScoringJob(trajectory.prompt, is_evaluation(trajectory.id), completion))
    result = RewardResult(
        trajectory=trajectory.id,
        attempt=trajectory.attempt,
        payload_digest=digest,
        reward=outcome.reward,
        parts=outcome.parts,
        digest="",
        error=outcome.error[:_ERROR_CHARACTERS],
        sample=trajectory.sample,
    )
    return dataclasses.replace(result, digest=result_digest(result))


def lost(summary: PayloadSummary) -> RewardResult:
    """The result for a trajectory whose stored bytes do not decode: it must be generated again."""
    result = RewardResult(
        trajectory=summary.trajectory,
        attempt=summary.attempt,
        payload_digest=summary.digest,
        reward=0.0,
        parts={},
        digest="",
        error="PayloadCorrupt: its stored bytes do not decode",
    )
    return dataclasses.replace(result, digest=result_digest(result))


def response(trajectory: Trajectory) -> NDArray[np.int32]:
    """The tokens that the model generated, over all segments: int32 [n]."""
    parts = [segment.tokens for segment in trajectory.segments if segment.source is Source.MODEL]
    return np.concatenate([np.empty(0, np.int32), *parts])


def result_digest(result: RewardResult) -> str:
    """xxh3-128 of a result without its digest: as JSON with sorted keys and no spaces."""
    fields = {name: value for name, value in dataclasses.asdict(result).items() if name != "digest"}
    text = json.dumps(fields, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return xxhash.xxh3_128_hexdigest(text.encode())


class ResultPublisher:
    """Publishes results in batches: while one message is on its way, the next results gather for another one."""

    def __init__(self, store: MessageStore) -> None:
        self._store = store
        self._waiting = list[tuple[RewardResult, asyncio.Future[None]]]()
        self._sending = asyncio.Lock()

    async def publish(self, result: RewardResult) -> None:
        """Publish a result; it is stored on return.

        Raises:
            StoreUnavailable: the server cannot be reached.
        """
        stored = asyncio.get_running_loop().create_future()
        self._waiting.append((result, stored))
        async with self._sending:
            if not stored.done():
                await self._send()
        await stored

    async def _send(self) -> None:
        """Store the oldest of the waiting results as one message."""
        batch, self._waiting = self._waiting[:_BATCH], self._waiting[_BATCH:]
        results = tuple(result for result, _ in batch)
        names = "/".join(f"{r.trajectory}@{r.attempt}:{r.payload_digest}" for r in results)
        identity = xxhash.xxh3_128_hexdigest(names.encode())
        data = REWARD_BATCH.dump_json(RewardBatch(results))
        publish = partial(self._store.publish, Channel.REWARDS, SUFFIX, data, message_id=identity)
        await retry_while_full(publish, first_wait=0.5, longest_wait=0.5)
        for _, stored in batch:
            if not stored.done():
                stored.set_result(None)
