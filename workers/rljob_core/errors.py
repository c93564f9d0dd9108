"""The errors that this project raises on purpose, in one tree.

RLJobError
├── SpecError             a field of the manifest, or a flag, is wrong; it names the field and what to write instead
│   └── ResourceMissing   what the field names does not exist, or not yet: nothing in the manifest has to change
├── ProtocolViolation     an invariant of the consistency protocol would break (a bug: never caught and ignored)
│   └── StalenessExceeded a trajectory past the bound stamped on its buffer was about to be consumed
├── Fenced                a newer writer (coordinator epoch, trainer attempt) has replaced this one
├── StopRequested         a role was asked to stop before the job was over
├── CorruptPayload        bytes from a stream do not decode (counted as a dead letter)
│   └── UnknownVersion    … because another release wrote them
├── CorruptLedger         a message of the ledger does not decode, or is another job's; readers stop there
├── BackupDamaged         a backup lacks what its index names, or holds something else in its place
├── WeightsRejected       stored weights do not match the digests in their manifest
│   └── WeightsMissing    … because they are not stored: not yet, or not any more
├── StoreUnavailable      the message store does not answer
│   └── StreamCut         … with what it had: its server lost messages that were read
├── StoreFull             the message store refuses a payload until something is consumed
├── GenerationFailed      an engine could not finish a trajectory
├── RewardFailed          a reward function raised, or returned no number
│   └── RewardOutOfRange  … or a number that no score may be
├── EnvironmentFailed     an environment raised, hung, died, or returned what it must not: its attempt has failed
├── JobFailed             the job cannot continue; the message is for the user
│   ├── CheckpointDamaged … because a checkpoint does not load, or is of another model
│   └── NotFinite         … because a step's loss or gradient is not finite
└── StorageRefused        weights or a checkpoint cannot be written until the storage is repaired

Each has the reason with which it ends a process or a job; one that has none of its own is a crash.
"""

from __future__ import annotations

import errno

from rljob_core.exhausted import limit_of
from rljob_core.failures import Failure, Reason


class RLJobError(Exception):
    """Root of the errors that this project raises on purpose."""

    reason = Reason.CRASHED
    from_version: int | None = None

    @property
    def failure(self) -> Failure:
        """The error as a value."""
        return Failure(self.reason, str(self), self.from_version)


def failure_of(error: BaseException) -> Failure:
    """The failure that an error means; of one of the system, by its number."""
    match error:
        case RLJobError() if not isinstance(error, StoreUnavailable) or not limit_of(error):
            return error.failure
        case _ if limit := limit_of(error):
            said = error.strerror if isinstance(error, OSError) else str(error)
            return Failure(Reason.LIMIT_REACHED, f"{limit}: {said}" if said else limit)
        case OSError():
            denied = error.errno in {errno.EACCES, errno.EPERM}
            return Failure(Reason.PERMISSION_DENIED if denied else Reason.STORAGE_REFUSED, str(error))
        case _:
            return Failure(Reason.CRASHED, str(error))


class SpecError(RLJobError):
    """A field of the user's input is wrong.

    Args:
        path: the field as the user wrote it, for instance ``spec.pipeline.maxStaleness``.
        message: what is wrong and what to write instead.
    """

    reason = Reason.INVALID_SPEC

    def __init__(self, path: str, message: str) -> None:
        super().__init__(f"{path}: {message}" if path else message)
        self.path = path
        self.message = message


class ResourceMissing(SpecError):
    """What a field names does not exist, or not yet; the field is right once it does."""

    reason = Reason.RESOURCE_MISSING


class ProtocolViolation(RLJobError):
    """An invariant of the consistency protocol would break."""


class StalenessExceeded(ProtocolViolation):
    """A trajectory past its staleness bound was about to be consumed."""


class Fenced(RLJobError):
    """A newer coordinator epoch or trainer attempt has taken over; this one must stop."""

    reason = Reason.FENCED


class StopRequested(RLJobError):
    """A role was asked to stop before the job was over."""

    reason = Reason.STOPPED


class CorruptPayload(RLJobError):
    """Bytes that do not decode."""


class UnknownVersion(CorruptPayload):
    """A payload in the format of another release."""


class CorruptLedger(RLJobError):
    """A message of the ledger does not decode, or another job has written it."""

    reason = Reason.LEDGER_DAMAGED


class BackupDamaged(RLJobError):
    """A backup lacks what its index names, or holds something else in its place."""


class WeightsRejected(RLJobError):
    """Stored weights do not match the digests in their manifest."""


class WeightsMissing(WeightsRejected):
    """Weights are not stored: not yet, or not any more."""


class StoreUnavailable(RLJobError):
    """The message store does not answer."""

    reason = Reason.STREAMS_UNAVAILABLE


class StreamCut(StoreUnavailable):
    """A stream's server lost messages that it had acknowledged and that were read; it gives their sequences to others.

    The reader must read the stream from its start.

    Args:
        stream: its name.
        passed: sequence up to which it was read.
        last: sequence of its newest message now; it may have grown since the loss, even past `passed`.
    """

    def __init__(self, stream: str, *, passed: int, last: int) -> None:
        super().__init__(
            f"{stream} was read up to message {passed} and is not what it was, up to message {last} now: the server "
            "has lost what it had acknowledged; read it again from the start"
        )
        self.stream = stream
        self.passed = passed
        self.last = last


class StoreFull(RLJobError):
    """The message store is at its limit: publish again once something was consumed."""

    reason = Reason.STREAMS_FULL


class GenerationFailed(RLJobError):
    """An engine could not finish a trajectory."""


class RewardFailed(RLJobError):
    """A reward function raised, or returned no number; or no process stays alive that could call it."""


class RewardOutOfRange(RewardFailed):
    """A reward function returned a number that is not finite, or larger than a score may be."""


class EnvironmentFailed(RLJobError):
    """An environment did not play an episode to its end.

    Args:
        word: of `ENVIRONMENT_REASONS`.
        detail: what happened.
        blamed: whether the episode may have caused it, so that its attempt has failed.
    """

    def __init__(self, word: str, detail: str, *, blamed: bool = True) -> None:
        super().__init__(f"{word}: {detail}")
        self.word = word
        self.detail = detail
        self.blamed = blamed


class JobFailed(RLJobError):
    """The job cannot continue.

    Args:
        message: why, for the user.
        reason: by which blame and remedy are found.
        from_version: the version to go back to, if that is the remedy.
    """

    def __init__(
        self, message: str, reason: Reason = Reason.UNKNOWN, *, from_version: int | None = None
    ) -> None:
        super().__init__(message)
        self.reason = reason
        self.from_version = from_version


class CheckpointDamaged(JobFailed):
    """A checkpoint does not load, or is of another model; the message names it."""

    def __init__(self, message: str) -> None:
        super().__init__(message, Reason.CHECKPOINT_DAMAGED)


class NotFinite(JobFailed):
    """A step's loss or gradient is not finite; the weights are as before the step.

    Args:
        what: what is not finite, with its value.
        micro_batch: number of the first micro-batch after which the loss was not finite; None if it always was, or if
            that is not known.
    """

    def __init__(self, what: str, *, micro_batch: int | None = None) -> None:
        super().__init__(f"{what} is not finite", Reason.NOT_FINITE)
        self.what = what
        self.micro_batch = micro_batch


class StorageRefused(RLJobError):
    """The storage of weights or checkpoints is full, read-only or unreachable; what it held before is unchanged."""

    reason = Reason.STORAGE_REFUSED
