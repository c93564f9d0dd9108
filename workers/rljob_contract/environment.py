"""The contract of the port `Environment`: episodes are played as in a job, each in a process of its own."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from dataclasses import dataclass, field

from rljob_contract.check import Contract, require
from rljob_contract.samples import ANYTHING
from rljob_core.config import JobConfig
from rljob_core.errors import EnvironmentFailed
from rljob_core.ports import EpisodeStart, ModelTurn
from rljob_runtime.data.prompts import open_prompts
from rljob_runtime.environments.client import MODULE, EnvironmentClient
from rljob_runtime.environments.messages import EncodedObservation
from rljob_runtime.process.server_child import ServerChild, without_secrets

_STARTS = 4
_RESPONSES = (*ANYTHING, "1", "7", "yes", "A")


@dataclass(frozen=True, slots=True)
class PlayedEpisode:
    """What an environment made of some responses.

    Attributes:
        observations: after each response; None last if the environment has ended the episode.
        score: at the end; 0 if it failed.
        fault: how the environment failed; empty if it did not.
    """

    observations: tuple[EncodedObservation | None, ...] = ()
    score: float = 0.0
    fault: str = ""


@dataclass(slots=True)
class EnvironmentSubject:
    """One environment, as `spec.rollout.environment` of a job names it.

    Attributes:
        config: the job's; its data are what is played with.
    """

    config: JobConfig
    _played: dict[str, list[PlayedEpisode]] = field(default_factory=dict)

    def starts(self) -> list[EpisodeStart]:
        """Starts of episodes."""
        prompts, _ = open_prompts(self.config)
        return [
            EpisodeStart(
                prompt=index,
                held_out=False,
                text=prompts.text(index),
                item=prompts.item(index),
                seed=1000 + index,
                max_turns=self.config.spec.rollout.max_turns,
            )
            for index in range(_STARTS)
        ]

    async def played(self, *, hash_seed: str) -> list[PlayedEpisode]:
        """An episode of each start and each row of responses, all at once, where hashes have that seed."""
        if hash_seed not in self._played:
            variables = {**without_secrets(os.environ), "PYTHONHASHSEED": hash_seed}
            client = EnvironmentClient(self.config, place=ServerChild(MODULE, variables))
            try:
                await client.start()
                self._played[hash_seed] = await asyncio.gather(
                    *(_play(client, start, row) for start in self.starts() for row in self._rows())
                )
            finally:
                await client.close()
        return self._played[hash_seed]

    def _rows(self) -> list[Sequence[str]]:
        """What the model says in each episode: as many responses as a job allows, but not all of hundreds."""
        turns = min(self.config.spec.rollout.max_turns, 8)
        return [
            [_RESPONSES[(first + turn) % len(_RESPONSES)] for turn in range(turns)]
            for first in range(0, len(_RESPONSES), 4)
        ]


async def _play(client: EnvironmentClient, start: EpisodeStart, responses: Sequence[str]) -> PlayedEpisode:
    observations = list[EncodedObservation | None]()
    try:
        episode = await client.open(start)
        try:
            for text in responses:
                turn = ModelTurn(text, [ord(character) % 256 for character in text] or [0], truncated=False)
                observations.append(await episode.react(turn))
                if observations[-1] is None:
                    break
            truncated = observations[-1] is not None
            return PlayedEpisode(tuple(observations), await episode.score(truncated=truncated))
        finally:
            episode.close()
    except EnvironmentFailed as failed:
        return PlayedEpisode(tuple(observations), fault=str(failed))


ENVIRONMENT = Contract[EnvironmentSubject]()


@ENVIRONMENT.check
async def any_response_is_answered(subject: EnvironmentSubject) -> None:
    """Any response gets an observation or ends the episode, and every episode gets a finite score.

    Models say anything, and turns may run out at any moment: catch what your parser raises, tell the model what was
    wrong, and score an episode that was cut short, too. An attempt whose environment fails is played again, and in the
    end aborts its group.
    """
    faults = [played.fault for played in await subject.played(hash_seed="1") if played.fault]
    require(not faults, f"{len(faults)} episodes have failed: {'; '.join(dict.fromkeys(faults[:3]))}")


@ENVIRONMENT.check
async def the_same_start_plays_the_same_episode(subject: EnvironmentSubject) -> None:
    """The same start and the same responses give the same observations and the same score, in any process.

    Siblings are compared with each other, and an attempt whose engine has died is played again: draw random numbers
    from `random.Random(start.seed)`, and let nothing depend on time or on the order of a set.
    """
    first, second = await subject.played(hash_seed="1"), await subject.played(hash_seed="2")
    other = [(one, two) for one, two in zip(first, second, strict=True) if one != two]
    shown = "; ".join(f"{_short(one)} and {_short(two)}" for one, two in other[:2])
    require(not other, f"{len(other)} episodes differ: {shown}")


@ENVIRONMENT.check
async def observations_leave_room_for_responses(subject: EnvironmentSubject) -> None:
    """No observation is empty, and none is longer than 100,000 characters or tokens.

    The model continues behind what it reads: an empty observation asks it nothing, and a long one takes the tokens of
    its own turns, which `spec.rollout.sampling.maxTokens` bounds together.
    """
    for played in await subject.played(hash_seed="1"):
        for observation in played.observations:
            if observation is None:
                continue
            size = sum(map(len, _contents(observation)))
            require(0 < size <= 100_000, f"an observation has {size} characters or tokens")


def _contents(observation: EncodedObservation) -> list[Sequence[object]]:
    messages = [str(message.get("content", "")) for message in observation.messages or ()]
    return [observation.text or "", observation.tokens or (), *messages]


def _short(played: PlayedEpisode) -> str:
    said = [
        None if observation is None else observation.text or observation.tokens or observation.messages
        for observation in played.observations
    ]
    return f"{str(said)[:80]} with {played.fault or f'{played.score:g}'}"
