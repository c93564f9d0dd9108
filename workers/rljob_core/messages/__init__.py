"""The messages that roles send to one another, besides payloads and the ledger.

| module | from | to | over |
|---|---|---|---|
| `engine_work` | coordinator | one engine, or all | its work queue, or the stream of versions |
| `trainer_work` | coordinator | one trainer attempt | its work queue |
| `coordinator_events` | engines, trainer | coordinator | its work queue |
| `rewards` | reward workers | coordinator | the reward stream |
| `signals` | engines, coordinator | coordinator | the key-value bucket of signals |
| `metrics` | coordinator | people | the stream of metrics |

All are JSON; payloads of tokens have their own format (`rljob_runtime.messaging.wire`). Class names, field names and
`kind` are a wire format: workers of two releases may meet, and decision logs hold them.
"""

from rljob_core.messages.coordinator_events import (
    COORDINATOR_EVENT,
    CheckpointWritten,
    CoordinatorEvent,
    EngineDied,
    EngineGone,
    GenerationEnded,
    OptimizerReset,
    PayloadMissing,
    RoleFailed,
    SamplesLost,
    StepProposed,
    TrainerReady,
)
from rljob_core.messages.engine_work import (
    ENGINE_WORK,
    RELEASED,
    VERSION_ANNOUNCED,
    Cancel,
    EngineWork,
    EngineWorkBatch,
    Generate,
    Release,
    Sample,
    VersionAnnounced,
    work_suffix,
)
from rljob_core.messages.metrics import STEP_METRICS, PoolSpeed, StepMetrics, StepStats, tells_evaluation
from rljob_core.messages.rewards import (
    MARK,
    MARK_HEADER,
    REWARD_ACK_WAIT,
    REWARD_BATCH,
    REWARD_QUEUE,
    SCORE_GROUP,
    GroupMember,
    RewardBatch,
    RewardResult,
    ScoreGroup,
    site_mark,
)
from rljob_core.messages.signals import (
    AWAITED,
    COORDINATOR_SIGNAL,
    ENGINE_SIGNAL,
    ENGINE_SIGNALS,
    LONGEST,
    REJECTED,
    SITE_SIGNALS,
    SWAPS_SIGNALLED,
    UNAVAILABLE,
    EngineProfile,
    EngineSignal,
    WeightSwap,
)
from rljob_core.messages.trainer_work import (
    TRAINER_MESSAGE,
    Fence,
    Finish,
    Hello,
    MicroBatch,
    Resume,
    Retention,
    TrainerMessage,
    TrainerWork,
    TrainingItem,
)

__all__ = [
    "AWAITED",
    "COORDINATOR_EVENT",
    "COORDINATOR_SIGNAL",
    "ENGINE_SIGNAL",
    "ENGINE_SIGNALS",
    "ENGINE_WORK",
    "LONGEST",
    "MARK",
    "MARK_HEADER",
    "REJECTED",
    "RELEASED",
    "REWARD_ACK_WAIT",
    "REWARD_BATCH",
    "REWARD_QUEUE",
    "SCORE_GROUP",
    "SITE_SIGNALS",
    "STEP_METRICS",
    "SWAPS_SIGNALLED",
    "TRAINER_MESSAGE",
    "UNAVAILABLE",
    "VERSION_ANNOUNCED",
    "Cancel",
    "CheckpointWritten",
    "CoordinatorEvent",
    "EngineDied",
    "EngineGone",
    "EngineProfile",
    "EngineSignal",
    "EngineWork",
    "EngineWorkBatch",
    "Fence",
    "Finish",
    "Generate",
    "GenerationEnded",
    "GroupMember",
    "Hello",
    "MicroBatch",
    "OptimizerReset",
    "PayloadMissing",
    "PoolSpeed",
    "Release",
    "Resume",
    "Retention",
    "RewardBatch",
    "RewardResult",
    "RoleFailed",
    "Sample",
    "SamplesLost",
    "ScoreGroup",
    "StepMetrics",
    "StepProposed",
    "StepStats",
    "TrainerMessage",
    "TrainerReady",
    "TrainerWork",
    "TrainingItem",
    "VersionAnnounced",
    "WeightSwap",
    "site_mark",
    "tells_evaluation",
    "work_suffix",
]
