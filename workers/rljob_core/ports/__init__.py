"""The ports: what a role needs of the world, each with several adapters and one contract that all of them keep.

| port | adapters |
|---|---|
| `MessageStore` | `rljob_runtime.messaging`: `nats` (JetStream), `memory` (one process; virtual time) |
| `WeightStore` | `rljob_runtime.weights.store`, over the transports that `rljob_runtime.weights.transport` lists |
| `Engine` | `rljob_runtime.engines`: Torch, vLLM, HTTP, Emulated |
| `TrainerBackend` | `rljob_runtime.training.backends`: Torch, FSDP, DeepSpeed, Emulated |
| `Reward` | `rljob_runtime.rewards.registry` |
"""

from rljob_core.ports.engine import Completed, Engine, EngineEvent, EngineLoad, Progress, Request, Stopped
from rljob_core.ports.messages import (
    MESSAGE_ID,
    NEWEST_ONLY,
    QUEUED,
    WORK_QUEUES,
    Channel,
    Delivery,
    Message,
    MessageStore,
    Queue,
    first_sequence,
)
from rljob_core.ports.reward import Reward
from rljob_core.ports.trainer import TrainerBackend, TrainingSample
from rljob_core.ports.weights import DeltaBase, TensorInfo, WeightManifest, WeightStore

__all__ = [
    "MESSAGE_ID",
    "NEWEST_ONLY",
    "QUEUED",
    "WORK_QUEUES",
    "Channel",
    "Completed",
    "Delivery",
    "DeltaBase",
    "Engine",
    "EngineEvent",
    "EngineLoad",
    "Message",
    "MessageStore",
    "Progress",
    "Queue",
    "Request",
    "Reward",
    "Stopped",
    "TensorInfo",
    "TrainerBackend",
    "TrainingSample",
    "WeightManifest",
    "WeightStore",
    "first_sequence",
]
