"""`spec.trackers`: the experiment trackers that follow a job's metrics."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from rljob_core.omitted import OMITTED_IF_EMPTY
from rljob_core.spec.base import ApiModel, Identifier, Image, ObjectName, Options

MOST_TRACKERS = 8
"""Trackers that a job may name."""


class TrackerSpec(ApiModel):
    """An experiment tracker, to which a process beside the coordinator sends the job's metrics."""

    name: Identifier
    """WandB, MLflow, TensorBoard, Trackio, or what a distribution in the pods' image offers; each of them once."""
    options: Options = Field(default={})
    """The tracker's own options. A value may be pvc://claim/folder; the claim is then mounted."""
    samples: Annotated[int, Field(ge=0, le=100), OMITTED_IF_EMPTY] = 0
    """Groups of samples in the table that it gets of each evaluation, and of training about once a minute: prompts and
    answers. 0: none. On a cluster, its pod can then read the claim of the checkpoints."""
    timeout_seconds: Annotated[float, Field(gt=0, le=3600)] = 60.0
    """Seconds that the tracker may take to store metrics; after that its process is started again."""
    image: Image | None = None
    """Image of the tracker's process, with rljob and the tracker's package; absent: the job's."""
    credentials_secret: ObjectName | None = None
    """Secret whose keys become environment variables of the tracker's process, such as WANDB_API_KEY. rljob run passes
    the variables of your shell."""
