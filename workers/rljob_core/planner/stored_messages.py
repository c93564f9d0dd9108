"""Messages of the trajectory and reward streams that the job still needs; the others are deleted.

Messages are read again from the start of their streams after a restart, so nothing of this is in the ledger.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from rljob_core.messages import RewardResult

AttemptKey = tuple[str, int]
"""Trajectory id and attempt."""


class MessageRefcounts:
    """The messages of one stream that were read, with the attempts that still need each.

    Attributes:
        idle_bytes: what attempts that have ended still take in messages that other attempts need.
    """

    def __init__(self) -> None:
        self.idle_bytes = 0
        self._holders: dict[int, dict[AttemptKey, int]] = {}
        self._idle: dict[int, int] = {}
        self._messages: dict[AttemptKey, int] = {}
        self._unneeded: list[int] = []

    def add(self, sequence: int, keys: Sequence[AttemptKey], sizes: Sequence[int] = ()) -> None:
        """Count a message that was read, and the attempts in it.

        Args:
            sequence: of the message.
            keys: the attempts in it.
            sizes: bytes that each of them takes; nothing, if `idle_bytes` does not matter.
        """
        self._holders[sequence] = dict(zip(keys, sizes or [0] * len(keys), strict=True))
        if not keys:
            self._unneeded.append(sequence)
        for key in keys:
            # An attempt may be stored twice, if a publish was repeated after the duplicate window. The first message
            # counts; the second is not needed for it.
            if self._messages.setdefault(key, sequence) != sequence:
                self._end(sequence, key)

    def release(self, key: AttemptKey) -> None:
        """This attempt needs its message no longer."""
        sequence = self._messages.pop(key, None)
        if sequence is not None:
            self._end(sequence, key)

    def _end(self, sequence: int, key: AttemptKey) -> None:
        holders = self._holders[sequence]
        size = holders.pop(key, None)
        if size is None:
            return
        if holders:
            self._idle[sequence] = self._idle.get(sequence, 0) + size
            self.idle_bytes += size
        else:  # it is about to be deleted
            self.idle_bytes -= self._idle.pop(sequence, 0)
            self._unneeded.append(sequence)

    def collect(self) -> list[int]:
        """Sequences of messages that no attempt needs; each is returned once."""
        # One that was read again meanwhile may be needed again.
        done = sorted({s for s in self._unneeded if s in self._holders and not self._holders[s]})
        self._unneeded = []
        for sequence in done:
            del self._holders[sequence]
        return done


@dataclass(slots=True)
class StoredMessages:
    """Stored messages, by the attempts that still need them.

    Attributes:
        payloads: messages of the trajectory stream.
        rewards: messages of the reward stream.
        early_rewards: results that were read before the payload that they score, by the payload's digest.
    """

    payloads: MessageRefcounts = field(default_factory=MessageRefcounts)
    rewards: MessageRefcounts = field(default_factory=MessageRefcounts)
    early_rewards: dict[AttemptKey, dict[str, RewardResult]] = field(default_factory=dict)

    def release(self, key: AttemptKey) -> None:
        """Give up everything stored of an attempt: it has ended, or another attempt holds the sibling."""
        self.payloads.release(key)
        self.rewards.release(key)
        self.early_rewards.pop(key, None)

    def keep_early(self, result: RewardResult) -> None:
        """Keep a result whose payload was not read yet."""
        key = (result.trajectory, result.attempt)
        self.early_rewards.setdefault(key, {})[result.payload_digest] = result

    def pop_early(self, key: AttemptKey, digest: str) -> RewardResult | None:
        """The result that was read before this payload, if any; results for other payloads of the attempt go too."""
        return self.early_rewards.pop(key, {}).get(digest)


SCORE_HEARTBEATS = 10
"""Own heartbeats for which a payload may wait for its score before the planner asks whether the score is lost."""


@dataclass(slots=True)
class ScoreChecks:
    """How long payloads have waited for their scores, and when to ask whether a score was lost.

    A score can be lost with the server that stored it. After `SCORE_HEARTBEATS` the planner asks (`CheckRewards`)
    whether the reward workers have scored every stored payload. Once they have, and every score before the answer was
    read, a payload of that moment that still has no score has lost it.

    Attributes:
        waiting: (trajectory, attempt) of each payload without a score, with the own heartbeats that it has waited.
        asked: what was waiting when the newest check began; empty once it was answered.
        number: of the newest check, the first being 1. Answers to earlier checks are ignored.
    """

    waiting: dict[AttemptKey, int] = field(default_factory=dict)
    asked: tuple[AttemptKey, ...] = ()
    number: int = 0

    def heartbeat(self, unscored: Sequence[AttemptKey]) -> int | None:
        """Count one own heartbeat.

        Args:
            unscored: all payloads that have no score now.

        Returns:
            The number of the check to make; None if nothing has waited for too long.
        """
        self.waiting = {key: self.waiting.get(key, 0) + 1 for key in unscored}
        if max(self.waiting.values(), default=0) <= SCORE_HEARTBEATS:
            return None
        self.waiting = dict.fromkeys(self.waiting, 0)
        self.asked = tuple(unscored)
        self.number += 1
        return self.number

    def answered(self, number: int) -> tuple[AttemptKey, ...]:
        """Everything that was waiting when check `number` began; nothing if a newer check was made since."""
        if number != self.number:
            return ()
        asked, self.asked = self.asked, ()
        return asked
