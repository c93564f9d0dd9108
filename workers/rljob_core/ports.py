"""The seams: what a role needs of the world, each with several adapters and one contract suite.

| port | adapters |
|---|---|
| `MessageStore` | `nats_store` (JetStream), `memory_store` (one process; virtual time) |
| `WeightStore` | `weights_files` |
| `Engine` | `engine_torch`, `engine_emulated` |
| `TrainerBackend` | `backend_torch`, `backend_emulated` |
| `Reward` | `rewards` |
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol

from rljob_core.messages import StepStats, TrainingItem
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
    REWARDS = "rewards"
    VERSIONS = "versions"
    METRICS = "metrics"


#: Channels whose messages go once they are acknowledged, and have one reader each. One channel per receiving role, so
#: that each may be barred from the others'.
WORK_QUEUES = frozenset({Channel.WORK, Channel.TRAINING, Channel.EVENTS})


@dataclass(frozen=True, slots=True)
class Message:
    """One stored message. `data` is empty where only headers were asked for; `size` is the payload's bytes."""

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
    """A job's streams. Methods raise `StoreUnavailable` when the server cannot be reached for long."""

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
    ) -> int:
        """Store a message; its sequence once it is acknowledged.

        Concurrent calls share the connection (at most a bounded window is in flight). A repeated `message_id`
        is stored once.

        Raises:
            Fenced: `expected_sequence` is not the channel's last sequence.
            StoreFull: the channel is at its limit.
        """

    def read(
        self, channel: Channel, suffix: str = ">", *, start: int = 1, headers_only: bool = False
    ) -> AsyncIterator[Sequence[Message]]:
        """Messages in order from sequence `start`, then new ones as they come, in batches, without end."""

    async def last_sequence(self, channel: Channel) -> int:
        """Sequence of the newest message ever stored; 0 if none was."""

    async def queue(
        self, channel: Channel, suffix: str, *, name: str, ack_wait: float = 30.0, max_pending: int = 1000
    ) -> Queue:
        """The durable queue `name` over the messages of `suffix` (created if it does not exist)."""

    async def get(self, channel: Channel, sequences: Sequence[int]) -> list[Message | None]:
        """Messages by sequence; None for one that is gone."""

    async def delete(self, channel: Channel, sequences: Sequence[int]) -> None:
        """Delete messages; those that are gone are passed over."""

    async def purge(self, channel: Channel, suffix: str) -> None:
        """Delete all messages of a suffix, and the queues over it."""

    async def put_signal(self, key: str, value: bytes) -> None:
        """Set a key of the signal bucket."""

    async def delete_signal(self, key: str) -> None:
        """Remove a key of the signal bucket."""

    def watch_signals(self) -> AsyncIterator[tuple[str, bytes | None]]:
        """All keys with their values, then every change as it comes (None: removed), without end."""

    async def depths(self) -> dict[str, int]:
        """Messages stored per channel."""

    async def close(self) -> None:
        """Flush and disconnect."""


# ---------------------------------------------------------------------------------------------- weights


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One tensor of a manifest: its dtype as safetensors writes it (`F32`, `BF16`), shape and xxh3-128 digest."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    digest: str


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
    """

    key: str
    version: int
    parent: str
    tensors: tuple[TensorInfo, ...]
    proposal: StepCommitted | None
    digest: str


class WeightStore(Protocol):
    """Versions of the policy's weights. Blocking; call it off the event loop."""

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

        `proposal.manifest` is "" on the way in; commit records elsewhere carry the manifest's digest.
        """

    def manifest(self, key: str) -> Manifest:
        """A stored manifest, verified against its own digest.

        Raises:
            WeightsRejected: it is missing or altered.
        """

    def read(self, manifest: Manifest) -> Iterator[tuple[str, Any]]:
        """Tensors of a version as torch CPU tensors, each verified before it is given out.

        Raises:
            WeightsRejected: a digest does not match.
        """

    def manifests(self) -> list[Manifest]:
        """All complete versions whose manifests verify, by version."""

    def delete(self, key: str) -> None:
        """Remove a version's tensors; its manifest stays for the audit."""


# ---------------------------------------------------------------------------------------------- engine


@dataclass(frozen=True, slots=True)
class Request:
    """What an engine is asked to generate.

    Attributes:
        id: trajectory id.
        tokens: int32 [p], the prompt.
        temperature: 0 for greedy.
        max_tokens: of the response.
        stop_tokens: ids that end it (the end token is part of the response).
        stop: strings that end it.
        seed: of its own random stream, so that a sample does not depend on what runs beside it.
    """

    id: str
    tokens: Array
    temperature: float
    top_p: float
    max_tokens: int
    stop_tokens: frozenset[int]
    stop: tuple[str, ...]
    seed: int


@dataclass(frozen=True, slots=True)
class Completed:
    """A finished response: int32, float32, int32 arrays [n]."""

    id: str
    tokens: Array
    logprobs: Array
    versions: Array
    finish: Finish


@dataclass(frozen=True, slots=True)
class Stopped:
    """A response that ended early. `restarted`: because of new weights under `inflight: Restart`."""

    id: str
    reason: str
    failure: bool


EngineEvent = Completed | Stopped


@dataclass(frozen=True, slots=True)
class EngineLoad:
    """How busy an engine is."""

    running: int
    waiting: int
    tokens: int


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
