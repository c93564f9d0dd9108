"""The model's answers as OpenAI's chat completions write them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from rljob_core.ports import ModelTurn
from rljob_runtime.environments.agent.chat_requests import ChatMessage
from rljob_runtime.environments.agent.tool_calls import ParsedAnswer


@dataclass(frozen=True, slots=True)
class Completion:
    """One answer of the model.

    Attributes:
        number: of the response in its episode.
        model: name of the model.
        created: seconds since 1970.
        turn: the response.
        parsed: the same, with its tool calls.
    """

    number: int
    model: str
    created: int
    turn: ModelTurn
    parsed: ParsedAnswer

    @property
    def message(self) -> ChatMessage:
        """The answer as later requests repeat it, with arguments as objects."""
        calls = [
            {
                "id": self._id(index),
                "type": "function",
                "function": {"name": c.name, "arguments": c.arguments},
            }
            for index, c in enumerate(self.parsed.calls)
        ]
        message: dict[str, Any] = {"role": "assistant", "content": self.parsed.text}
        return message | ({"tool_calls": calls} if calls else {})

    @property
    def finish_reason(self) -> str:
        """Why it ends."""
        if self.turn.truncated:
            return "length"
        return "tool_calls" if self.parsed.calls else "stop"

    @property
    def whole(self) -> Mapping[str, Any]:
        """The answer to a request that does not stream."""
        calls = self._calls()
        message = {"role": "assistant", "content": self._content, "refusal": None}
        choice = {
            "index": 0,
            "message": message | ({"tool_calls": calls} if calls else {}),
            "logprobs": None,
            "finish_reason": self.finish_reason,
        }
        return self._head("chat.completion") | {"choices": [choice], "usage": self._usage()}

    def events(self, *, usage: bool) -> Iterator[bytes]:
        """The answer as server-sent events.

        Args:
            usage: whether to end with the numbers of tokens.
        """
        calls = [call | {"index": index} for index, call in enumerate(self._calls())]
        yield self._event({"role": "assistant", "content": ""})
        if self.parsed.text:
            yield self._event({"content": self.parsed.text})
        if calls:
            yield self._event({"tool_calls": calls})
        yield self._event({}, self.finish_reason)
        if usage:
            yield _framed(self._head("chat.completion.chunk") | {"choices": [], "usage": self._usage()})
        yield b"data: [DONE]\n\n"

    @property
    def _content(self) -> str | None:
        return self.parsed.text or (None if self.parsed.calls else "")

    def _calls(self) -> list[dict[str, Any]]:
        return [
            {
                "id": self._id(index),
                "type": "function",
                "function": {"name": call.name, "arguments": json.dumps(call.arguments, ensure_ascii=False)},
            }
            for index, call in enumerate(self.parsed.calls)
        ]

    def _id(self, index: int) -> str:
        return f"call_{self.number}_{index + 1}"  # the same in every attempt

    def _head(self, kind: str) -> dict[str, Any]:
        return {"id": f"chatcmpl-{self.number}", "object": kind, "created": self.created, "model": self.model}

    def _usage(self) -> Mapping[str, int]:
        read, made = self.turn.context_tokens, len(self.turn.tokens)
        return {"prompt_tokens": read, "completion_tokens": made, "total_tokens": read + made}

    def _event(self, delta: Mapping[str, Any], finish: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
        return _framed(self._head("chat.completion.chunk") | {"choices": [choice]})


def _framed(event: Mapping[str, Any]) -> bytes:
    return b"data: " + json.dumps(event).encode() + b"\n\n"
