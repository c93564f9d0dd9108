"""`Environment`: what answers the model, turn by turn, until an episode ends."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class EpisodeStart:
    """What an episode begins with.

    Attributes:
        prompt: number of the prompt in the job's data.
        held_out: whether that number is of the held-out prompts, all sets of which are numbered together.
        text: the rendered prompt, which the model has read.
        item: the prompt's data item.
        seed: the same for all siblings of a group and for every attempt: they are to play the same game.
        max_turns: responses of the model at most.
    """

    prompt: int
    held_out: bool
    text: str
    item: Mapping[str, Any]
    seed: int
    max_turns: int


@dataclass(frozen=True, slots=True)
class ModelTurn:
    """A response of the model.

    Attributes:
        text: without special tokens.
        tokens: as the engine made them, special tokens included.
        truncated: whether it was cut off, because the episode has no tokens left.
        context_tokens: how many tokens the model has read before it.
    """

    text: str
    tokens: Sequence[int]
    truncated: bool
    context_tokens: int = 0


@dataclass(frozen=True, slots=True)
class TurnObservation:
    """What the model reads before its next response; exactly one of the fields is given.

    Attributes:
        text: appended as it is.
        messages: each with `role` and `content`, perhaps with `name`, `tool_calls` and `tool_call_id`; rendered by the
            model's chat template, which then begins the model's next message.
        tokens: token ids, appended as they are.
        tools: with messages: the tools that the chat template tells the model of, as JSON schemas of functions.
    """

    text: str | None = None
    messages: Sequence[Mapping[str, Any]] | None = None
    tokens: Sequence[int] | None = None
    tools: Sequence[Mapping[str, Any]] | None = None


class Episode(Protocol):
    """One episode. Its calls come one after the other, and each may be awaited for `timeoutSeconds`."""

    async def react(self, turn: ModelTurn) -> TurnObservation | None:
        """React to a response of the model: what the model reads next; None ends the episode.

        Raises:
            BaseException: anything; the attempt has failed, and the episode is opened again with the same seed.
        """

    async def score(self, *, truncated: bool) -> float:
        """Score the episode, which is over: a number of at most `LARGEST_SCORE`, positive or negative.

        Args:
            truncated: whether turns or tokens ran out before the environment ended it.

        Raises:
            BaseException: anything, as in `react`.
        """


class ObservingEpisode(Episode, Protocol):
    """An episode whose environment speaks first: of an `Environment` with `observes_first = True`."""

    async def begin(self) -> TurnObservation:
        """What the model reads before its first response, in place of the prompt's text.

        Raises:
            BaseException: anything, as in `react`.
        """


class Environment(Protocol):
    """Opens episodes, any number at once; called with the environment's options by keyword, a class of these makes it.

    With an attribute `observes_first = True`, its episodes are `ObservingEpisode`s.

    Each episode is opened in a process of its own, with an instance of its own. What it prints goes to the log.
    """

    async def open(self, start: EpisodeStart) -> Episode:
        """Open an episode. The same start must open an equal episode, in any process.

        Raises:
            BaseException: anything, as in `Episode.react`.
        """
