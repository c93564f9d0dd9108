"""The CustomResourceDefinitions, rendered from the API models; `rljob crd` writes them to `crds/`.

Fields of the status have no defaults: a default would claim something that nothing observed, and the status that the
operator reads would differ from the one that it wrote.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from rljob_core.spec import (
    GROUP,
    VERSION,
    ApiModel,
    JobName,
    RLJob,
    RLJobSpec,
    RLJobStatus,
    RolloutPool,
    RolloutPoolSpec,
    RolloutPoolStatus,
    Site,
    SiteSpec,
    SiteStatus,
)
from rljob_core.spec.base import Name
from rljob_operator.cluster.port import Manifest
from rljob_operator.crd.schema import RULES, Schema, structural


@dataclass(frozen=True, slots=True)
class Column:
    """A column of `kubectl get`; `wide` ones show with `-o wide` only."""

    name: str
    type: str
    path: str
    description: str
    wide: bool = False

    def manifest(self) -> Manifest:
        """As a CRD has it."""
        shown = {
            "name": self.name,
            "type": self.type,
            "jsonPath": self.path,
            "description": self.description,
        }
        return {**shown, "priority": 1} if self.wide else shown


_AGE = Column("Age", "date", ".metadata.creationTimestamp", "Time since it was created.")
_REASON = '.status.conditions[?(@.type=="Ready")].reason'

_JOB_COLUMNS = (
    Column("Status", "string", ".status.state", "How it is: Ready, or why it is not."),
    Column("Step", "string", ".status.progress", "Committed steps, of those in all."),
    Column("Mode", "string", ".spec.pipeline.mode", "How rollout and training overlap."),
    Column("Version", "integer", ".status.policyVersion", "Newest committed version."),
    Column("Rollout", "string", ".status.rollout", "Engines ready / desired."),
    Column("Reward", "number", ".status.rewardMean", "Mean reward of the last step."),
    _AGE,
    Column("Staleness", "integer", ".status.stalenessMax", "Largest staleness consumed.", wide=True),
    Column("Attempt", "integer", ".status.trainerAttempt", "Current attempt of the trainer.", wide=True),
    Column("Ranks", "integer", ".status.trainerRanks", "Training processes of the trainer.", wide=True),
    Column("Reason", "string", _REASON, "Why it is ready, or not.", wide=True),
)
_POOL_COLUMNS = (
    Column("Job", "string", ".spec.job", "The RLJob that it serves."),
    Column("Pool", "string", ".spec.pool", "Which of the job's pools it is."),
    Column("Desired", "integer", ".spec.replicas", "Engines wanted."),
    Column("Ready", "integer", ".status.readyReplicas", "Engines that serve."),
    _AGE,
)
_SITE_COLUMNS = (
    Column("Connected", "boolean", ".status.connected", "Whether the site's operator is heard."),
    Column("Last-Beat", "date", ".status.lastBeat", "Time since it was last heard."),
    Column("Outbox", "integer", ".status.outboxBytes", "Bytes that the hub has not taken yet."),
    Column("Lag", "integer", ".status.mirrorLag", "Messages that the site's copies lack."),
    _AGE,
    Column("Domain", "string", ".spec.domain", "JetStream domain, unless it is the Site's name.", wide=True),
)
_SCALE = {
    "specReplicasPath": ".spec.replicas",
    "statusReplicasPath": ".status.replicas",
    "labelSelectorPath": ".status.selector",
}


class _Metadata(ApiModel):
    """What an object of ours is called, and its children after it."""

    name: JobName
    """Name of the job: the first part of its pods' host names."""


class _SiteMetadata(ApiModel):
    """What a Site is called."""

    name: Name
    """Name of the site, as a pool's site says it."""


def crds() -> dict[str, Manifest]:
    """Every CustomResourceDefinition, by its file's name."""
    return {
        "rljobs.yaml": _crd(
            RLJob, RLJobSpec, RLJobStatus, short="rlj", columns=_JOB_COLUMNS, subresources={"status": {}}
        ),
        "rolloutpools.yaml": _crd(
            RolloutPool,
            RolloutPoolSpec,
            RolloutPoolStatus,
            short="rlpool",
            columns=_POOL_COLUMNS,
            subresources={"status": {}, "scale": _SCALE},
        ),
        "sites.yaml": _crd(
            Site,
            SiteSpec,
            SiteStatus,
            short="rlsite",
            columns=_SITE_COLUMNS,
            subresources={"status": {}},
            metadata=_SiteMetadata,
            scope="Cluster",
        ),
    }


def _crd(
    model: type[ApiModel],
    spec: type[ApiModel],
    status: type[ApiModel],
    *,
    short: str,
    columns: tuple[Column, ...],
    subresources: Manifest,
    metadata: type[ApiModel] = _Metadata,
    scope: Literal["Namespaced", "Cluster"] = "Namespaced",
) -> Manifest:
    kind = model.__name__
    plural = f"{kind.lower()}s"
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{GROUP}", "labels": {"app.kubernetes.io/name": "rljob"}},
        "spec": {
            "group": GROUP,
            "names": {
                "kind": kind,
                "listKind": f"{kind}List",
                "plural": plural,
                "singular": kind.lower(),
                "shortNames": [short],
                # Not `rljob`: kubectl takes a category before a resource, and `get rljob NAME` would fail.
                "categories": ["all", "rl"] if scope == "Namespaced" else ["rl"],
            },
            "scope": scope,
            "versions": [
                {
                    "name": VERSION,
                    "served": True,
                    "storage": True,
                    "subresources": subresources,
                    "additionalPrinterColumns": [column.manifest() for column in columns],
                    "schema": {"openAPIV3Schema": _object_schema(model, spec, status, metadata)},
                }
            ],
        },
    }


def _object_schema(
    model: type[ApiModel], spec: type[ApiModel], status: type[ApiModel], metadata: type[ApiModel]
) -> Schema:
    """Our spec and status; what else an object has is Kubernetes' own."""
    descriptions = {name: field.description for name, field in model.model_fields.items()}
    rules = [{"rule": r.cel, "message": r.message, "fieldPath": f".{r.field}"} for r in model.rules]
    return {
        "description": model.__doc__,
        "type": "object",
        "required": ["spec"],
        "properties": {
            "apiVersion": {"description": descriptions["api_version"], "type": "string"},
            "kind": {"description": descriptions["kind"], "type": "string"},
            # The name alone: Kubernetes knows the rest, and takes no other restriction.
            "metadata": {"type": "object", "properties": structural(metadata)["properties"]},
            "spec": {**structural(spec), "description": descriptions["spec"]},
            "status": {**structural(status, defaults=False), "description": descriptions["status"]},
        },
        **({RULES: rules} if rules else {}),
    }
