"""Checks what the trainer of a simulated job with an environment was given, and what its ledger says of episodes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import pairwise

from episodes import POINTS, REASONS, Games, Prompt

from rljob_core.config import JobConfig
from rljob_core.ports import TrainingSample
from rljob_core.records import GroupAborted, Record, SiblingReset
from rljob_core.trajectory import FinishReason, Segment, Source, VersionSpan, group_of, prompt_of_group
from rljob_runtime.environments.messages import ENVIRONMENT_REASONS, LOST, NOT_STARTED

Payload = tuple[str, int, str]
"""Of a trajectory: its id, its attempt and its digest."""


class Refuted(AssertionError):
    """An invariant does not hold."""


def require(holds: bool, what: str) -> None:
    """Raise `Refuted` unless `holds` is true."""
    if not holds:
        raise Refuted(what)


class FedEpisodes:
    """The episodes that trainers were given.

    Args:
        config: of the job.
        games: of the job.
    """

    def __init__(self, config: JobConfig, games: Games) -> None:
        self._config, self._games = config, games
        self._numbers: dict[Payload, int] = {}

    def check(self, sample: TrainingSample) -> None:
        """Check what a trainer is given.

        Raises:
            Refuted: it is not one episode from its start to its end, with the score and the versions of all of it.
        """
        trajectory, name = sample.trajectory, f"{sample.trajectory.id}@{sample.trajectory.attempt}"
        first, *behind = trajectory.segments
        turns = [s for s in behind if s.source is Source.MODEL]
        observed = [s for s in behind if s.source is Source.ENVIRONMENT]
        require(
            first.source is Source.PROMPT and len(turns) + len(observed) == len(behind), f"[segments] {name}"
        )
        for segment in (first, *observed):
            require(not segment.loss_mask.any(), f"[masked] {name} is trained on what its model has not made")
            require(bool((segment.versions == -1).all()), f"[masked] {name}: {segment.versions}")
        for segment in turns:
            require(bool(segment.loss_mask.all()), f"[masked] a turn of {name} is not trained on")
        versions = [int(version) for turn in turns for version in turn.versions]
        require(
            versions == sorted(versions), f"[older] {name} has a turn older than the one before: {versions}"
        )
        whole = VersionSpan(versions[0], versions[-1])
        require(trajectory.span == whole, f"[span] {name} is of {whole}, not {trajectory.span}")
        most = self._config.spec.rollout.sampling.max_tokens
        require(sum(len(s.tokens) for s in behind) <= most, f"[room] {name} has more than {most} tokens")
        require(trajectory.score is not None, f"[score] {name} has none")
        require(sample.item.reward == trajectory.score, f"[score] {name} has the reward {sample.item.reward}")
        self._check_game(sample, name, turns, observed)

    def _check_game(
        self, sample: TrainingSample, name: str, turns: list[Segment], observed: list[Segment]
    ) -> None:
        """The score is of the very game whose tokens are trained on; and no game is two attempts'."""
        trajectory = sample.trajectory
        assert trajectory.score is not None
        number = int(trajectory.score * POINTS)
        game = self._games.played[number]
        self._numbers[trajectory.id, trajectory.attempt, sample.item.digest] = number
        require(
            game.start.prompt == trajectory.prompt and not game.start.held_out, f"[score] of {game.start}"
        )
        # The model did not read the last one, if it had no turn left.
        told = game.turns, [said for said in game.observations[: len(turns) - 1] if said]
        fed = [tuple(map(int, s.tokens)) for s in turns], [tuple(map(int, s.tokens)) for s in observed]
        require(told == fed, f"[score] {name} was scored for {told}, and trained on {fed}")
        require(game.truncated is not game.ended, f"[end] {name}: {game.truncated}, {game.ended}")
        out_of_room = trajectory.finish is FinishReason.LENGTH
        require(not (out_of_room and game.ended), f"[end] {name} ended by {trajectory.finish}")
        assert game.scored is not None
        lasted, most = game.scored - game.opened, self._games.episode_seconds
        require(lasted <= most, f"[deadline] {name} lasted {lasted:.1f} s, where {most} are allowed")
        self._games.happened["episodes fed"] += 1
        self._games.happened["turns fed"] += len(turns)
        span = trajectory.span
        self._games.happened["episodes of several versions"] += span.min < span.max
        between = any(a.versions[-1] < b.versions[0] for a, b in pairwise(turns))
        self._games.happened["swaps between turns"] += between
        self._games.happened["swaps in turns"] += any(t.versions[0] < t.versions[-1] for t in turns)

    def check_whole(self, consumed: Sequence[Payload]) -> None:
        """Check all that versions were made of.

        Raises:
            Refuted: one game counts for two trajectories, a payload counts that no trainer saw, or poison does.
        """
        unseen = [payload for payload in consumed if payload not in self._numbers]
        require(not unseen, f"[score] nobody saw what was trained: {unseen}")
        times = Counter(self._numbers[payload] for payload in consumed)
        require(
            max(times.values(), default=1) == 1, f"[once] a game was trained twice: {times.most_common(2)}"
        )
        poisoned = self._games.faults.poisoned_group
        groups = [group_of(trajectory) for trajectory, _, _ in consumed]
        require(poisoned not in groups, f"[poison] {poisoned} was trained")


def check_failures(games: Games, records: Iterable[Record]) -> None:
    """Each attempt that has failed through its environment is one that the environment, or its server's end, harmed.

    Raises:
        Refuted: another one has failed; or one has, and is not counted.
    """
    failed: Counter[Prompt] = Counter()
    lost: Counter[Prompt] = Counter()
    for record in records:
        if not isinstance(record, SiblingReset) or record.reason not in ENVIRONMENT_REASONS:
            continue
        prompt = (False, prompt_of_group(group_of(record.trajectory)))
        games.happened[f"{record.reason}{'' if record.failure else ', not its fault'}"] += 1
        failed[prompt] += record.failure
        lost[prompt] += record.failure and record.reason == LOST
        is_fault = record.reason not in {LOST, NOT_STARTED}
        require(record.failure or not is_fault, f"[counted] {record} is a failure")
        require(not (record.failure and record.reason == NOT_STARTED), f"[counted] {record} is none")
    for prompt, times in failed.items():
        require(times <= games.harm[prompt], f"[blamed] {prompt}: {times} times, of {games.harm[prompt]}")
        require(lost[prompt] <= games.killed[prompt], f"[blamed] {prompt} for the end of its server")


def explains(games: Games, record: GroupAborted, *, others: int, most: int) -> bool:
    """Whether its environment is a reason to give a group up.

    Args:
        games: of the job.
        record: that gives the group up.
        others: failures that attempts at it may have for other reasons.
        most: failures with which it is given up.

    Raises:
        Refuted: it is poisoned, and was given up for another reason.
    """
    harm = games.harm[False, prompt_of_group(record.group)]
    if record.group == games.faults.poisoned_group:
        reason = REASONS[games.faults.misdeed.kind]
        named = reason in record.causes.values()
        require(harm > 0 and (named or others > 0 or games.killed.total() > 0), f"[poison] {record}")
        games.happened["poisoned game given up"] += 1
        return True
    games.happened["game given up by chance"] += harm > 0 and harm + others >= most
    return harm > 0 and harm + others >= most
