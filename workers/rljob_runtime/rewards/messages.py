"""What the reward worker and the scoring server say to each other over a Unix socket.

The server and its processes run code that nobody has reviewed, so trust has one direction: the server unpickles what
the worker sends, and the worker checks what the server sends as it would check a stranger's.

| from | frame | bytes, at most |
|---|---|---|
| server | a greeting, `GREETING` | 64 |
| worker | `ScoringSetup`, pickled | 64 MiB |
| server | `SetupReply`, as JSON | 16 KiB |
| worker | number and `ScoringJob`, pickled: any number of these frames, in any order | 64 MiB |
| server | `ScoringReply`, as JSON: one for each job, in any order | 16 KiB |

Frames are those of `rljob_runtime.process.frames`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, ConfigDict, Field, TypeAdapter, with_config

from rljob_core.failures import OF_REWARDS, Failure, Reason
from rljob_core.ports import LARGEST_SCORE
from rljob_core.spec import DataSpec
from rljob_core.trajectory import FinishReason

GREETING = b"rljob-scoring-2"
LARGEST_REPLY, LARGEST_REQUEST = 16 << 10, 64 << 20

_LONGEST_ERROR, _LONGEST_MESSAGE = 600, 4000
_STRICT = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)


# ------------------------------------------------------------------------------------------------ from the worker


@dataclass(frozen=True, slots=True)
class ItemsSetup:
    """Where the items of some answers come from.

    Attributes:
        path: the manifest's field that describes the data, for errors.
        generated: the data, if the scoring processes generate the items; None if each `ScoringJob` brings its own.
        first: the item with index 0, if each job brings its own.
    """

    path: str
    generated: DataSpec | None = None
    first: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class ScoringSetup:
    """What a pool of scoring processes needs to know of the job.

    Attributes:
        functions: `spec.reward.functions`.
        timeout_seconds: `spec.reward.timeoutSeconds`.
        training: items of the training's answers.
        held_out: items of the evaluations' answers.
        network: `spec.reward.network`.
        workers: number of processes; None for the pool's own choice.
    """

    functions: tuple[str, ...]
    timeout_seconds: float
    training: ItemsSetup
    held_out: ItemsSetup
    network: bool = False
    workers: int | None = None


@dataclass(frozen=True, slots=True)
class ScoringJob:
    """An answer to score.

    Attributes:
        prompt: index of its item.
        held_out: whether that index is of the evaluation's data.
        completion: the response as text.
        item: its item; None if the scoring processes generate it from the index.
        finish: why the response ended.
    """

    prompt: int
    held_out: bool
    completion: str
    item: dict[str, Any] | None = None
    finish: FinishReason = FinishReason.STOP


# ------------------------------------------------------------------------------------------------ from the server


@dataclass(frozen=True, slots=True)
class ScoringOutcome:
    """The score of an answer and what it is the sum of; or why it has none."""

    reward: float = 0.0
    parts: dict[str, float] = field(default_factory=dict)
    failure: Failure | None = None


def _of_functions(reason: Reason | None) -> Reason | None:
    if reason is not None and (reason not in OF_REWARDS or reason is Reason.REWARD_INVALID):
        raise ValueError("no reason for which functions fail")
    return reason


SetupState = Literal["ready", "refused", "failed", "unable"]


@with_config(_STRICT)
@dataclass(frozen=True, slots=True)
class SetupReply:
    """Whether the functions can score.

    Attributes:
        state: `ready`; `refused` if the spec is wrong; `failed` if the processes die while they load; `unable` if the
            machine lacks what they need.
        path: the manifest's field that is wrong.
        message: what is wrong.
    """

    state: SetupState
    path: Annotated[str, Field(max_length=_LONGEST_MESSAGE)] = ""
    message: Annotated[str, Field(max_length=_LONGEST_MESSAGE)] = ""


@with_config(_STRICT)
@dataclass(frozen=True, slots=True)
class ScoringReply:
    """The outcome of one job.

    Attributes:
        number: the job's.
        scores: one for each function, in their order; empty if the functions have failed.
        reason, detail: why they have; empty otherwise.
    """

    number: int
    scores: tuple[Annotated[float, Field(ge=-LARGEST_SCORE, le=LARGEST_SCORE)], ...] = ()
    reason: Annotated[Reason | None, AfterValidator(_of_functions)] = None
    detail: Annotated[str, Field(max_length=_LONGEST_ERROR)] = ""


SETUP_REPLY: TypeAdapter[SetupReply] = TypeAdapter(SetupReply)
SCORING_REPLY: TypeAdapter[ScoringReply] = TypeAdapter(ScoringReply)


def setup_reply(state: SetupState, path: str = "", message: str = "") -> bytes:
    """A `SetupReply` as JSON, its texts cut to what the worker reads."""
    reply = SetupReply(state, _readable(path, _LONGEST_MESSAGE), _readable(message, _LONGEST_MESSAGE))
    return SETUP_REPLY.dump_json(reply)


def scoring_reply(number: int, outcome: ScoringOutcome) -> bytes:
    """An outcome as JSON, its error cut to what the worker reads."""
    if (failure := outcome.failure) is None:
        return SCORING_REPLY.dump_json(ScoringReply(number, tuple(outcome.parts.values())))
    detail = _readable(failure.detail, _LONGEST_ERROR)
    return SCORING_REPLY.dump_json(ScoringReply(number, (), failure.reason, detail))


def _readable(text: str, length: int) -> str:
    return text[:length].encode(errors="replace").decode()
