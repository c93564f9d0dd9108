"""The reward role: scores what rollouts produced, and says so in one line per trajectory.

Any number of them share one durable queue over the trajectories. A message is acknowledged once the results of all
its trajectories are stored, so a worker that dies loses none: its messages come again, and whoever reads the
results takes the first per trajectory and attempt.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import logging
from collections.abc import Callable

import numpy as np
import xxhash
from numpy.typing import NDArray

from rljob_core.config import JobConfig
from rljob_core.errors import StoreFull
from rljob_core.messages import REWARD_BATCH, REWARD_QUEUE, RewardBatch, RewardResult
from rljob_core.ports import Channel, MessageStore
from rljob_core.trajectory import Source, Trajectory, is_evaluation
from rljob_runtime.locations import model_folder
from rljob_runtime.messaging.trajectories import TrajectoryDelivery, TrajectoryStore
from rljob_runtime.messaging.wire import PayloadSummary
from rljob_runtime.model.tokenizer import Tokenizer
from rljob_runtime.rewards.pool import RewardPool
from rljob_runtime.rewards.process import ScoringJob, ScoringOutcome

SUFFIX = "results"
"""Suffix of result messages."""

log = logging.getLogger(__name__)

# What a worker that died had in hand comes again after so many seconds; one that lives says so three times meanwhile.
_ACK_WAIT = 10.0
#: Messages that one worker holds at once, and takes at once.
_IN_HAND, _FETCH = 256, 64
#: Results in a message at most (each takes a few hundred bytes).
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
    """Score trajectories until `stop` is set; then finish what is in hand.

    Args:
        config: the job's.
        store: open.
        stop: set to drain.
        ready: called once trajectories can be scored.
        workers: processes of the pool; see `RewardPool`.

    Raises:
        SpecError: data or reward functions are not what the spec needs.
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
    """The result for a trajectory whose payload has that digest."""
    try:
        completion = tokenizer.decode(response(trajectory))
    except OverflowError as error:  # ids that no tokenizer has; the message would come again and again
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
    """What the model produced: int32 [n], over all its segments."""
    parts = [segment.tokens for segment in trajectory.segments if segment.source is Source.MODEL]
    return np.concatenate([np.empty(0, np.int32), *parts])


def result_digest(result: RewardResult) -> str:
    """xxh3-128 of a result without its digest: as JSON with sorted keys and no spaces."""
    fields = {name: value for name, value in dataclasses.asdict(result).items() if name != "digest"}
    text = json.dumps(fields, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return xxhash.xxh3_128_hexdigest(text.encode())


class ResultPublisher:
    """Publishes results together that are there together: while one message is on its way, the next one fills."""

    def __init__(self, store: MessageStore) -> None:
        self._store = store
        self._waiting = list[tuple[RewardResult, asyncio.Future[None]]]()
        self._sending = asyncio.Lock()

    async def publish(self, result: RewardResult) -> None:
        """Returns once the result is stored.

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
        """Store the results that wait, from the first on."""
        batch, self._waiting = self._waiting[:_BATCH], self._waiting[_BATCH:]
        results = tuple(result for result, _ in batch)
        names = "/".join(f"{r.trajectory}@{r.attempt}:{r.payload_digest}" for r in results)
        identity = xxhash.xxh3_128_hexdigest(names.encode())
        data = REWARD_BATCH.dump_json(RewardBatch(results))
        while True:
            try:
                await self._store.publish(Channel.REWARDS, SUFFIX, data, message_id=identity)
                break
            except StoreFull:
                await asyncio.sleep(0.5)
        for _, stored in batch:
            if not stored.done():
                stored.set_result(None)
