"""Score answers as a reward worker does: `python -m rljob_contract.reward_scores CONFIG`, JSON in, JSON out."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import dataclass
from itertools import groupby

from pydantic import TypeAdapter

from rljob_core.config import JobConfig
from rljob_runtime.rewards.messages import ScoringJob, ScoringOutcome
from rljob_runtime.rewards.scorer import Scorer


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer to the data's item of that index."""

    prompt: int
    completion: str


ANSWERS: TypeAdapter[list[Answer]] = TypeAdapter(list[Answer])
OUTCOMES: TypeAdapter[list[ScoringOutcome]] = TypeAdapter(list[ScoringOutcome])


async def scored(config: JobConfig, answers: list[Answer]) -> list[ScoringOutcome]:
    """The outcome of each answer; a reward of whole groups gets answers to one item that follow one another as one.

    Raises:
        SpecError: data or reward are not what the configuration needs.
        RewardFailed: the processes die before they score anything.
    """
    scorer = Scorer(config, workers=1)
    try:
        await scorer.start()
        jobs = [ScoringJob(answer.prompt, held_out=False, completion=answer.completion) for answer in answers]
        if not config.spec.reward.per_group:
            return list(await asyncio.gather(*map(scorer.score, jobs)))
        groups = [list(siblings) for _, siblings in groupby(jobs, key=lambda job: job.prompt)]
        found = await asyncio.gather(*map(scorer.score_group, groups))
        return [outcome for group in found for outcome in group if outcome is not None]
    finally:
        await scorer.close()


def main() -> None:
    """Configuration as an argument, answers from the standard input, outcomes to the standard output."""
    config = JobConfig.model_validate_json(sys.argv[1])
    answers = ANSWERS.validate_json(sys.stdin.buffer.read())
    sys.stdout.write(OUTCOMES.dump_json(asyncio.run(scored(config, answers))).decode())


if __name__ == "__main__":
    main()
