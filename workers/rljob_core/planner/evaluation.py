"""A running evaluation: every held-out prompt is answered once sampled and once greedily, outside the buffers.

Only its result goes into the ledger, so a coordinator that restarts runs it again. An answer that is given up counts as
0, so that the scores of all versions are means over the same prompts; the result says how many are, and what the first
failed of. If they are more than a tenth, there is no score. A prompt whose answers kill engines is not asked
by later evaluations: each would cost as many engines.

Training continues meanwhile, and an engine that has taken the next version answers with it, wholly or from some token
on. Answers are not pinned to the version: each engine would have to finish all of its own before it takes the next
weights, and what it generates for training would be as much staler. Instead the result says how many answers are not of
the version alone. The last evaluation is, as no version follows.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from dataclasses import dataclass, field

from rljob_core.job_state import QUARANTINE_DEATHS
from rljob_core.messages import Sample
from rljob_core.records import evaluation_fails
from rljob_core.trajectory import group_of, sibling_of, trajectory_id

ERROR_CHARACTERS = 500
"""Of the text that says what an answer failed of."""
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
        started: when it began, in seconds of the planner's clock.
        waiting: ids of answers to dispatch.
        attempts: current attempt of each answer that is neither scored nor given up.
        engines: the engine of each answer that is being generated.
        unscored: ids of answers whose payload was read, in that order.
        newest: the newest version of each answer's tokens, once its payload was read.
        scores: rewards of the scored answers.
        failures: failed attempts of each answer.
        deaths: engines that died while they were generating each answer.
        given_up: prompts that were given up because their answers killed engines, now or in an earlier evaluation.
        error: what the first answer that was given up had failed of; empty if none was.
    """

    version: int
    samples: int
    started: float
    waiting: deque[str] = field(default_factory=deque)
    attempts: dict[str, int] = field(default_factory=dict)
    engines: dict[str, str] = field(default_factory=dict)
    unscored: dict[str, None] = field(default_factory=dict)
    newest: dict[str, int] = field(default_factory=dict)
    scores: dict[str, float] = field(default_factory=dict)
    failures: dict[str, int] = field(default_factory=dict)
    deaths: dict[str, int] = field(default_factory=dict)
    given_up: dict[int, None] = field(default_factory=dict)
    error: str = ""

    @classmethod
    def start(
        cls,
        *,
        version: int,
        samples: int,
        started: float,
        first_attempt: int = 1,
        given_up: Collection[int] = (),
    ) -> Evaluation:
        """An evaluation whose answers all wait to be dispatched, except those to prompts that kill engines."""
        asked = [p for p in range(samples) if p not in given_up]
        ids = [trajectory_id(group_id(version, p), s) for p in asked for s in range(len(SAMPLES))]
        attempts = dict.fromkeys(ids, first_attempt)
        run = cls(version, samples, started, deque(ids), attempts, given_up=dict.fromkeys(given_up))
        for prompt in given_up:
            run._fail(prompt, "an earlier evaluation gave it up")
        return run

    def holds(self, trajectory: str, attempt: int) -> bool:
        """Whether the answer is open and this is its current attempt."""
        return self.attempts.get(trajectory) == attempt

    def dispatch(self, trajectory: str, engine: str) -> None:
        """Note the engine that generates an answer."""
        self.engines[trajectory] = engine

    def arrived(self, trajectory: str, *, newest: int) -> str:
        """Note that an answer's payload was read; returns the engine that had it, empty if none had.

        Args:
            newest: the newest version of its tokens.
        """
        self.unscored[trajectory] = None
        self.newest[trajectory] = newest
        self.deaths.pop(trajectory, None)
        return self.engines.pop(trajectory, "")

    def score(self, trajectory: str, reward: float) -> None:
        """Take an answer's reward."""
        self._end(trajectory)
        self.scores[trajectory] = reward

    def retry(self, trajectory: str, *, max_attempts: int = 0, failure: str = "") -> None:
        """Generate an answer again, or give it up after `max_attempts` failures.

        Args:
            trajectory: the answer.
            max_attempts: after which it is given up.
            failure: what the attempt failed of; empty if it is to blame for nothing.
        """
        self.engines.pop(trajectory, None)
        self.unscored.pop(trajectory, None)
        self.failures[trajectory] = self.failures.get(trajectory, 0) + bool(failure)
        if failure and self.failures[trajectory] >= max_attempts:
            self._fail(prompt_of(trajectory), failure)
            self._end(trajectory)
        else:
            self.attempts[trajectory] += 1
            if not self.is_quarantined(trajectory):
                self.waiting.append(trajectory)

    def answers_at(self, engine: str) -> list[str]:
        """The answers that an engine is generating."""
        return [t for t, e in self.engines.items() if e == engine]

    def is_quarantined(self, trajectory: str) -> bool:
        """Whether the answer may be what kills engines; it is then not in `waiting`."""
        return self.deaths.get(trajectory, 0) >= QUARANTINE_DEATHS

    def quarantined(self) -> list[str]:
        """Ids of the answers that may be what kills engines."""
        return [t for t in self.deaths if self.is_quarantined(t)]

    def explain_deaths(self) -> None:
        """Forget what engines died of: it was found. The answers that were quarantined wait like all others again."""
        quarantined = self.quarantined()
        self.deaths.clear()
        self.waiting.extend(t for t in quarantined if t not in self.engines)

    def give_up(self, prompt: int, failure: str) -> list[tuple[str, int, str]]:
        """Ask a prompt no more, now and in later evaluations: its answers kill engines, or it cannot be sent.

        Returns:
            Its open answers, their attempts, and the engines that are generating them ("" for none).
        """
        self.given_up[prompt] = None
        self._fail(prompt, failure)
        ids = (trajectory_id(group_id(self.version, prompt), s) for s in range(len(SAMPLES)))
        opened = [(t, self.attempts[t], self.engines.get(t, "")) for t in ids if t in self.attempts]
        for trajectory, _, _ in opened:
            self._end(trajectory)
        return opened

    def _fail(self, prompt: int, failure: str) -> None:
        self.error = self.error or f"prompt {prompt}: {failure}"[:ERROR_CHARACTERS]

    def _end(self, trajectory: str) -> None:
        self.engines.pop(trajectory, None)
        self.unscored.pop(trajectory, None)
        self.attempts.pop(trajectory, None)
        self.deaths.pop(trajectory, None)

    @property
    def done(self) -> bool:
        """Whether every answer is scored or given up."""
        return not self.attempts

    def later(self) -> list[int]:
        """The newest version of each scored answer that holds tokens of later versions than the evaluated one."""
        return [self.newest[t] for t in self.scores if self.newest[t] > self.version]

    @property
    def failed(self) -> int:
        """The number of answers without a score, once it is done."""
        return len(SAMPLES) * self.samples - len(self.scores)

    def mean(self, sample: Sample) -> float | None:
        """Mean reward of the `sampled` or the `greedy` answers; an answer that was given up counts as 0.

        None if more than a tenth of all answers were given up.
        """
        if evaluation_fails(failed=self.failed, samples=self.samples):
            return None
        return sum(r for t, r in self.scores.items() if sample_of(t) == sample) / max(1, self.samples)
