"""What a worker, the environment server and the processes of episodes say to each other.

They talk over Unix sockets; a worker and a server in a pod of its own over TCP and TLS (`pod_keys`). The server and its
processes run code that nobody has reviewed, so trust has one direction: they unpickle what the
worker sends, and each side checks what comes from further out as it would check a stranger's.

| from | frame | bytes, at most |
|---|---|---|
| server | a greeting, `GREETING` | 64 |
| worker | `EnvironmentSetup`, pickled | 64 MiB |
| server | `EnvironmentReply`, as JSON: whether the environment loads | 1 MiB |
| worker | `EpisodeCall`, pickled: any number, one after the other for each episode | 64 MiB |
| server | `EnvironmentReply`, as JSON: one for each call but `close`, in any order | 1 MiB |
| server | `EnvironmentReply` of number 0 and reason `DRAINING`: it opens no further episode | 1 MiB |

Frames are those of `rljob_runtime.process.frames`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, ConfigDict, Field, JsonValue, TypeAdapter, with_config

from rljob_core.failures import Reason
from rljob_core.ports import LARGEST_SCORE, ModelTurn
from rljob_core.spec import LONGEST_RESPONSE

LOAD_SECONDS = 300.0
"""Seconds in which an environment must have been imported and made, in every process."""
GREETING = b"rljob-episodes-3"
LARGEST_REPLY, LARGEST_CALL = 1 << 20, 64 << 20

RAISED, TIMEOUT, CRASHED, INVALID = (
    Reason.ENVIRONMENT_RAISED,
    Reason.ENVIRONMENT_TIMEOUT,
    Reason.ENVIRONMENT_CRASHED,
    Reason.ENVIRONMENT_INVALID,
)
LOST, TOO_LONG = Reason.ENVIRONMENT_LOST, Reason.EPISODE_TIMEOUT
NOT_STARTED = Reason.ENVIRONMENT_NOT_STARTED
"""The server cannot start a process for an episode, which is not that one's fault."""
DRAINING = "EnvironmentDraining"
"""The server is about to end and opens no further episode, so that another server has to: no attempt has failed."""
REFUSED = "SpecError"
"""Reason of a reply to a setup that the spec is wrong in; its detail is the field, a line end and the message."""
ENVIRONMENT_REASONS = (RAISED, TIMEOUT, CRASHED, INVALID, LOST, TOO_LONG, NOT_STARTED)
"""Why an attempt has failed, as the ledger says it."""

_LONGEST_DETAIL = 600
_STRICT = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)

Verb = Literal["open", "react", "score", "close", "ping"]


@dataclass(frozen=True, slots=True)
class EnvironmentSetup:
    """What a server needs to know of a job.

    Attributes:
        name: `spec.rollout.environment.name`.
        options: of the environment.
        timeout_seconds: of one call.
        network: whether the environment may open network connections.
        own_loopback: whether each episode has a network of its own, with nothing but this machine's loopback in it.
    """

    name: str
    options: Mapping[str, Any]
    timeout_seconds: float
    network: bool = False
    own_loopback: bool = False


@dataclass(frozen=True, slots=True)
class EpisodeCall:
    """A call of an episode.

    Attributes:
        number: which the reply repeats.
        episode: the number of the call that has opened it.
        verb: what to do; `close` ends the episode's process, and has no reply; the server itself replies to `ping`.
        start: of `open`: an `EpisodeStart`, pickled once more. Its item may be of any class, whose code runs where it
            is loaded: only the episode's process does that.
        turn: of `react`.
        truncated: of `score`.
    """

    number: int
    episode: int
    verb: Verb
    start: bytes = b""
    turn: ModelTurn | None = None
    truncated: bool = False


_EncodedText = Annotated[str, Field(max_length=LARGEST_REPLY)]
_Token = Annotated[int, Field(ge=0, le=2**31 - 1)]


MESSAGE_FIELDS = "a message has `role` and `content`, and at most `name`, `tool_calls` and `tool_call_id`"
_TEXTS = ("role", "content", "name", "tool_call_id")


def has_message_fields(given: Mapping[str, object]) -> bool:
    """Whether an object has the fields of a message: as `MESSAGE_FIELDS` says."""
    return {"role", "content"} <= given.keys() <= {*_TEXTS, "tool_calls"}


def _message(given: dict[str, JsonValue]) -> dict[str, JsonValue]:
    if not has_message_fields(given):
        raise ValueError(MESSAGE_FIELDS)
    wrong = [name for name in _TEXTS if not isinstance(given.get(name, ""), str)]
    if wrong or not isinstance(given.get("tool_calls", []), list):
        raise ValueError(
            f"`{'`, `'.join(wrong) or 'tool_calls'}` of a message is no {'text' if wrong else 'list'}"
        )
    return given


_EncodedMessage = Annotated[dict[_EncodedText, JsonValue], AfterValidator(_message)]


@with_config(_STRICT)
@dataclass(frozen=True, slots=True)
class EncodedObservation:
    """A `TurnObservation` as JSON."""

    text: _EncodedText | None = None
    messages: tuple[_EncodedMessage, ...] | None = None
    tokens: Annotated[tuple[_Token, ...], Field(max_length=LONGEST_RESPONSE)] | None = None
    tools: tuple[dict[_EncodedText, JsonValue], ...] | None = None


@with_config(_STRICT)
@dataclass(frozen=True, slots=True)
class EnvironmentReply:
    """What has come of one call, or of the setup, whose number is 0.

    Attributes:
        number: of the call.
        observation: of `react`, None if the episode has ended; of `open`, what the model reads first, None if that is
            its prompt.
        score: of `score`.
        reason: why it failed; empty if it did not.
        detail: what happened.
        observes_first: of the setup: whether replies to `open` have an observation.
    """

    number: int
    observation: EncodedObservation | None = None
    score: Annotated[float, Field(ge=-LARGEST_SCORE, le=LARGEST_SCORE)] | None = None
    reason: Annotated[str, Field(pattern=r"^([A-Z][A-Za-z]{1,40})?$")] = ""
    detail: Annotated[str, Field(max_length=4000)] = field(default="")
    observes_first: bool = False


REPLY: TypeAdapter[EnvironmentReply] = TypeAdapter(EnvironmentReply)
OBSERVATION: TypeAdapter[EncodedObservation] = TypeAdapter(EncodedObservation)


def failure(number: int, reason: str, detail: str) -> bytes:
    """A reply that says why a call has failed, as JSON; its text is cut."""
    longest = 4000 if reason == REFUSED else _LONGEST_DETAIL
    return REPLY.dump_json(
        EnvironmentReply(number, reason=reason, detail=detail[:longest].encode(errors="replace").decode())
    )
