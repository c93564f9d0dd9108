"""Reads the body of a request for a chat completion, and refuses in OpenAI's words what cannot be done as asked.

What only says how to sample (`temperature`, `top_p`, `max_tokens`, `seed` and the like) is the job's to decide, in
`spec.rollout.sampling`, and ignored. What would change the meaning of the answer is refused.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

ChatMessage = Mapping[str, Any]

_ROLES = ("system", "developer", "user", "assistant", "tool")
_TEXT_PARTS = ("text", "input_text", "output_text")


class ChatRequestRefused(Exception):
    """A request that gets an error for an answer; the episode goes on.

    Args:
        status: of HTTP.
        code: a word for programs.
        message: what is wrong, and what to do.
        param: the field, if it is one's fault.
    """

    def __init__(self, status: int, code: str, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.param = param


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """A request for the model's next message.

    Attributes:
        messages: the whole chat so far; contents are texts, and arguments of tool calls are objects where they can be.
        tools: that the model may call; None if there are none.
        stream: whether the answer is wanted as server-sent events.
        stream_usage: whether these are to end with the numbers of tokens.
    """

    messages: Sequence[ChatMessage]
    tools: Sequence[Mapping[str, Any]] | None
    stream: bool
    stream_usage: bool


def read_request(body: bytes, *, model: str) -> ChatRequest:
    """A request from its body.

    Args:
        body: as it came.
        model: the only name that the model has.

    Raises:
        ChatRequestRefused: it cannot be answered.
    """
    try:
        given = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise _wrong(None, f"the body is not JSON: {error}") from error
    if not isinstance(given, dict):
        raise _wrong(None, "the body is not a JSON object")
    if given.get("model") != model:
        message = f"this episode has the model {model!r}, not {str(given.get('model'))[:100]!r}"
        raise ChatRequestRefused(404, "model_not_found", message, param="model")
    if given.get("n", 1) not in (1, None):
        raise _wrong("n", "one choice is generated for each request: leave n out")
    for name, why in _UNSUPPORTED.items():
        if given.get(name) not in _HARMLESS.get(name, ()) and given.get(name):
            raise _wrong(name, why)
    messages = given.get("messages")
    if not isinstance(messages, list) or not messages:
        raise _wrong("messages", "messages is a list of one message at least")
    options = given.get("stream_options")
    return ChatRequest(
        [_message(message, f"messages[{index}]") for index, message in enumerate(messages)],
        _tools(given.get("tools")) if given.get("tool_choice") != "none" else None,
        stream=given.get("stream") is True,
        stream_usage=isinstance(options, dict) and options.get("include_usage") is True,
    )


_UNSUPPORTED = {
    "stop": "the job's spec.rollout.sampling.stop says what ends a response: leave stop out",
    "response_format": "answers are plain text: leave response_format out",
    "logprobs": "log-probabilities go to the trainer alone: leave logprobs out",
    "functions": "write tools instead of functions",
    "function_call": "write tool_choice instead of function_call",
    "tool_choice": "the model calls tools as it likes: tool_choice is auto or none",
    "audio": "the model reads and writes text",
    "prediction": "predictions are not used: leave prediction out",
}
_HARMLESS: dict[str, tuple[object, ...]] = {
    "tool_choice": ("auto", "none"),
    "response_format": ({"type": "text"},),
}


def _wrong(param: str | None, message: str) -> ChatRequestRefused:
    return ChatRequestRefused(400, "invalid_request_error", message, param=param)


def _message(given: Any, where: str) -> ChatMessage:
    if not isinstance(given, dict) or given.get("role") not in _ROLES:
        raise _wrong(where, f"a message is an object whose role is one of {', '.join(_ROLES)}")
    message = {"role": given["role"], "content": _text(given.get("content"), where)}
    if given["role"] == "tool":
        message["tool_call_id"] = str(given.get("tool_call_id") or "")
    if isinstance(given.get("name"), str):
        message["name"] = given["name"]
    calls = given.get("tool_calls")
    if calls:
        if not isinstance(calls, list):
            raise _wrong(where, "tool_calls is a list")
        message["tool_calls"] = [_call(call, where) for call in calls]
    return message


def _text(content: Any, where: str) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise _wrong(where, "content is a text, or a list of parts")
    texts = []
    for part in content:
        if not isinstance(part, dict) or part.get("type") not in _TEXT_PARTS:
            raise _wrong(where, "the model reads text alone: every part of a content has the type `text`")
        texts.append(str(part.get("text", "")))
    return "".join(texts)


def _call(given: Any, where: str) -> Mapping[str, Any]:
    function = given.get("function") if isinstance(given, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise _wrong(where, "a tool call has a function with a name")
    arguments = function.get("arguments", "")
    if isinstance(arguments, str):
        with contextlib.suppress(ValueError, RecursionError):  # the model has written it
            arguments = json.loads(arguments)
    called = {"name": function["name"], "arguments": arguments}
    return {"id": str(given.get("id", "")), "type": "function", "function": called}


def _tools(given: Any) -> Sequence[Mapping[str, Any]] | None:
    if not given:
        return None
    if not isinstance(given, list):
        raise _wrong("tools", "tools is a list")
    for index, tool in enumerate(given):
        function = tool.get("function") if isinstance(tool, dict) and tool.get("type") == "function" else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise _wrong(f"tools[{index}]", "a tool has the type `function`, and a function with a name")
    return given
