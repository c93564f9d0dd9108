"""A running evaluation: held-out prompts, each answered once sampled and once greedily, outside the buffers.

It is not in the ledger until it is done: a coordinator that restarts simply runs it again.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from rljob_core.messages import Sample
from rljob_core.trajectory import group_of, sibling_of, trajectory_id

SAMPLES: tuple[Sample, ...] = ("sampled", "greedy")


def group_id(version: int, prompt: int) -> str:
    """Id of an evaluation's group of two."""
    return f"e{version}-{prompt}"


def prompt_of(trajectory: str) -> int:
    """The held-out prompt that a trajectory answers."""
    return int(group_of(trajectory).partition("-")[2])


def sample_of(trajectory: str) -> Sample:
    """`sampled` or `greedy`."""
    return SAMPLES[sibling_of(trajectory)]


@dataclass(slots=True)
class Evaluation:
    """One pass over the held-out prompts under `version`.

    Attributes:
        unscored: answers whose payload was seen (keys, in that order).
    """

    version: int
    samples: int
    waiting: deque[str] = field(default_factory=deque)
    attempts: dict[str, int] = field(default_factory=dict)
    engines: dict[str, str] = field(default_factory=dict)
    unscored: dict[str, None] = field(default_factory=dict)
    scores: dict[str, float] = field(default_factory=dict)
    failures: dict[str, int] = field(default_factory=dict)

    @classmethod
    def start(cls, *, version: int, samples: int, first_attempt: int = 1) -> Evaluation:
        """All of it waiting to be dispatched."""
        ids = [trajectory_id(group_id(version, p), s) for p in range(samples) for s in range(len(SAMPLES))]
        return cls(version, samples, deque(ids), dict.fromkeys(ids, first_attempt))

    def holds(self, trajectory: str, attempt: int) -> bool:
        """Whether that attempt's result is wanted."""
        return self.attempts.get(trajectory) == attempt

    def dispatch(self, trajectory: str, engine: str) -> None:
        """It is with that engine."""
        self.engines[trajectory] = engine

    def arrived(self, trajectory: str) -> str:
        """Its payload is stored; the engine that had it, which is free of it now."""
        self.unscored[trajectory] = None
        return self.engines.pop(trajectory, "")

    def score(self, trajectory: str, reward: float) -> None:
        """Take a result."""
        self._end(trajectory)
        self.scores[trajectory] = reward

    def retry(self, trajectory: str, *, max_attempts: int, failure: bool) -> None:
        """Answer again, or give the answer up after `max_attempts`."""
        self.engines.pop(trajectory, None)
        self.unscored.pop(trajectory, None)
        self.failures[trajectory] = self.failures.get(trajectory, 0) + failure
        if failure and self.failures[trajectory] >= max_attempts:
            self._end(trajectory)
        else:
            self.attempts[trajectory] += 1
            self.waiting.append(trajectory)

    def lose(self, engine: str) -> None:
        """An engine is gone: what it had is answered again."""
        for trajectory in [t for t, e in self.engines.items() if e == engine]:
            self.retry(trajectory, max_attempts=0, failure=False)

    def _end(self, trajectory: str) -> None:
        self.engines.pop(trajectory, None)
        self.unscored.pop(trajectory, None)
        self.attempts.pop(trajectory, None)

    @property
    def done(self) -> bool:
        """Whether every answer is scored or given up."""
        return not self.attempts

    def mean(self, sample: str) -> float:
        """Mean reward of the `sampled` or the `greedy` answers; an answer given up scores nothing."""
        return sum(r for t, r in self.scores.items() if sample_of(t) == sample) / max(1, self.samples)
