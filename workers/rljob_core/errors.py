"""Every error of ours, in one tree.

RLJobError
├── SpecError             the user's manifest or flags; carries the field's path and what to write instead
│   └── NotThere          what it names is not there, or not yet: nothing in the manifest has to change
├── ProtocolViolation     an invariant of the consistency protocol would break (a bug: never caught and ignored)
│   └── StalenessExceeded what is about to be consumed is past the bound stamped on its buffer
├── Fenced                this writer (coordinator epoch, trainer attempt) was replaced by a newer one
├── Stopped               a role was told to stop before the job was over
├── CorruptPayload        bytes from a stream that do not decode (counted as a dead letter)
│   └── UnknownVersion    … because they were written by a newer release
├── CorruptLedger         a message of the ledger does not decode, or is another job's; it is never passed over
├── WeightsRejected       stored weights whose digests do not match their manifest
├── StoreUnavailable      the message store does not answer
│   └── StreamCut         … as it was: a stream now ends before what was read from it, so its server lost messages
├── StoreFull             the message store refuses a payload until something is consumed
├── GenerationFailed      an engine could not finish a trajectory
├── RewardFailed          a reward function raised or ran past its limit
├── JobFailed             the job cannot go on; its message is the user's
└── StorageRefused        weights or a checkpoint cannot be written now; it heals when somebody mends the storage
"""

from __future__ import annotations


class RLJobError(Exception):
    """Root of the errors that this project raises on purpose."""


class SpecError(RLJobError):
    """A field of the user's input is wrong.

    Args:
        path: where, as the user wrote it, for instance ``spec.pipeline.maxStaleness``.
        message: what is wrong and what to write instead.
    """

    def __init__(self, path: str, message: str) -> None:
        super().__init__(f"{path}: {message}" if path else message)
        self.path = path
        self.message = message


class ResourceMissing(SpecError):
    """What a field names is not there, or not yet; it heals when somebody puts it there."""


class ProtocolViolation(RLJobError):
    """An invariant of the consistency protocol would break."""


class StalenessExceeded(ProtocolViolation):
    """Something past its staleness bound was about to be consumed."""


class Fenced(RLJobError):
    """A newer coordinator epoch or trainer attempt has taken over; this one must stop."""


class StopRequested(RLJobError):
    """A role was told to stop before the job was over."""


class CorruptPayload(RLJobError):
    """Bytes that do not decode."""


class UnknownVersion(CorruptPayload):
    """A payload written by a newer release than this one."""


class CorruptLedger(RLJobError):
    """A message of the ledger that is not what this job has written."""


class WeightsRejected(RLJobError):
    """Stored weights do not match the digests in their manifest."""


class StoreUnavailable(RLJobError):
    """The message store does not answer."""


class StreamCut(StoreUnavailable):
    """A stream's server lost messages that it had acknowledged and that were read; their sequences come again.

    Whoever read them must read the stream anew.

    Args:
        stream: its name.
        passed: sequence up to which it was read.
        last: sequence of its newest message now. It may have grown since it was cut, even past `passed`.
    """

    def __init__(self, stream: str, *, passed: int, last: int) -> None:
        super().__init__(
            f"{stream} was read up to message {passed} and is not what it was, up to message {last} now: the server "
            "has lost what it had acknowledged; read it anew"
        )
        self.stream = stream
        self.passed = passed
        self.last = last


class StoreFull(RLJobError):
    """The message store is at its limit: try again once something was consumed."""


class GenerationFailed(RLJobError):
    """An engine could not finish a trajectory."""


class RewardFailed(RLJobError):
    """A reward function raised or exceeded its time limit."""


class JobFailed(RLJobError):
    """The job cannot go on."""


class StorageRefused(RLJobError):
    """The file system of weights or checkpoints is full, read-only or away; what was written before is as it was."""
