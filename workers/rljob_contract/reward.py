"""The contract of the port `Reward`, on items of some data.

Answers are scored as in a job: by a scoring server (`reward_scores`), each call under its limit. A reward that
`spec.reward.perGroup` names gets all answers to an item at once.
"""

from __future__ import annotations

import asyncio
import copy
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field

from rljob_contract.check import Contract, require
from rljob_contract.reward_scores import ANSWERS, OUTCOMES, Answer
from rljob_contract.samples import ANYTHING
from rljob_core.config import JobConfig
from rljob_runtime.data.prompts import open_prompts
from rljob_runtime.rewards.messages import ScoringOutcome
from rljob_runtime.rewards.registry import given, given_group, resolve, value_of

_ITEMS = 4


@dataclass(slots=True)
class RewardSubject:
    """One reward, as `spec.reward.functions` of a job names it alone.

    Attributes:
        config: the job's; its data are what is answered.
    """

    config: JobConfig
    _scored: dict[str, list[ScoringOutcome]] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The reward's."""
        return self.config.spec.reward.functions[0]

    @property
    def per_group(self) -> bool:
        """Whether it scores whole groups."""
        return bool(self.config.spec.reward.per_group)

    def answers(self) -> list[Answer]:
        """Items by index, each with the right answer, if it has one, and with what else models say."""
        prompts, _ = open_prompts(self.config)
        found = []
        for index in range(_ITEMS):
            item = prompts.item(index)
            right = [str(item["answer"])] if "answer" in item else []
            found += [Answer(index, text) for text in (*right, *ANYTHING)]
        return found

    async def scored(self, *, seed: str) -> list[tuple[Answer, ScoringOutcome]]:
        """The outcome of each answer, in a process of its own whose hashes have that seed; in another order for each.

        The answers of a group keep their order in it: it belongs to what is scored.

        Raises:
            RuntimeError: the process ended.
        """
        answers = self.answers()
        if seed not in self._scored:
            order = list(range(len(answers)))
            if int(seed) % 2 == 0:
                order.sort(key=lambda n: -answers[n].prompt if self.per_group else -n)
            outcomes = await self._score([answers[n] for n in order], seed)
            self._scored[seed] = [outcomes[order.index(n)] for n in range(len(answers))]
        return list(zip(answers, self._scored[seed], strict=True))

    async def _score(self, answers: Sequence[Answer], seed: str) -> list[ScoringOutcome]:
        path = os.pathsep.join(entry for entry in sys.path if entry)
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "rljob_contract.reward_scores",
            self.config.model_dump_json(by_alias=True),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": path, "PYTHONHASHSEED": seed},
        )
        try:
            out, errors = await process.communicate(ANSWERS.dump_json(list(answers)))
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        if process.returncode:
            raise RuntimeError(
                f"the process that scores ended with {process.returncode}: {errors.decode()[-500:]}"
            )
        return OUTCOMES.validate_json(out)


REWARD = Contract[RewardSubject]()


@REWARD.check
async def any_answer_gets_a_finite_number(subject: RewardSubject) -> None:
    """Any answer gets a finite score within the time limit.

    Models say anything: catch what your parser raises, and return the score of a wrong answer. An answer that raises,
    or takes longer than spec.reward.timeoutSeconds, is generated again and in the end aborts its group.
    """
    failed = [(answer, outcome) for answer, outcome in await subject.scored(seed="1") if outcome.failure]
    shown = "; ".join(f"{_short(answer.completion)}: {outcome.failure}" for answer, outcome in failed[:3])
    require(not failed, f"{len(failed)} answers get none: {shown}")


@REWARD.check
async def the_same_answer_has_the_same_score_everywhere(subject: RewardSubject) -> None:
    """The same answer to the same item has the same score in every process, whatever was scored before.

    A reward that is delivered twice must be the same twice: keep no state between calls, and let nothing depend on
    time, chance or the order of a set.
    """
    pairs = zip(await subject.scored(seed="1"), await subject.scored(seed="2"), strict=True)
    other = [
        (answer, one.reward, two.reward) for (answer, one), (_, two) in pairs if one.reward != two.reward
    ]
    shown = "; ".join(f"{_short(answer.completion)}: {one:g} and {two:g}" for answer, one, two in other[:3])
    require(not other, f"{len(other)} answers have two scores: {shown}")


@REWARD.check
async def scoring_changes_no_item(subject: RewardSubject) -> None:
    """Scoring leaves the item as it was.

    The item is shared by all answers to it: copy what you change.
    """
    prompts, _ = open_prompts(subject.config)
    ((name, function),) = resolve([subject.name], prompts, per_group=subject.config.spec.reward.per_group)
    item = prompts.item(0)
    before = copy.deepcopy(item)
    answers = [answer.completion for answer in subject.answers() if answer.prompt == 0]
    short = [answer for answer in answers if len(answer) < 100]
    groups = [short] if subject.per_group else [[answer] for answer in short]
    for group in groups:
        arguments = (
            given_group(group, item, ["stop"] * len(group)) if subject.per_group else given(group[0], item)
        )
        # In a thread: a coroutine runs on a loop of its own.
        await asyncio.to_thread(value_of, name, function, arguments)
        changed = [key for key in item.keys() | before.keys() if item.get(key) != before.get(key)]
        scored = "a group" if subject.per_group else _short(group[0])
        require(not changed, f"{scored} has changed {', '.join(changed)} of the item")


@REWARD.check
async def answers_are_distinguished(subject: RewardSubject) -> None:
    """Not all answers have the same score.

    Nothing is learned from equal rewards. Give data with items like your job's, by --set source=…, --set dataset=….
    """
    scores = {outcome.reward for _, outcome in await subject.scored(seed="1") if not outcome.failure}
    require(len(scores) > 1, f"all of them have {', '.join(f'{value:g}' for value in scores) or 'none'}")


def _short(text: str) -> str:
    return repr(text) if len(text) <= 30 else f"{text[:20]!r}… ({len(text)} characters)"
