"""The seams: what a role needs of the world, each with several adapters and one contract suite.

| port | adapters |
|---|---|
| `MessageStore` | `nats_store` (JetStream), `memory_store` (one process; virtual time) |
| `WeightStore` | `weights_store`, over the transports that `weights_transport` lists |
| `Engine` | `engine_torch`, `engine_emulated` |
| `TrainerBackend` | `backend_torch`, `backend_fsdp`, `backend_deepspeed`, `backend_emulated` |
| `Reward` | `rewards` |
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol

from rljob_core.messages import EngineProfile, StepStats, TrainingItem
from rljob_core.records import StepCommitted
from rljob_core.trajectory import Array, Finish, Trajectory

# ---------------------------------------------------------------------------------------------- messages


class Channel(StrEnum):
    """A job's streams (DESIGN §6). Subjects are `<job subject>.<channel>.<suffix>`."""

    LEDGER = "ledger"
    WORK = "work"  # to the engines
    TRAINING = "training"  # to the trainer
    EVENTS = "events"  # to the coordinator, each role under its own name
    TRAJECTORIES = "trajectories"
    PROGRESS = "progress"  # of trajectories that are being generated, the newest of each
    REWARDS = "rewards"
    VERSIONS = "versions"
    METRICS = "metrics"
    WEIGHTS = "weights"  # tensors, where they travel over the message store


#: The header of a stored message that holds its id, given by `publish` or made up by the store.
MESSAGE_ID = "Nats-Msg-Id"

#: Channels whose messages go once they are acknowledged, and have one reader each. One channel per receiving role, so
#: that each may be barred from the others'.
WORK_QUEUES = frozenset({Channel.WORK, Channel.TRAINING, Channel.EVENTS})

#: Channels of which only the newest message of a suffix is stored: it makes the one before go.
NEWEST_ONLY = frozenset({Channel.VERSIONS, Channel.PROGRESS})


#: Channels over which roles have durable queues.
QUEUED = WORK_QUEUES | {Channel.TRAJECTORIES}


def first_sequence(channel: Channel) -> int:
    """Sequence of a channel's first message.

    Under queues it is 2: a nats-server (2.15.1) that finds its files cut puts a queue back to where the channel ends,
    but takes a queue that is at 0 then, with nothing acknowledged, for one without a state, reads its old state again,
    and never delivers what is stored next.
    """
    return 2 if channel in QUEUED else 1


@dataclass(frozen=True, slots=True)
class Message:
    """One stored message.

    `data` is empty where only headers were asked for; `size` is the payload's bytes; `headers[MESSAGE_ID]` its id.
    """

    sequence: int
    suffix: str
    data: bytes
    headers: Mapping[str, str] = field(default_factory=dict)
    size: int = 0


class Delivery(Protocol):
    """A message taken from a queue; it comes again unless it is acknowledged in time."""

    @property
    def message(self) -> Message:
        """What was delivered."""

    @property
    def deliveries(self) -> int:
        """How often it was delivered, this time included."""

    async def ack(self) -> None:
        """It is dealt with."""

    async def retry(self, delay: float) -> None:
        """Deliver it again after `delay` seconds."""

    async def in_progress(self) -> None:
        """Restart its acknowledgement timer."""


class Queue(Protocol):
    """A durable consumer whose messages are each given to one of its readers."""

    async def fetch(self, *, messages: int, max_bytes: int, timeout: float) -> Sequence[Delivery]:
        """At least one message as soon as there is one; none after `timeout` seconds."""


class MessageStore(Protocol):
    """A job's streams. Methods raise `StoreUnavailable` when the server cannot be reached for long.

    A server may acknowledge a message before it is safe on disk. When its machine dies, the newest messages of any
    stream may be gone, and their sequences are then given to others: the stream was *cut*. What holds then: a
    publish with `expected_id` never follows another message than the one meant; readers raise `StreamCut`; queues
    deliver every message that is stored later, and may deliver again what was dealt with. What goes by sequence (`get`,
    `delete`, where a reader starts) means whatever has that sequence then. More in `rljob_runtime/STREAMS.md`.
    """

    async def open(self) -> None:
        """Create the job's streams and bucket where they do not exist."""

    async def publish(
        self,
        channel: Channel,
        suffix: str,
        data: bytes,
        *,
        headers: Mapping[str, str] | None = None,
        message_id: str | None = None,
        expected_sequence: int | None = None,
        expected_id: str | None = None,
    ) -> int:
        """Store a message; its sequence once it is acknowledged.

        Concurrent calls share the connection (at most a bounded window is in flight). A repeated `message_id`
        is stored once.

        Raises:
            Fenced: `expected_sequence` is not the channel's last sequence, or `expected_id` not the id of its
                newest message. May also be raised, rarely, where it is but the server no longer knows.
            StoreFull: the channel is at its limit.
        """

    def read(
        self, channel: Channel, suffix: str = ">", *, start: int = 1, headers_only: bool = False
    ) -> AsyncIterator[Sequence[Message]]:
        """Messages in order from sequence `start`, then new ones as they come, in batches, without end.

        Raises:
            StreamCut: messages that were read are gone, and their sequences are given to others.
        """

    async def last(self, channel: Channel, suffix: str = ">") -> Message | None:
        """The newest message of a suffix that is stored; None if there is none."""

    async def last_sequence(self, channel: Channel) -> int:
        """Sequence of the newest message ever stored; 0 if none was."""

    async def queue(
        self, channel: Channel, suffix: str, *, name: str, ack_wait: float = 30.0, max_pending: int = 1000
    ) -> Queue:
        """The durable queue `name` over the messages of `suffix` (created if it does not exist)."""

    async def unacknowledged(self, channel: Channel, name: str) -> int:
        """Messages of the durable queue `name` that wait, or are given out and not acknowledged.

        The figure may be a moment old, but it is 0 only if all that was stored before the call was dealt with.
        A queue that does not exist has dealt with nothing: all messages of the channel.
        """

    async def get(self, channel: Channel, sequences: Sequence[int]) -> list[Message | None]:
        """Messages by sequence; None for one that is gone."""

    async def suffixes(self, channel: Channel, pattern: str) -> dict[str, int]:
        """The suffixes under a pattern that have messages, and how many."""

    async def grow(self, channel: Channel, size: int) -> None:
        """Let a channel hold that many bytes, if it holds less as yet.

        Raises:
            StoreFull: it cannot, or only somebody else may let it.
        """

    async def delete(self, channel: Channel, sequences: Sequence[int]) -> None:
        """Delete messages; those that are gone are passed over."""

    async def purge(self, channel: Channel, suffix: str) -> None:
        """Delete all messages of a suffix, and the queues over it."""

    async def put_signal(self, key: str, value: bytes) -> None:
        """Set a key of the signal bucket."""

    async def delete_signal(self, key: str) -> None:
        """Remove a key of the signal bucket."""

    def watch_signals(self) -> AsyncIterator[tuple[str, bytes | None]]:
        """All keys with their values, then every change as it comes (None: removed), without end.

        Where the server lost changes that were seen, it starts over with all keys.
        """

    async def depths(self) -> dict[str, int]:
        """Messages stored per channel."""

    async def close(self) -> None:
        """Flush and disconnect."""


# ---------------------------------------------------------------------------------------------- weights


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One tensor of a manifest: its dtype as safetensors writes it (`F32`, `BF16`), shape and xxh3-128 digest.

    `patch` are the bytes of what turns the base's tensor into this one; 0: it is the same, None: it is stored whole.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    digest: str
    patch: int | None = None


@dataclass(frozen=True, slots=True)
class DeltaBase:
    """The version that a delta applies to, by its manifest's key and digest.

    `depth` counts the deltas from here to the version that is stored whole, the anchor: 1 applies to an anchor.
    """

    key: str
    digest: str
    depth: int


@dataclass(frozen=True, slots=True)
class Manifest:
    """A version's weights.

    Attributes:
        key: name of the version's folder in the store; carries version, attempt and epoch.
        version: policy version.
        parent: digest of the manifest of version - 1 ("" for none).
        tensors: in file order.
        proposal: the commit record, so that the store alone can restore it; None for the initial model.
        digest: xxh3-128 of the canonical manifest without this field.
        base: what it applies to, if it is a delta; None if it is an anchor, stored whole.
    """

    key: str
    version: int
    parent: str
    tensors: tuple[TensorInfo, ...]
    proposal: StepCommitted | None
    digest: str
    base: DeltaBase | None = None


class WeightStore(Protocol):
    """Versions of the policy's weights. One thread at a time.

    Blocking: whatever carries the bytes, to compare, digest and copy gigabytes keeps a thread busy, and belongs off
    the event loop. All methods raise `StoreUnavailable` when the storage cannot be reached.
    """

    def write(
        self,
        *,
        version: int,
        parent: str,
        proposal: StepCommitted | None,
        key: str,
        tensors: Iterable[tuple[str, Any]],
    ) -> Manifest:
        """Store tensors (NumPy arrays or torch CPU tensors), then the manifest; durable on return.

        `proposal.manifest` is "" on the way in; commit records elsewhere carry the manifest's digest. The same
        weights written again change nothing.

        Raises:
            StorageRefused: the storage takes no more; earlier versions are as they were.
            ProtocolViolation: the key is taken by other weights: no version is ever overwritten.
        """

    def manifest(self, key: str) -> Manifest:
        """A stored manifest, verified against its own digest.

        Raises:
            WeightsRejected: it is missing or altered.
        """

    def read(self, manifest: Manifest) -> Iterator[tuple[str, Any]]:
        """Tensors of a version as torch CPU tensors, each verified before it is given out; not to be changed.

        Raises:
            WeightsRejected: a digest does not match, or tensors, or what a delta rests on, are missing.
        """

    def manifests(self) -> list[Manifest]:
        """All versions whose tensors are there and whose manifests verify, by version."""

    def proposals(self, after: int) -> list[Manifest]:
        """All manifests of versions above `after` that verify, by version and key; tensors may be deleted.

        Those of older versions are not opened: a key begins with its version, as in `v00000012-`.
        """

    def delete(self, key: str) -> None:
        """Remove a version's tensors; its manifest stays for the audit."""

    def sweep(self, up_to: int) -> None:
        """Remove what writers that died have left of versions up to `up_to`, which nobody writes any more."""

    def close(self) -> None:
        """Let go of connections and memory."""


# ---------------------------------------------------------------------------------------------- engine


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a response has come, the newest token included: int32, float32, int32 arrays [n]."""

    id: str
    tokens: Array
    logprobs: Array
    versions: Array


@dataclass(frozen=True, slots=True)
class Request:
    """What an engine is asked to generate.

    Attributes:
        id: of the request, other than that of any before.
        tokens: int32 [p], the prompt.
        temperature: 0 for greedy.
        max_tokens: of the response, inherited tokens included.
        stop_tokens: ids that end it (the end token is part of the response).
        stop: strings that end it.
        seed: of its own random stream, so that a sample does not depend on what runs beside it. The i-th token of a
            response always draws the same number, whoever draws it.
        inherited: what another engine has generated of it, fewer tokens than `max_tokens`: it goes on from there.
    """

    id: str
    tokens: Array
    temperature: float
    top_p: float
    max_tokens: int
    stop_tokens: frozenset[int]
    stop: tuple[str, ...]
    seed: int
    inherited: Progress | None = None

    @property
    def inherited_tokens(self) -> int:
        """How many tokens it goes on from."""
        return 0 if self.inherited is None else len(self.inherited.tokens)


@dataclass(frozen=True, slots=True)
class Completed:
    """A finished response, with what it inherited: int32, float32, int32 arrays [n]."""

    id: str
    tokens: Array
    logprobs: Array
    versions: Array
    finish: Finish


@dataclass(frozen=True, slots=True)
class Stopped:
    """A response that ended early.

    Attributes:
        reason: a word, and perhaps `: ` and more; `Restarted`: because of new weights under `inflight: Restart`.
        failure: whether it counts as a failed attempt.
    """

    id: str
    reason: str
    failure: bool


EngineEvent = Completed | Stopped


@dataclass(frozen=True, slots=True)
class EngineLoad:
    """How busy an engine is, and how fast, once it has been measured."""

    running: int
    waiting: int
    tokens: int
    profile: EngineProfile | None = None


class Engine(Protocol):
    """Generates. One event loop calls it; the engine computes elsewhere and never blocks that loop."""

    slots: int
    """Trajectories generated at once; more are queued."""
    version: int
    """Policy version of the weights in use; -1 before any."""

    async def start(self) -> None:
        """Load the architecture and, unless a version follows, the initial weights."""

    def submit(self, requests: Sequence[Request]) -> None:
        """Generate these, in order."""

    def cancel(self, ids: Sequence[str]) -> None:
        """Forget these; no event follows."""

    async def events(self) -> Sequence[EngineEvent]:
        """At least one event, as soon as there is one."""

    async def progress(self, least: Mapping[str, int]) -> Sequence[Progress]:
        """How far those of these requests have come that are generating and have so many tokens at least, inherited
        ones included. Of a closed engine: how far they had come.
        """

    async def swap(self, version: int, tensors: Iterable[tuple[str, Any]] | None, inflight: str) -> None:
        """Use new weights from the next token on (`None`: the initial model's).

        `Update`: running ones go on, with the KV cache recomputed if the engine's option says so. `Keep`:
        returns once the running ones have ended; those submitted meanwhile wait. `Restart`: running ones are
        stopped with reason `Restarted`.
        """

    def load(self) -> EngineLoad:
        """How busy it is."""

    async def close(self) -> None:
        """Stop computing and free the memory."""


# ---------------------------------------------------------------------------------------------- trainer


@dataclass(frozen=True, slots=True)
class TrainingSample:
    """One trajectory with what training needs of it."""

    item: TrainingItem
    trajectory: Trajectory


class TrainerBackend(Protocol):
    """One rank of the trainer. Blocking; all ranks call the same methods in the same order.

    Only sums are accumulated; `finish_step` divides once by the normalisers known only then, so that streamed
    micro-batches give the same gradient as the whole batch.
    """

    def load(self, tensors: Iterable[tuple[str, Any]] | None) -> None:
        """Take these weights (`None`: the initial model's) and forget what was accumulated."""

    def load_state(self, folder: str | None) -> None:
        """Take optimizer and random state from a checkpoint folder (`None`: fresh)."""

    def begin_step(self, step: int) -> None:
        """Start step `step` with nothing accumulated."""

    def accumulate(self, samples: Sequence[TrainingSample]) -> None:
        """Forward and backward over a micro-batch (possibly empty on this rank)."""

    def finish_step(self) -> StepStats:
        """Normalise, clip, take the optimizer step."""

    def tensors(self) -> Iterator[tuple[str, Any]]:
        """The weights under their published names, one at a time."""

    def random_state(self) -> str:
        """Digest of the random state."""

    def save(self, folder: str) -> None:
        """Write a checkpoint into an empty folder: Hugging Face format, optimizer and random state."""


# ---------------------------------------------------------------------------------------------- rewards


class Reward(Protocol):
    """A verifier: the score of one answer."""

    def __call__(self, *, completion: str, item: Mapping[str, Any]) -> float:
        """Score the response's text against the data item.

        Raises:
            Exception: anything; it aborts the trajectory with its reason.
        """
