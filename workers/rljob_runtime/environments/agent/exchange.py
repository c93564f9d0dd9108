"""Passes the requests of an agent to its episode, one after the other, and the model's turns back."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any

from rljob_core.ports import ModelTurn, TurnObservation
from rljob_runtime.environments.agent.chat_requests import ChatMessage, ChatRequest, ChatRequestRefused
from rljob_runtime.environments.agent.completions import Completion
from rljob_runtime.environments.agent.tool_calls import Parser

#: Seconds in which this process notices that a client has closed its connection, on a busy machine, too.
_NOTICED_SECONDS = 10.0


class HistoryRewritten(Exception):
    """The agent has changed what was said before: by compaction, or with a second conversation."""


class Conversation:
    """What an agent and the model have said to each other in an episode, in order.

    A trajectory is one sequence of tokens, so each request may only append: its messages begin with those of the last
    one and the model's answer. What the model has said is compared, but never rendered again.
    """

    def __init__(self) -> None:
        self._said: list[ChatMessage] = []
        self._asked: ChatRequest | None = None

    def repeats(self, request: ChatRequest) -> bool:
        """Whether a request asks just what the last one has asked."""
        asked = self._asked
        return asked is not None and request.tools == asked.tools and _same(asked.messages, request.messages)

    def ask(self, request: ChatRequest) -> Sequence[ChatMessage]:
        """Note a request; the messages that are new in it.

        Raises:
            HistoryRewritten: it does not begin with what was said before.
            ChatRequestRefused: it has nothing to which the model could respond.
        """
        if self._asked is not None and request.tools != self._asked.tools:
            raise HistoryRewritten("the tools are not those of the request before")
        for index, (before, now) in enumerate(zip(self._said, request.messages, strict=False)):
            if not _same([before], [now]):
                raise HistoryRewritten(
                    f"messages[{index}], of the {before['role']}, is not what it was in the request before"
                )
        new = request.messages[len(self._said) :]
        if len(request.messages) < len(self._said):
            raise HistoryRewritten(
                f"it has {len(request.messages)} messages, and there were {len(self._said)} before"
            )
        if not new or new[-1]["role"] == "assistant":
            raise ChatRequestRefused(
                400,
                "invalid_request_error",
                "the last message is the assistant's: add one behind it",
                param="messages",
            )
        self._asked = request
        self._said = list(request.messages)
        return new

    def answer(self, message: ChatMessage) -> None:
        """Note the model's answer, as the agent gets it."""
        self._said.append(message)


def _same(before: Sequence[ChatMessage], now: Sequence[ChatMessage]) -> bool:
    return [_compared(m) for m in before] == [_compared(m) for m in now]


def _compared(message: ChatMessage) -> dict[str, Any]:
    """What must be the same in a message that is sent again: clients strip what the model says."""
    if message["role"] != "assistant":
        return dict(message)
    calls = [
        (call["id"], call["function"]["name"], call["function"]["arguments"])
        for call in message.get("tool_calls", ())
    ]
    return {"role": "assistant", "content": message["content"].strip(), "tool_calls": calls}


class TurnExchange:
    """The turns of one episode.

    Args:
        model: name of the model.
        parser: finds the tool calls in what it says.
        plain_text: whether the model reads the messages' contents alone, one after the other, and of no tools.

    A client whose connection breaks while it waits may ask the same again: it gets the turn that it has waited for.
    """

    def __init__(self, model: str, parser: Parser, *, plain_text: bool = False) -> None:
        self._model = model
        self._parser = parser
        self._plain_text = plain_text
        self._conversation = Conversation()
        self._asked: asyncio.Future[TurnObservation] = asyncio.get_running_loop().create_future()
        self._answer: asyncio.Future[Completion] | None = None
        self._waiting = 0
        self._unattended = asyncio.Event()
        self._last: Completion | None = None
        self._delivered = True
        self._turns = 0
        self._over: ChatRequestRefused | None = None

    async def complete(self, request: ChatRequest, *, retried: bool) -> Completion:
        """The model's answer to a request.

        Args:
            request: of the agent.
            retried: whether its client says that it has sent it before.

        Raises:
            ChatRequestRefused: there is none.
        """
        if self._over is not None:
            raise self._over
        if self._answer is None:
            repeated = self._last is not None and self._conversation.repeats(request)
            if repeated and self._last is not None and (retried or not self._delivered):
                return self._last
            self._ask(request)
        elif not self._conversation.repeats(request) or not (retried or await self._is_unattended()):
            message = "another request of this episode waits for its answer: send one after the other"
            raise ChatRequestRefused(400, "request_out_of_turn", message)
        if self._answer is None:  # it came meanwhile
            return await self.complete(request, retried=retried)
        self._waiting += 1
        self._unattended.clear()
        try:
            return await asyncio.shield(self._answer)
        finally:
            self._waiting -= 1
            if not self._waiting:
                self._unattended.set()

    async def _is_unattended(self) -> bool:
        """Whether nobody waits for the answer any more: a connection that is broken may not be noticed yet."""
        try:
            async with asyncio.timeout(_NOTICED_SECONDS):
                await self._unattended.wait()
        except TimeoutError:
            return False
        return True

    def _ask(self, request: ChatRequest) -> None:
        try:
            new = self._conversation.ask(request)
        except HistoryRewritten as rewritten:
            message = f"{rewritten}; a trajectory has no branches yet, and this attempt at it has failed"
            self.end(ChatRequestRefused(400, "history_rewritten", message, param="messages"))
            self._asked.set_exception(HistoryRewritten(message))
            assert self._over is not None  # noqa: S101
            raise self._over from rewritten
        self._answer = asyncio.get_running_loop().create_future()
        if self._plain_text:
            self._asked.set_result(TurnObservation(text="".join(message["content"] for message in new)))
        else:
            self._asked.set_result(TurnObservation(messages=new, tools=request.tools))

    async def next_request(self) -> TurnObservation:
        """Wait for the next request; what the model has to read of it.

        Raises:
            HistoryRewritten: it does not append to what was said before.
        """
        observation = await asyncio.shield(self._asked)
        self._asked = asyncio.get_running_loop().create_future()
        return observation

    def answer(self, turn: ModelTurn) -> None:
        """Answer the request that waits with a turn of the model's."""
        assert self._answer is not None  # noqa: S101  every turn follows a request
        self._turns += 1
        parsed = self._parser(turn.text)
        completion = Completion(self._turns, self._model, int(time.time()), turn, parsed)
        self._conversation.answer(completion.message)
        self._last, self._delivered = completion, False
        answer, self._answer = self._answer, None
        answer.set_result(completion)

    def deliver(self, completion: Completion) -> None:
        """Note that a client has got an answer."""
        self._delivered = self._delivered or completion is self._last

    def end(self, refusal: ChatRequestRefused) -> None:
        """Refuse the request that waits, and all further ones."""
        self._over = refusal
        if self._answer is not None:
            self._answer.set_exception(refusal)
            self._answer.exception()  # perhaps nobody waits for it
            self._answer = None
