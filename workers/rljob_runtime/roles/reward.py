"""The reward role: it scores the trajectories that the rollouts have stored, and publishes one result for each.

Functions of `spec.reward.perGroup` score all answers to a prompt in one call. In a job that has such functions the
coordinator says which groups are complete, and the messages are its requests: a group is one message.

Any number of reward workers share one durable queue over the trajectories. A worker acknowledges a message once the
results of all its trajectories are stored. The messages of a worker that dies are delivered again to another one, so
a result may be published twice: the coordinator counts the first result per trajectory and attempt.

This process has the job's credentials, so it never imports or runs a reward function (`rewards.scorer`).
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import time
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import xxhash
from numpy.typing import NDArray

from rljob_core.config import JobConfig
from rljob_core.failures import Failure, Reason
from rljob_core.messages import REWARD_ACK_WAIT, REWARD_BATCH, REWARD_QUEUE, RewardBatch, RewardResult
from rljob_core.messages.limits import MESSAGE_RESULTS
from rljob_core.ports import Channel, MessageStore
from rljob_core.spec import ENVIRONMENT_SCORE, TRUNCATION, RLJobSpec
from rljob_core.trajectory import FinishReason, Source, Trajectory, is_evaluation
from rljob_runtime.locations import model_folder
from rljob_runtime.messaging.reward_results import result_digest
from rljob_runtime.messaging.trajectories import TrajectoryDelivery, TrajectoryStore
from rljob_runtime.messaging.waiting_publisher import retry_while_full
from rljob_runtime.model.tokenizer import Tokenizer
from rljob_runtime.rewards.messages import ScoringJob, ScoringOutcome
from rljob_runtime.rewards.scorer import Scorer
from rljob_runtime.samples.report import open_sample_log, report_losses
from rljob_runtime.samples.rows import ScoredAnswer
from rljob_runtime.telemetry.catalogue import CATALOGUE, RewardMetrics
from rljob_runtime.telemetry.recorder import Recorder

SUFFIX = "results"
"""Suffix of result messages."""

log = logging.getLogger(__name__)

#: How many messages one worker scores at a time, and how many it fetches at once.
_MAX_IN_PROGRESS, _FETCH = 256, 64
#: Bytes of payloads with which one worker fetches no more.
_MAX_BYTES = 128 << 20
_DETAIL_CHARACTERS = 500


async def run_reward(
    config: JobConfig,
    store: MessageStore,
    *,
    stop: asyncio.Event,
    ready: Callable[[], None],
    workers: int | None = None,
    recorder: Recorder | None = None,
) -> None:
    """Score trajectories until `stop` is set; then finish the messages that were fetched.

    Args:
        config: the job's configuration.
        store: the job's streams, open.
        stop: the caller sets it to drain the worker.
        ready: called once trajectories can be scored.
        workers: number of processes in the pool; see `Scorer`.
        recorder: takes the metrics.

    Raises:
        SpecError: the data set or a reward function does not fit the spec.
        ResourceMissing: the container that runs reward functions does not answer.
        StoreUnavailable: the server cannot be reached.
    """
    recorder = Recorder(CATALOGUE["reward"]) if recorder is None else recorder
    recorder.enter(RewardMetrics.SECONDS, "starting")
    tokenizer = Tokenizer(model_folder(config))
    scorer = Scorer(config, workers=workers)
    samples = open_sample_log(config, tokenizer)
    try:
        await scorer.start()
        trajectories = TrajectoryStore(store, max_tokens=config.spec.rollout.sampling.max_tokens)
        per_group = bool(config.spec.reward.per_group)
        open_queue = trajectories.group_queue if per_group else trajectories.queue
        queue = await open_queue(REWARD_QUEUE, ack_wait=REWARD_ACK_WAIT)
        publisher = ResultPublisher(store, recorder)
        in_progress = dict[asyncio.Task[None], TrajectoryDelivery]()

        async def score_delivery(delivery: TrajectoryDelivery) -> None:
            received = time.time()
            answers = list(zip(delivery.trajectories, delivery.digests, strict=True))
            async with asyncio.TaskGroup() as scoring:
                if per_group and not delivery.lost:  # else it is scored once what is lost is generated again
                    scoring.create_task(score_and_publish(answers, received))
                elif not per_group:
                    for answer in answers:
                        scoring.create_task(score_and_publish([answer], received))
                for trajectory, attempt, digest in delivery.lost:
                    recorder.add(RewardMetrics.SCORED, 1, "lost")
                    scoring.create_task(publisher.publish([lost(trajectory, attempt, digest)]))
            await delivery.ack()

        async def score_and_publish(answers: Sequence[tuple[Trajectory, str]], received: float) -> None:
            with recorder.timed(RewardMetrics.SCORE_SECONDS):
                scored = await score(answers, scorer=scorer, tokenizer=tokenizer, spec=config.spec)
            for _, result, _ in scored:
                recorder.add(RewardMetrics.SCORED, 1, "failed" if result.error else "scored")
            await publisher.publish([result for _, result, _ in scored])
            if samples is not None:
                for trajectory, result, expected in scored:
                    samples.offer(ScoredAnswer(trajectory, result, received, time.time(), expected))

        def note_in_progress() -> None:
            recorder.set(RewardMetrics.IN_PROGRESS, len(in_progress))
            recorder.enter(RewardMetrics.SECONDS, "scoring" if in_progress else "idle")

        def done(task: asyncio.Task[None]) -> None:
            del in_progress[task]
            note_in_progress()

        async def restart_ack_timers() -> None:  # so that only a dead worker's messages are delivered again
            while True:
                await asyncio.sleep(REWARD_ACK_WAIT / 3)
                await asyncio.gather(*(delivery.in_progress() for delivery in in_progress.values()))

        ready()
        note_in_progress()
        async with asyncio.TaskGroup() as tasks:
            ack_timers = tasks.create_task(restart_ack_timers())
            reports = tasks.create_task(report_losses(samples, store))
            while not stop.is_set():
                held = sum(delivery.size for delivery in in_progress.values())
                if len(in_progress) >= _MAX_IN_PROGRESS or held >= _MAX_BYTES:
                    await asyncio.wait(in_progress, return_when=asyncio.FIRST_COMPLETED)
                    continue
                room = min(_FETCH, _MAX_IN_PROGRESS - len(in_progress))
                for delivery in await queue.fetch(messages=room, timeout=0.5):
                    task = tasks.create_task(score_delivery(delivery))
                    in_progress[task] = delivery
                    task.add_done_callback(done)
                note_in_progress()
            log.info("draining: %d messages in hand", len(in_progress))
            if in_progress:
                await asyncio.wait(in_progress)
            ack_timers.cancel()
            reports.cancel()
    finally:
        try:
            await scorer.close()
        finally:
            if samples is not None:
                await asyncio.to_thread(samples.close)


async def score(
    answers: Sequence[tuple[Trajectory, str]], *, scorer: Scorer, tokenizer: Tokenizer, spec: RLJobSpec
) -> list[tuple[Trajectory, RewardResult, str]]:
    """Score answers to one prompt: one, or, if functions score groups, all of its group.

    Args:
        answers: with the digests of their payloads, which the results repeat.
        scorer: has reward functions run.
        tokenizer: decodes the responses.
        spec: the job's, by which the environment's score, weights and penalties count.

    Returns:
        Each answer, its result, and what its item has as the answer, for people; of a group in which answers fail by
        themselves, only theirs.
    """
    jobs, undecoded = list[ScoringJob](), dict[int, ScoringOutcome]()
    for index, (trajectory, _) in enumerate(answers):
        try:
            completion = tokenizer.completion(
                response(trajectory), skip_special_tokens=spec.reward.skip_special_tokens
            )
        # Token ids outside any range. Without a result for them, the message would be delivered again forever.
        except OverflowError as error:
            undecoded[index] = _raised(f"the response does not decode: {error}")
        else:
            held_out = is_evaluation(trajectory.id)
            jobs.append(ScoringJob(trajectory.prompt, held_out, completion, finish=trajectory.finish))
    if undecoded:
        outcomes = [undecoded.get(index) for index in range(len(answers))]
    elif len(jobs) == 1:
        outcomes = [await scorer.score(jobs[0])]
    else:
        outcomes = await scorer.score_group(jobs)
    return [
        (trajectory, _result(trajectory, digest, outcome, spec), outcome.expected)
        for (trajectory, digest), outcome in zip(answers, outcomes, strict=True)
        if outcome is not None
    ]


def _result(trajectory: Trajectory, digest: str, outcome: ScoringOutcome, spec: RLJobSpec) -> RewardResult:
    if outcome.failure is None:
        outcome = rewarded(outcome, trajectory, spec)
    result = RewardResult(
        trajectory=trajectory.id,
        attempt=trajectory.attempt,
        payload_digest=digest,
        reward=outcome.reward,
        parts=outcome.parts,
        digest="",
        failure=_cut(outcome.failure),
        sample=trajectory.sample,
    )
    return dataclasses.replace(result, digest=result_digest(result))


def _raised(detail: str) -> ScoringOutcome:
    return ScoringOutcome(failure=Failure(Reason.REWARD_RAISED, detail))


def _cut(failure: Failure | None) -> Failure | None:
    return (
        None if failure is None else dataclasses.replace(failure, detail=failure.detail[:_DETAIL_CHARACTERS])
    )


def rewarded(outcome: ScoringOutcome, trajectory: Trajectory, spec: RLJobSpec) -> ScoringOutcome:
    """The outcome with what the functions do not score: its environment's score, and the penalty of being cut off."""
    parts = dict(outcome.parts)
    if ENVIRONMENT_SCORE in spec.reward.functions:
        if trajectory.score is None:
            return _raised("the trajectory has no score of its environment")
        parts[ENVIRONMENT_SCORE] = trajectory.score
    if spec.algorithm.truncated == "Penalise" and not is_evaluation(trajectory.id):
        is_cut = trajectory.finish is FinishReason.LENGTH
        parts[TRUNCATION] = -spec.algorithm.truncation_penalty if is_cut else 0.0
    return dataclasses.replace(outcome, reward=spec.reward.total(parts), parts=parts)


def lost(trajectory: str, attempt: int, digest: str) -> RewardResult:
    """The result for an answer whose payload does not decode, or is gone, so that it is generated again."""
    result = RewardResult(
        trajectory=trajectory,
        attempt=attempt,
        payload_digest=digest,
        reward=0.0,
        parts={},
        digest="",
        failure=Failure(Reason.PAYLOAD_CORRUPT, "its stored bytes do not decode, or are gone"),
    )
    return dataclasses.replace(result, digest=result_digest(result))


def response(trajectory: Trajectory) -> NDArray[np.int32]:
    """Return the tokens that the model generated, over all segments: int32 [n]."""
    parts = [segment.tokens for segment in trajectory.segments if segment.source is Source.MODEL]
    return np.concatenate([np.empty(0, np.int32), *parts])


class ResultPublisher:
    """Publishes results in batches: results that arrive while a message is being stored go into the next message."""

    def __init__(self, store: MessageStore, recorder: Recorder | None = None) -> None:
        self._store = store
        self._recorder = Recorder(CATALOGUE["reward"]) if recorder is None else recorder
        self._waiting = list[tuple[tuple[RewardResult, ...], asyncio.Future[None]]]()
        self._sending = asyncio.Lock()

    async def publish(self, results: Sequence[RewardResult]) -> None:
        """Publish results and wait until they are stored, in one message if it has room for as many.

        Raises:
            StoreUnavailable: the server cannot be reached.
        """
        stored = list[asyncio.Future[None]]()
        for start in range(0, len(results), MESSAGE_RESULTS):
            stored.append(asyncio.get_running_loop().create_future())
            self._waiting.append((tuple(results[start : start + MESSAGE_RESULTS]), stored[-1]))
        for future in stored:
            async with self._sending:
                if not future.done():
                    await self._send()
            await future

    async def _send(self) -> None:
        """Store the oldest of the waiting results as one message."""
        room, parts = MESSAGE_RESULTS, list[tuple[tuple[RewardResult, ...], asyncio.Future[None]]]()
        while self._waiting and len(self._waiting[0][0]) <= room:
            parts.append(self._waiting.pop(0))
            room -= len(parts[-1][0])
        results = tuple(result for part, _ in parts for result in part)
        names = "/".join(f"{r.trajectory}@{r.attempt}:{r.payload_digest}" for r in results)
        identity = xxhash.xxh3_128_hexdigest(names.encode())
        data = REWARD_BATCH.dump_json(RewardBatch(results))
        publish = partial(self._store.publish, Channel.REWARDS, SUFFIX, data, message_id=identity)
        with self._recorder.timed(RewardMetrics.PUBLISH_SECONDS):
            await retry_while_full(publish, first_wait=0.5, longest_wait=0.5)
        for _, stored in parts:
            if not stored.done():
                stored.set_result(None)
