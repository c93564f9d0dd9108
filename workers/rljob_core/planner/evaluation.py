"""A running evaluation: every held-out prompt is answered sampled and greedily, outside the buffers.

Only its result goes into the ledger, so a coordinator that restarts runs it again. An answer that is given up counts as
0, so that the scores of all versions are means over the same prompts; the result says how many are, and what the first
failed of. If they are more than a tenth of a set's, the set has no score. A prompt whose answers kill engines is not
asked by later evaluations: each would cost as many engines.

Training continues meanwhile, and an engine that has taken the next version answers with it, wholly or from some token
on. Answers are not pinned to the version: each engine would have to finish all of its own before it takes the next
weights, and what it generates for training would be as much staler. Instead the result says how many answers are not of
the version alone. The last evaluation is, as no version follows.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field

from rljob_core.held_out import HeldOutScore, score_answers
from rljob_core.job_state import QUARANTINE_DEATHS
from rljob_core.messages import Sample
from rljob_core.spec import MOST_SAMPLES, RLJobSpec
from rljob_core.trajectory import group_of, sibling_of, trajectory_id

ERROR_CHARACTERS = 500
"""Of the text that says what an answer failed of."""


@dataclass(frozen=True, slots=True)
class AskedSet:
    """What an evaluation asks of one held-out set.

    Attributes:
        name: of the set.
        prompts: the numbers of its prompts.
        group_size: sampled answers to each; one greedy answer comes after them.
    """

    name: str
    prompts: range
    group_size: int


def asked_sets(spec: RLJobSpec, prompts: Sequence[int] | None) -> tuple[AskedSet, ...]:
    """What an evaluation asks of each held-out set of a job.

    Args:
        spec: the job's.
        prompts: that it asks of each set; None: as many as of data without end.
    """
    found = () if spec.evaluation is None else spec.evaluation.held_out
    numbers = [one.asked(None) for one in found] if prompts is None else prompts
    return tuple(
        AskedSet(one.name, range(first * MOST_SAMPLES, first * MOST_SAMPLES + number), one.group_size)
        for first, (one, number) in enumerate(zip(found, numbers, strict=True))
    )


def prompt_of(trajectory: str) -> int:
    """The held-out prompt that a trajectory answers."""
    return int(group_of(trajectory).partition("-")[2])


@dataclass(slots=True)
class Evaluation:
    """One pass over the held-out prompts under `version`.

    Attributes:
        version: the policy version that is evaluated.
        sets: what it asks, by the position of the held-out set; empty if no evaluation runs.
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
        errors: what the first answer that was given up had failed of, by the position of its set.
    """

    version: int
    sets: tuple[AskedSet, ...]
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
    errors: dict[int, str] = field(default_factory=dict)

    @classmethod
    def none(cls) -> Evaluation:
        """What stands for an evaluation while none runs: it asks nothing."""
        return cls(version=-1, sets=(), started=0.0)

    @classmethod
    def start(
        cls,
        *,
        version: int,
        sets: Sequence[AskedSet],
        started: float,
        first_attempt: int = 1,
        given_up: Collection[int] = (),
    ) -> Evaluation:
        """An evaluation whose answers all wait to be dispatched, except those to prompts that kill engines."""
        run = cls(version, tuple(sets), started, given_up=dict.fromkeys(given_up))
        prompts = (prompt for asked in sets for prompt in asked.prompts if prompt not in run.given_up)
        ids = [trajectory for prompt in prompts for trajectory in run.ids_of(prompt)]
        run.waiting.extend(ids)
        run.attempts.update(dict.fromkeys(ids, first_attempt))
        for prompt in given_up:
            run._fail(prompt, "an earlier evaluation gave it up")
        return run

    def set_of(self, prompt: int) -> AskedSet:
        """The held-out set that a prompt is of."""
        return self.sets[prompt // MOST_SAMPLES]

    def ids_of(self, prompt: int) -> list[str]:
        """The ids of the answers to a prompt: the sampled ones, then the greedy one."""
        group = f"e{self.version}-{prompt}"
        return [trajectory_id(group, sibling) for sibling in range(self.set_of(prompt).group_size + 1)]

    def sample_of(self, trajectory: str) -> Sample:
        """`sampled` or `greedy`."""
        is_greedy = sibling_of(trajectory) == self.set_of(prompt_of(trajectory)).group_size
        return "greedy" if is_greedy else "sampled"

    def holds(self, trajectory: str, attempt: int) -> bool:
        """Whether the answer is open and this is its current attempt."""
        return self.attempts.get(trajectory) == attempt

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
        ids = (trajectory for trajectory in self.ids_of(prompt) if trajectory in self.attempts)
        opened = [(t, self.attempts[t], self.engines.get(t, "")) for t in ids]
        for trajectory, _, _ in opened:
            self._end(trajectory)
        return opened

    def _fail(self, prompt: int, failure: str) -> None:
        number, index = divmod(prompt, MOST_SAMPLES)
        self.errors.setdefault(number, f"prompt {index}: {failure}"[:ERROR_CHARACTERS])

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

    def set_scores(self, pass_reward: float) -> Iterator[HeldOutScore]:
        """The scores on each set, once it is done; an answer that was given up counts as 0.

        Args:
            pass_reward: an answer with at least this reward passes.
        """
        for number, asked in enumerate(self.sets):
            rewards = [[self.scores.get(t) for t in self.ids_of(prompt)] for prompt in asked.prompts]
            yield score_answers(
                [answers[:-1] for answers in rewards],
                [answers[-1] for answers in rewards],
                pass_reward=pass_reward,
                error=self.errors.get(number, ""),
            )
