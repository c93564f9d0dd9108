"""A running evaluation: every held-out prompt is answered once sampled and once greedily, outside the buffers.

Only its result goes into the ledger, so a coordinator that restarts runs it again.
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
        version: the policy version that is evaluated.
        samples: number of held-out prompts.
        waiting: ids of answers to dispatch.
        attempts: current attempt of each answer that is neither scored nor given up.
        engines: the engine of each answer that is being generated.
        unscored: ids of answers whose payload was read, in that order.
        scores: rewards of the scored answers.
        failures: failed attempts of each answer.
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
        """An evaluation whose answers all wait to be dispatched."""
        ids = [trajectory_id(group_id(version, p), s) for p in range(samples) for s in range(len(SAMPLES))]
        return cls(version, samples, deque(ids), dict.fromkeys(ids, first_attempt))

    def holds(self, trajectory: str, attempt: int) -> bool:
        """Whether the answer is open and this is its current attempt."""
        return self.attempts.get(trajectory) == attempt

    def dispatch(self, trajectory: str, engine: str) -> None:
        """Note the engine that generates an answer."""
        self.engines[trajectory] = engine

    def arrived(self, trajectory: str) -> str:
        """Note that an answer's payload was read; returns the engine that had it, empty if none had."""
        self.unscored[trajectory] = None
        return self.engines.pop(trajectory, "")

    def score(self, trajectory: str, reward: float) -> None:
        """Take an answer's reward."""
        self._end(trajectory)
        self.scores[trajectory] = reward

    def retry(self, trajectory: str, *, max_attempts: int, failure: bool) -> None:
        """Generate an answer again, or give it up after `max_attempts` failures."""
        self.engines.pop(trajectory, None)
        self.unscored.pop(trajectory, None)
        self.failures[trajectory] = self.failures.get(trajectory, 0) + failure
        if failure and self.failures[trajectory] >= max_attempts:
            self._end(trajectory)
        else:
            self.attempts[trajectory] += 1
            self.waiting.append(trajectory)

    def lose(self, engine: str) -> None:
        """Generate the answers of a lost engine again."""
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
        """Mean reward of the `sampled` or the `greedy` answers; an answer that was given up counts as 0."""
        return sum(r for t, r in self.scores.items() if sample_of(t) == sample) / max(1, self.samples)
