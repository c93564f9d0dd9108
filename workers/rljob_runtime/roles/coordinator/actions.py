"""Carries out what the planner decided: messages to engines and trainer, announcements, deletions, look-ups."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

from rljob_core.actions import (
    Action,
    Announce,
    CheckRewards,
    DeletePayloads,
    DeleteRewards,
    DropProgress,
    FindMark,
    FindProgress,
    GrowStream,
    ListProgress,
    MarkFound,
    MeasurePrompts,
    Observation,
    PredictLengths,
    ProgressFound,
    ProgressListed,
    PromptsMeasured,
    PublishMetrics,
    RequestScores,
    RetireEngine,
    SendMark,
    SendToEngine,
    SendToTrainer,
    StreamLimit,
)
from rljob_core.errors import StoreFull
from rljob_core.messages import (
    ENGINE_SIGNALS,
    MARK,
    MARK_HEADER,
    REWARD_QUEUE,
    TRAINER_MESSAGE,
    Generate,
    StepMetrics,
    TrainerMessage,
    site_mark,
    work_suffix,
)
from rljob_core.ports import Channel, MessageStore
from rljob_core.site_border import is_forged_mark
from rljob_core.trajectory import is_evaluation
from rljob_core.words import error_in_words
from rljob_runtime.data.row_scan import most_tokens
from rljob_runtime.messaging.announce import publish_metrics, publish_version
from rljob_runtime.messaging.progress import ProgressStore
from rljob_runtime.messaging.trajectories import TrajectoryStore
from rljob_runtime.messaging.waiting_publisher import retry_while_full
from rljob_runtime.roles.coordinator.length_predictions import AsksLengths
from rljob_runtime.roles.coordinator.prompt_texts import EngineMessage, PromptTexts
from rljob_runtime.roles.coordinator.worker_messages import own_number

CountTokens = Callable[[str], int]
"""The number of tokens of a text, or more."""

_FULL_SECONDS = 60.0
"""How long a full stream of work is waited for: the operator looks every ten seconds whether it can be enlarged."""

log = logging.getLogger(__name__)


class ActionRunner:
    """Carries out the actions of one coordinator.

    Args:
        store: the job's streams, open.
        trajectories: over `store`; the object whose `summaries` the coordinator reads.
        prompts: the texts of prompts.
        lengths: estimates how long their answers will be.
        count_tokens: measures a text; called in a thread.
        observe: takes the answers to the planner's questions (progress that was found or listed, lengths of prompts).
        instance: name of this coordinator.
    """

    def __init__(
        self,
        store: MessageStore,
        trajectories: TrajectoryStore,
        progress: ProgressStore,
        prompts: PromptTexts,
        observe: Callable[[Observation], Awaitable[None]],
        *,
        lengths: AsksLengths,
        count_tokens: CountTokens = most_tokens,
        instance: str,
    ) -> None:
        self._store = store
        self._trajectories = trajectories
        self._progress = progress
        self._prompts = prompts
        self._lengths = lengths
        self._count_tokens = count_tokens
        self._observe = observe
        self._instance = instance
        self._logged = (0, 0)
        """Bytes that were asked for and that there are, when it was last logged that there are too few."""
        self._site_log = SiteLog()

    async def run(self, actions: Sequence[Action], *, epoch: int, ledger: str) -> None:
        """Carry out actions: in order for each receiver, concurrently for different receivers.

        Args:
            epoch: the coordinator's writer epoch, which engines compare.
            ledger: chain digest of the ledger, which has the actions' records by now.
        """
        by_receiver: dict[str, list[Action]] = {}
        for action in actions:
            by_receiver.setdefault(_receiver(action), []).append(action)
        await asyncio.gather(*(self._run_in_order(some, epoch, ledger) for some in by_receiver.values()))

    async def _run_in_order(self, actions: Sequence[Action], epoch: int, ledger: str) -> None:
        for action in actions:
            await self._run_one(action, epoch, ledger)

    async def _run_one(self, action: Action, epoch: int, ledger: str) -> None:
        store = self._store
        match action:
            case SendToEngine():
                await self._send(action, epoch)
            case SendToTrainer():
                data = TRAINER_MESSAGE.dump_json(TrainerMessage(ledger, action.message))
                await self._publish(Channel.TRAINING, f"trainer.{action.attempt}", data)
            case Announce():
                await publish_version(store, action)
            case DeletePayloads():
                await self._trajectories.delete(action.sequences)
            case DeleteRewards():
                await store.delete(Channel.REWARDS, action.sequences)
            case MeasurePrompts():
                await self._measure(action)
            case PredictLengths():
                await self._lengths.ask(action)
            case GrowStream():
                await self._grow(action)
            case FindProgress():
                wanted = zip(action.trajectories, action.attempts, strict=True)
                await asyncio.gather(*(self._find_progress(*one) for one in wanted))
            case SendMark():
                await store.put_site_mark(action.site, f"{self._instance}/{action.number}")
            case FindMark():
                await self._find_mark(action.site)
            case ListProgress():
                await self._observe(ProgressListed(await self._progress.trajectories()))
            case DropProgress():
                await self._progress.drop(action.trajectories)
            case CheckRewards():
                await self._check_rewards(action.number)
            case RequestScores():
                put = partial(self._trajectories.put_group, action.group)
                await retry_while_full(put, patience=_FULL_SECONDS)
            case RetireEngine():
                await store.purge(Channel.WORK, work_suffix(action.engine, site=action.site))
                await store.delete_signal(ENGINE_SIGNALS + action.engine)
            case PublishMetrics():
                self._site_log.take(action.metrics)
                if action.metrics.unscored:
                    log.warning("held-out at version %d: %s", action.metrics.version, action.metrics.unscored)
                await publish_metrics(store, action)

    async def _publish(self, channel: Channel, suffix: str, data: bytes) -> None:
        """Publish once there is room: workers take what is stored, and the operator enlarges the stream."""
        await retry_while_full(partial(self._store.publish, channel, suffix, data), patience=_FULL_SECONDS)

    async def _find_progress(self, trajectory: str, attempt: int) -> None:
        await self._observe(ProgressFound(trajectory, attempt, await self._progress.newest(trajectory)))

    async def _find_mark(self, site: str) -> None:
        mark = await self._store.last(Channel.PROGRESS, site_mark(site))
        value = ""
        if mark is not None and not is_forged_mark(site, mark.headers):
            value = mark.headers.get(MARK_HEADER, "")
        await self._observe(MarkFound(site, own_number(value, self._instance)))

    async def _measure(self, wanted: MeasurePrompts) -> None:
        tokens, unsendable = [], {}
        for prompt in wanted.prompts:
            try:
                found = await self._prompts.get(prompt, held_out=wanted.evaluation)
                tokens.append(await asyncio.to_thread(self._count_tokens, found.text))
            except Exception as error:  # of the data's own code, too: it must not end the coordinator
                unsendable[prompt] = error_in_words(error)
                tokens.append(0)
        await self._observe(PromptsMeasured(wanted.prompts, tuple(tokens), wanted.evaluation, unsendable))

    async def _grow(self, wanted: GrowStream) -> None:
        """Enlarge the trajectory stream, and report its limit either way."""
        refused = ""
        for size in (wanted.bytes, (wanted.bytes + wanted.least) // 2, wanted.least):
            try:
                await self._store.grow(Channel.TRAJECTORIES, size)
            except StoreFull as error:
                refused = str(error)
            else:
                break
        limit = await self._store.limit(Channel.TRAJECTORIES)
        found = (wanted.bytes, limit)
        if limit >= wanted.bytes:
            refused = ""  # somebody else may have enlarged it
            log.info("%s: it was enlarged to %d MB", wanted.reason, limit >> 20)
        elif self._logged != found:
            self._logged = found
            log.warning(
                "%s: it holds %.3g MB; this step needs %.3g MB, all of them %.3g MB (%s)",
                wanted.reason,
                limit / (1 << 20),
                wanted.least / (1 << 20),
                wanted.bytes / (1 << 20),
                refused,
            )
        await self._observe(StreamLimit(limit, refused))

    async def _check_rewards(self, number: int) -> None:
        """If the reward workers' queue is empty, put a mark into the rewards stream, behind all their results."""
        if not await self._store.unacknowledged(Channel.TRAJECTORIES, REWARD_QUEUE):
            mark = {MARK_HEADER: f"{self._instance}/{number}"}
            await self._store.publish(Channel.REWARDS, MARK, b"", headers=mark)

    async def _send(self, action: SendToEngine, epoch: int) -> None:
        """Send work to an engine, but for that of prompts that cannot be sent, which is observed.

        A prompt that was measured may still raise: its data may be read again, or run code of its own.
        """
        suffix = work_suffix(action.engine, site=action.site)
        unsendable: dict[bool, dict[int, str]] = {False: {}, True: {}}
        message = EngineMessage(epoch)
        for item in action.items:
            text = None
            if isinstance(item, Generate):
                held_out = is_evaluation(item.trajectory)
                if item.prompt in unsendable[held_out]:
                    continue
                try:
                    text = await self._prompts.get(item.prompt, held_out=held_out)
                except Exception as error:  # of the data's own code, too: it must not end the coordinator
                    unsendable[held_out][item.prompt] = error_in_words(error)
                    continue
            if not message.add(item, text):
                await self._publish(Channel.WORK, suffix, message.data())
                message = EngineMessage(epoch)
                message.add(item, text)
        if message:
            await self._publish(Channel.WORK, suffix, message.data())
        for held_out, reasons in unsendable.items():
            if prompts := tuple(reasons):
                await self._observe(PromptsMeasured(prompts, (0,) * len(prompts), held_out, reasons))


def _receiver(action: Action) -> str:
    match action:
        case SendToEngine() | RetireEngine():
            return f"engine {action.engine}"
        case SendToTrainer():
            return "trainer"
        case RequestScores() | CheckRewards():  # a check counts the requests before it
            return "reward workers"
        case _:
            return type(action).__name__


class SiteLog:
    """Says in the log when a site is away, or gets no work, and when that is over."""

    def __init__(self) -> None:
        self._away: frozenset[str] = frozenset()
        self._held: frozenset[str] = frozenset()

    def take(self, metrics: StepMetrics) -> None:
        """Say what has changed."""
        for site, is_away in _changes(self._away, metrics.sites_away):
            if is_away:
                log.warning("site %s is away: its engines get no work until it is reached again", site)
            else:
                log.info("site %s is reached again: its engines go on", site)
        for site, is_held in _changes(self._held, metrics.sites_held):
            if is_held:
                log.warning(
                    "site %s gets no new work: its outbox fills faster than its link empties it", site
                )
            else:
                log.info("site %s gets work again: half of its outbox has arrived", site)
        self._away, self._held = frozenset(metrics.sites_away), frozenset(metrics.sites_held)


def _changes(before: frozenset[str], after: Sequence[str]) -> list[tuple[str, bool]]:
    """The sites that are on one of the lists only, and whether that is the second."""
    return [(site, site not in before) for site in sorted(before.symmetric_difference(after))]
