"""How long payloads have waited for their scores, and when to ask whether a score was lost.

A score can be lost with the server that stored it. After `SCORE_HEARTBEATS` the planner asks (`CheckRewards`) whether
the reward workers have scored every stored payload. Once they have, and every score before the answer was read, a
payload of that moment that still has no score has lost it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from rljob_core.planner.message_refcounts import AttemptKey

SCORE_HEARTBEATS = 10
"""Own heartbeats for which a payload may wait for its score before the planner asks whether the score is lost."""


@dataclass(slots=True)
class ScoreChecks:
    """Payloads without a score, and the newest check.

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
