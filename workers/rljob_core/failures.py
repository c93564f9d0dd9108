"""Why a job fails, as a value: who is at fault, what to do, what is tried again, all by the reason.

`docs/troubleshooting.md` has the table; `rljob run` prints it, and on a cluster the condition `Failed` has it. Nothing
reads the detail but people.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Annotated

from pydantic import TypeAdapter

from rljob_core import worker_protocol
from rljob_core.record_fields import OMITTED_IF_NONE


class Reason(StrEnum):
    """Why a job, or a process of it, has failed. A condition's reason has the same word."""

    INVALID_SPEC = "InvalidSpec"
    RESOURCE_MISSING = "ResourceMissing"
    DEADLINE_EXCEEDED = "DeadlineExceeded"

    REWARD_RAISED = "RewardRaised"
    REWARD_OUT_OF_RANGE = "RewardOutOfRange"
    REWARD_TIMEOUT = "RewardTimeout"
    REWARD_CRASHED = "RewardCrashed"
    REWARD_INVALID = "RewardInvalid"
    ENVIRONMENT_RAISED = "EnvironmentRaised"
    ENVIRONMENT_TIMEOUT = "EnvironmentTimeout"
    ENVIRONMENT_CRASHED = "EnvironmentCrashed"
    ENVIRONMENT_INVALID = "EnvironmentInvalid"
    ENVIRONMENT_LOST = "EnvironmentLost"
    ENVIRONMENT_NOT_STARTED = "EnvironmentNotStarted"
    EPISODE_TIMEOUT = "EpisodeTimeout"
    PAYLOAD_CORRUPT = "PayloadCorrupt"
    PROMPT_UNSENDABLE = "PromptUnsendable"
    PROMPT_EXHAUSTED = "PromptExhausted"
    """Engines failed at prompts until their attempts were used up."""

    NOT_FINITE = "NotFinite"
    OUT_OF_MEMORY = "OutOfMemory"
    BACKOFF_LIMIT_EXCEEDED = "BackoffLimitExceeded"
    WEIGHTS_DAMAGED = "WeightsDamaged"
    CHECKPOINT_DAMAGED = "CheckpointDamaged"
    LEDGER_DAMAGED = "LedgerDamaged"

    STORAGE_REFUSED = "StorageRefused"
    PERMISSION_DENIED = "PermissionDenied"
    STREAMS_UNAVAILABLE = "StreamsUnavailable"
    STREAMS_FULL = "StreamsFull"
    STREAM_TOO_SMALL = "StreamTooSmall"
    PAYLOADS_LOST = "PayloadsLost"

    NO_PROGRESS = "NoProgress"
    """Processes of a role end again and again."""
    LIMIT_REACHED = "LimitReached"

    FENCED = "Fenced"
    STOPPED = "Stopped"
    CRASHED = "Crashed"
    UNKNOWN = "Unknown"

    @property
    def exit_code(self) -> int:
        """With which a process ends for this reason: what the operator then does, `worker_protocol` says."""
        return _EXIT_CODES.get(self, worker_protocol.EXIT_USER_ERROR)

    @property
    def ends_job(self) -> bool:
        """Whether another attempt would fail, too: the job ends. Otherwise the process is started again."""
        return self.exit_code == worker_protocol.EXIT_USER_ERROR

    @classmethod
    def of(cls, word: str, *, otherwise: Reason) -> Reason:
        """The reason that this word is, or another one: other programs may say anything."""
        return cls(word) if word in _WORDS else otherwise

    @classmethod
    def of_attempts(cls, word: str) -> Reason:
        """The reason of a job whose prompts were given up because attempts failed for this one.

        Engines are plug-ins, and have words of their own.
        """
        return cls(word) if word in _OF_ATTEMPTS else cls.PROMPT_EXHAUSTED


_WORDS = frozenset(Reason)
OF_REWARDS = frozenset(reason for reason in Reason if reason.startswith("Reward"))
_OF_ENVIRONMENTS = frozenset(r for r in Reason if r.startswith("Environment")) | {Reason.EPISODE_TIMEOUT}
_OF_ATTEMPTS = OF_REWARDS | _OF_ENVIRONMENTS | {Reason.PROMPT_UNSENDABLE, Reason.PAYLOAD_CORRUPT}
_EXIT_CODES = {
    **dict.fromkeys(
        (Reason.RESOURCE_MISSING, Reason.STREAMS_UNAVAILABLE, Reason.STREAMS_FULL, Reason.STORAGE_REFUSED),
        worker_protocol.EXIT_UNAVAILABLE,
    ),
    Reason.FENCED: worker_protocol.EXIT_FENCED,
    Reason.STOPPED: worker_protocol.EXIT_STOPPED,
    Reason.CRASHED: worker_protocol.EXIT_CRASHED,
    Reason.LIMIT_REACHED: worker_protocol.EXIT_CRASHED,
}


@dataclass(frozen=True, slots=True)
class Advice:
    """What a reason means for people.

    Attributes:
        at_fault: who is.
        remedy: what to do before the run is continued.
        log: the role whose log says more, or `NATS_SERVER`; empty for all of them.
        elsewhere: what to do before another job takes the place of one that has failed on a cluster, where a failed job
            is not continued; empty if that is the remedy, too.
    """

    at_fault: str
    remedy: str
    log: str = ""
    elsewhere: str = ""


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a job, or a process of it, has failed, as it crosses every border.

    Attributes:
        reason: all that is decided follows from it.
        detail: for people.
        from_version: the newest version of the weights that the job can go back to, if it cannot continue otherwise.
    """

    reason: Reason
    detail: str
    from_version: Annotated[int | None, OMITTED_IF_NONE] = None

    @property
    def advice(self) -> Advice:
        """Who is at fault, and what to do."""
        return ADVICE[self.reason]

    @property
    def flags(self) -> list[str]:
        """What the next `rljob run` needs besides `--resume`."""
        return [] if self.from_version is None else ["--from-version", str(self.from_version)]

    def __str__(self) -> str:
        return f"{self.reason}: {self.detail}"

    def said_by(self, role: str) -> Failure:
        """The failure with the role that it comes from."""
        return replace(self, detail=f"{role}: {self.detail}")


_FAILURE: TypeAdapter[Failure] = TypeAdapter(Failure)


def termination_message(failure: Failure) -> str:
    """The failure as JSON, with a detail that is cut where it would be too long for a termination message."""
    detail = failure.detail.encode(errors="replace")
    while True:
        text = _FAILURE.dump_json(replace(failure, detail=detail.decode(errors="ignore")))
        over = len(text) - worker_protocol.LONGEST_MESSAGE
        if over <= 0:
            return text.decode()
        detail = detail[: -max(over // 6, 1)]  # the most that a byte becomes in JSON is six


def failure_in(message: str) -> Failure | None:
    """The failure that a termination message is; None if it is anything else."""
    try:
        return _FAILURE.validate_json(message)
    except ValueError:
        return None


def words_of(message: str) -> str:
    """A termination message for people."""
    failure = failure_in(message)
    return message if failure is None else failure.detail


NATS_SERVER = "nats-server"
"""The log of the NATS server, which is no role of the job."""

_REWARD = Advice("your reward function", "fix the function that the message names", "reward")
_ENVIRONMENT = Advice("your environment", "fix the environment as the message says", "rollout")
_INPUT = Advice("your manifest, or what it names", "correct the field that the message names")
_SERVER = Advice("the NATS server, or its disk", "start or repair it; its log says why", NATS_SERVER)
_TRAINING = Advice(
    "what was trained on, or how",
    "look at the trajectories that the message names, or lower spec.algorithm.learningRate, kl or microBatchTokens",
    "trainer",
)
_UNKNOWN = Advice(
    "not clear: perhaps rljob itself", "read the logs; if it is a mistake of rljob, report it with them"
)

ADVICE = {
    **dict.fromkeys(OF_REWARDS, _REWARD),
    **dict.fromkeys(_OF_ENVIRONMENTS, _ENVIRONMENT),
    Reason.PAYLOAD_CORRUPT: _SERVER,
    Reason.PROMPT_UNSENDABLE: Advice(
        "your data",
        "mend the rows of the prompts that the message names, each in its place: the number of rows must not change",
        "coordinator",
        elsewhere="mend or remove the rows of the prompts that the message names",
    ),
    Reason.PROMPT_EXHAUSTED: Advice(
        "the engine, or the prompts that it cannot answer",
        "read what the engine said last, then change spec.rollout.engine, or mend the rows of those prompts in place",
        "rollout",
        elsewhere="read what the engine said last, then change spec.rollout.engine, or mend or remove the rows of "
        "those prompts",
    ),
    Reason.NOT_FINITE: _TRAINING,
    Reason.OUT_OF_MEMORY: _TRAINING,
    Reason.BACKOFF_LIMIT_EXCEEDED: Advice(
        "the trainer's process, which crashes", "read what it said last: options, memory, devices", "trainer"
    ),
    Reason.WEIGHTS_DAMAGED: Advice(
        "the storage of the weights, which has lost or altered what it held",
        "look after the disk; the command below goes back to the newest version that verifies",
        "trainer",
        elsewhere="look after the storage that spec.weights.uri names, or the NATS server's",
    ),
    Reason.CHECKPOINT_DAMAGED: Advice(
        "the storage of the checkpoints, which has lost or altered what it held",
        "look after the disk, and remove the checkpoint that the message names: the optimizer continues without it",
        "trainer",
        elsewhere="look after the storage that spec.trainer.checkpoint.uri names",
    ),
    Reason.INVALID_SPEC: _INPUT,
    Reason.RESOURCE_MISSING: _INPUT,
    Reason.DEADLINE_EXCEEDED: Advice(
        "your manifest, by its time limit", "raise spec.activeDeadlineSeconds, or remove it"
    ),
    Reason.STORAGE_REFUSED: Advice(
        "the disk of this machine", "free space on it, or repair it; what the folder held is still there"
    ),
    Reason.PERMISSION_DENIED: Advice("the permissions of that path", "let this user read and write it"),
    Reason.STREAMS_UNAVAILABLE: _SERVER,
    Reason.PAYLOADS_LOST: _SERVER,
    Reason.STREAMS_FULL: _SERVER,
    Reason.STREAM_TOO_SMALL: Advice(
        "the storage of the NATS server or its account, which is smaller than one step",
        "give it more, or lower spec.rollout.sampling.maxTokens",
        "coordinator",
    ),
    Reason.LEDGER_DAMAGED: Advice(
        "the ledger, which was damaged, or which another release or another program wrote",
        "restore the folder nats from a copy; `rljob audit` says what is left",
        elsewhere="look after the NATS server's disk; the job's newest backup can be restored as another job",
    ),
    Reason.NO_PROGRESS: Advice(
        "what the processes of that role need, or what they do: they end again and again",
        "remove the cause that the message quotes: a field, a package, a file, memory, a server that does not answer",
    ),
    Reason.LIMIT_REACHED: Advice(
        "a limit of this machine or session, which is used up",
        "raise the limit that the message names, or end what uses it up",
    ),
    Reason.FENCED: _UNKNOWN,
    Reason.STOPPED: _UNKNOWN,
    Reason.CRASHED: _UNKNOWN,
    Reason.UNKNOWN: _UNKNOWN,
}
