"""What an agent and the model have said to each other in an episode, to which each request may only append.

A trajectory is one sequence of tokens. So the messages of a request must begin with those of the last one and the
model's answer, and what is new is all behind them. What the model has said is compared, but never rendered again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rljob_runtime.environments.agent.chat_requests import ChatMessage, ChatRequest, ChatRequestRefused


class HistoryRewritten(Exception):
    """The agent has changed what was said before: by compaction, or with a second conversation."""


class Conversation:
    """The messages of an episode, in order."""

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
