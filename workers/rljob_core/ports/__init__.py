"""The ports: protocols of what the roles use. Each has several adapters, and one contract suite that all of them pass.

| port | adapters |
|---|---|
| `MessageStore` | `rljob_runtime.messaging`: `nats` (JetStream), `memory` (one process) |
| `WeightStore` | `rljob_runtime.weights.store`, over the transports of `rljob_core.weight_transports` |
| `Engine` | `rljob_runtime.engines`: `torch`, `vllm`, `http`, `emulated` |
| `TrainerBackend` | `rljob_runtime.training.backends`: `torch`, `fsdp`, `deepspeed`, `emulated` |
| `Environment` | `package.module:Class` of a user, found by `rljob_runtime.environments.registry` |
| `Tracker` | `rljob_runtime.trackers`: `wandb`, `mlflow`, `tensorboard`, `trackio` |
| `Sandbox` | `rljob_runtime.sandbox.local` |
| `Reward` | the functions that `rljob_runtime.rewards.registry` resolves by name |

`rljob_contract` runs the contracts of engines and trainer backends against plugins, too (`docs/custom.md`).
"""

from rljob_core.ports.engine import (
    CacheKeeper,
    Completed,
    Engine,
    EngineEvent,
    EngineLoad,
    Progress,
    Request,
    Stopped,
)
from rljob_core.ports.environment import (
    Environment,
    Episode,
    EpisodeStart,
    ModelTurn,
    ObservingEpisode,
    TurnObservation,
)
from rljob_core.ports.messages import (
    MESSAGE_ID,
    NEWEST_ONLY,
    QUEUED,
    SINGLE_READER,
    UNLIMITED_ROOM,
    WORK_QUEUES,
    Channel,
    Delivery,
    Message,
    MessageStore,
    Queue,
    first_sequence,
)
from rljob_core.ports.reward import Reward
from rljob_core.ports.tracker import (
    SampleTable,
    SampleTracker,
    StreamTracker,
    TrackedPoint,
    TrackedRun,
    Tracker,
)
from rljob_core.ports.trainer import TrainerBackend, TrainingSample
from rljob_core.ports.weights import DeltaBase, TensorInfo, WeightManifest, WeightStore
from rljob_core.record_fields import LARGEST_SCORE

__all__ = [
    "LARGEST_SCORE",
    "MESSAGE_ID",
    "NEWEST_ONLY",
    "QUEUED",
    "SINGLE_READER",
    "UNLIMITED_ROOM",
    "WORK_QUEUES",
    "CacheKeeper",
    "Channel",
    "Completed",
    "Delivery",
    "DeltaBase",
    "Engine",
    "EngineEvent",
    "EngineLoad",
    "Environment",
    "Episode",
    "EpisodeStart",
    "Message",
    "MessageStore",
    "ModelTurn",
    "ObservingEpisode",
    "Progress",
    "Queue",
    "Request",
    "Reward",
    "SampleTable",
    "SampleTracker",
    "Stopped",
    "StreamTracker",
    "TensorInfo",
    "TrackedPoint",
    "TrackedRun",
    "Tracker",
    "TrainerBackend",
    "TrainingSample",
    "TurnObservation",
    "WeightManifest",
    "WeightStore",
    "first_sequence",
]
