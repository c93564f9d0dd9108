"""The API, group ``rljob.dev``, version ``v1alpha1``: the single source of the CRDs.

Models are strict (``"16"`` is not 16), refuse unknown fields, and read and write camelCase. Every docstring
under a field is that field's description in the CRD. Rules between fields are `Rule` objects: one message at one
field, one CEL expression for the API server and one Python predicate, so that `rljob run` refuses what the CRD
refuses, with the same words; `Form` does the same for text. `Immutable` marks what the API server keeps as it was
created, `Grows` what it never lets become smaller.
"""

from rljob_core.spec.base import (
    API_VERSION,
    GROUP,
    HUB,
    VERSION,
    ApiModel,
    Form,
    Immutable,
    JobName,
    ObjectMeta,
    Rule,
    immutable_fields,
    model_in,
)
from rljob_core.spec.data import (
    ENVIRONMENT_SCORE,
    MOST_SAMPLES,
    TRUNCATION,
    USUAL_SAMPLES,
    DataSpec,
    EvaluationDataSpec,
    EvaluationSpec,
    HeldOutSet,
    HeldOutSetSpec,
    RewardSpec,
)
from rljob_core.spec.environment import AGENT, CHANGEABLE_OF_ENVIRONMENT, MOST_TURNS, EnvironmentSpec
from rljob_core.spec.job import CoordinatorSpec, DeltaSpec, NatsSpec, RLJob, RLJobSpec, WeightsSpec
from rljob_core.spec.networking import EgressSpec, NetworkingSpec
from rljob_core.spec.pipeline import Inflight, Mode, PipelineSpec
from rljob_core.spec.pool import RolloutPool, RolloutPoolSpec
from rljob_core.spec.rollout import (
    LONGEST_RESPONSE,
    AutoscalingSpec,
    EngineSpec,
    PoolEngineSpec,
    PoolSpec,
    RolloutSpec,
    SamplingSpec,
    ScalingSpec,
    SwapTime,
)
from rljob_core.spec.samples import SamplesSpec
from rljob_core.spec.site import GRACE_SECONDS, SILENT_SECONDS, Site, SiteLinkSpec, SiteSpec, SiteStatus
from rljob_core.spec.status import (
    AutoscaledPoolStatus,
    AutoscalingStatus,
    ConditionStatus,
    CostStatus,
    DownloadStatus,
    PipelineStatus,
    PoolStatus,
    RLJobStatus,
    RolloutPoolStatus,
)
from rljob_core.spec.trackers import TrackerSpec
from rljob_core.spec.training import AlgorithmSpec, CheckpointSpec, LoraSpec, ModelSpec, TrainerSpec

__all__ = [
    "AGENT",
    "API_VERSION",
    "CHANGEABLE_OF_ENVIRONMENT",
    "ENVIRONMENT_SCORE",
    "GRACE_SECONDS",
    "GROUP",
    "HUB",
    "LONGEST_RESPONSE",
    "MOST_SAMPLES",
    "MOST_TURNS",
    "SILENT_SECONDS",
    "TRUNCATION",
    "USUAL_SAMPLES",
    "VERSION",
    "AlgorithmSpec",
    "ApiModel",
    "AutoscaledPoolStatus",
    "AutoscalingSpec",
    "AutoscalingStatus",
    "CheckpointSpec",
    "ConditionStatus",
    "CoordinatorSpec",
    "CostStatus",
    "DataSpec",
    "DeltaSpec",
    "DownloadStatus",
    "EgressSpec",
    "EngineSpec",
    "EnvironmentSpec",
    "EvaluationDataSpec",
    "EvaluationSpec",
    "Form",
    "HeldOutSet",
    "HeldOutSetSpec",
    "Immutable",
    "Inflight",
    "JobName",
    "LoraSpec",
    "Mode",
    "ModelSpec",
    "NatsSpec",
    "NetworkingSpec",
    "ObjectMeta",
    "PipelineSpec",
    "PipelineStatus",
    "PoolEngineSpec",
    "PoolSpec",
    "PoolStatus",
    "RLJob",
    "RLJobSpec",
    "RLJobStatus",
    "RewardSpec",
    "RolloutPool",
    "RolloutPoolSpec",
    "RolloutPoolStatus",
    "RolloutSpec",
    "Rule",
    "SamplesSpec",
    "SamplingSpec",
    "ScalingSpec",
    "Site",
    "SiteLinkSpec",
    "SiteSpec",
    "SiteStatus",
    "SwapTime",
    "TrackerSpec",
    "TrainerSpec",
    "WeightsSpec",
    "immutable_fields",
    "model_in",
]
