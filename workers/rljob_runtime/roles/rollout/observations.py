"""Turns what the model has said into text for its environment, and what the environment says into tokens.

Observations come from code that nobody has reviewed, and may be up to 1 MiB: tokenizers and chat templates handle them
in a thread, beside the event loop of the worker, and whatever they raise is the fault of one episode.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TypeVar

from rljob_core.errors import EnvironmentFailed, SpecError
from rljob_core.ports import Completed, ModelTurn
from rljob_core.trajectory import FinishReason
from rljob_core.words import error_in_words
from rljob_runtime.environments.messages import INVALID, EncodedObservation
from rljob_runtime.model.tokenizer import Tokenizer

Converted = TypeVar("Converted")

#: Characters for each token that an episode has left, in which a text nearly always has twice as many tokens.
_CHARACTERS = 16


class ObservationReader:
    """Converts between an episode's texts and the model's tokens.

    Args:
        tokenizer: of the model.
        vocabulary: number of token ids that the model has.
    """

    def __init__(self, tokenizer: Tokenizer, *, vocabulary: int) -> None:
        self._tokenizer = tokenizer
        self._vocabulary = vocabulary

    async def turn_of(self, completed: Completed, *, read: int) -> ModelTurn:
        """A response as its environment gets it.

        Args:
            completed: the response.
            read: how many tokens the model has read before it.

        Raises:
            EnvironmentFailed: the tokenizer does not decode it.
        """
        tokens = [int(token) for token in completed.tokens]
        text = await _beside("the response does not decode", lambda: self._tokenizer.decode(tokens))
        return ModelTurn(text, tokens, truncated=completed.finish is FinishReason.LENGTH, context_tokens=read)

    async def tokens_of(
        self, observation: EncodedObservation, *, last: int, room: int
    ) -> Sequence[int] | None:
        """What the model reads next; None if that leaves no token for a response.

        Args:
            observation: of its environment.
            last: the last token of the response that it answers.
            room: tokens that the episode has left.

        Raises:
            EnvironmentFailed: the model cannot read it.
        """
        if observation.tokens is not None:
            return self._checked(observation.tokens, room)

        def encoded() -> list[int] | None:
            text = observation.text or ""
            if observation.messages is not None:
                text = self._tokenizer.render_reply(observation.messages, last=last, tools=observation.tools)
            return _bounded(text, self._tokenizer.encode_piece, room)

        return await _beside("the observation does not encode", encoded)

    async def first_tokens_of(self, observation: EncodedObservation, *, room: int) -> Sequence[int]:
        """What the model reads first, in place of its prompt: at least one token.

        Args:
            observation: of its environment.
            room: tokens that its prompt and the episode have together.

        Raises:
            EnvironmentFailed: the model cannot read it, or it leaves no token for a response.
        """

        def encoded() -> list[int] | None:
            if observation.messages is None:
                return _bounded(observation.text or "", self._tokenizer.encode, room)
            chat = self._tokenizer.render_chat(observation.messages, tools=observation.tools)
            return _bounded(chat, self._tokenizer.encode_piece, room)

        if observation.tokens is not None:
            tokens = self._checked(observation.tokens, room)
        else:
            tokens = await _beside("the first observation does not encode", encoded)
        if tokens is None:
            message = f"the first observation leaves no token for a response: prompt and maxTokens are {room}"
            raise EnvironmentFailed(INVALID, message)
        if not tokens:
            raise EnvironmentFailed(INVALID, "the first observation is empty")
        return tokens

    def _checked(self, tokens: Sequence[int], room: int) -> Sequence[int] | None:
        """An environment's own tokens; None if there is no room for them."""
        if len(tokens) >= room:
            return None
        outside = next((t for t in tokens if t >= self._vocabulary), None)
        if outside is not None:
            message = f"observed token {outside}; the model's token ids are 0 to {self._vocabulary - 1}"
            raise EnvironmentFailed(INVALID, message)
        return tokens


def _bounded(text: str, encode: Callable[[str], list[int]], room: int) -> list[int] | None:
    """The tokens of a text; None if there is no room for them."""
    # A long text is not encoded to its end if its beginning has far too many tokens.
    beginning = _CHARACTERS * room
    if len(text) > beginning and len(encode(text[:beginning])) >= 2 * room:
        return None
    tokens = encode(text)
    return None if len(tokens) >= room else tokens


async def _beside(fault: str, convert: Callable[[], Converted]) -> Converted:
    """What a conversion in a thread returns.

    Raises:
        EnvironmentFailed: it raised anything; `fault` says what has failed.
    """
    try:
        return await asyncio.to_thread(convert)
    except (asyncio.CancelledError, KeyboardInterrupt, SystemExit):
        raise
    except SpecError as error:
        raise EnvironmentFailed(INVALID, error.message) from error
    except BaseException as error:  # a panic in Rust is no Exception, and a chat template may raise any
        raise EnvironmentFailed(INVALID, f"{fault}: {error_in_words(error)}") from error
