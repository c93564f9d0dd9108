"""Messages of the trajectory and reward streams that the job still needs; the others are deleted.

Messages are read again from the start of their streams after a restart, so nothing of this is in the ledger.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from rljob_core.messages import RewardResult
from rljob_core.planner.message_refcounts import AttemptKey, MessageRefcounts


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
        self.payloads.release([key])
        self.rewards.release([key])
        self.early_rewards.pop(key, None)

    def keep_early(self, result: RewardResult) -> None:
        """Keep a result whose payload was not read yet."""
        key = (result.trajectory, result.attempt)
        self.early_rewards.setdefault(key, {})[result.payload_digest] = result

    def pop_early(self, key: AttemptKey, digest: str) -> RewardResult | None:
        """The result that was read before this payload, if any; results for other payloads of the attempt go too."""
        return self.early_rewards.pop(key, {}).get(digest)
