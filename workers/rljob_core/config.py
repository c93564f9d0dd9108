"""The configuration that every worker of a job loads: the job's identity and its whole spec, as one JSON file.

Each value means the same to every reader: URIs are resolved, and no reader adds defaults of its own. The environment
variables that lead a worker to the file stand in `worker_protocol`.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict

from rljob_core.record_fields import OMITTED_IF_EMPTY
from rljob_core.spec import EvaluationSpec, PoolSpec, RLJobSpec, SiteLinkSpec
from rljob_core.stream_names import StreamNames


class DownloadConfig(BaseModel):
    """A model or a data set that is downloaded before a worker starts."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    uri: str
    field: str
    """The manifest's field that gives the URI."""
    source: str
    """Of a data set `jsonl` or `parquet`; empty for the model."""
    revision: str
    """Empty as long as nobody has resolved the URI."""
    path: str
    """Where the worker finds it."""


class JobConfig(BaseModel):
    """A job as its workers see it, with URIs that they can open."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    namespace: str
    job: str
    uid: str
    spec: RLJobSpec
    weights_uri: str
    """Folder of the weight files; empty if weights travel through NATS."""
    checkpoint_uri: str
    trainer_log_uri: str
    """Folder of the trainer's log of the trajectories it trained on, which the audit compares with the ledger."""

    samples_uri: str = ""
    """Folder of the samples that reward workers keep; empty to keep none."""

    replicas: int = 1
    """Servers that keep each stream, where a role creates it."""

    links: dict[str, SiteLinkSpec] = {}
    """By site, the link between it and the hub, of the sites that the spec's pools name; a site that nothing is known
    of is missing."""

    grace: Annotated[dict[str, int], OMITTED_IF_EMPTY] = {}
    """By site, its Site's `graceSeconds`, where that is longer than what a coordinator waits in any case."""
    downloads: Annotated[dict[str, DownloadConfig], OMITTED_IF_EMPTY] = {}
    """What is downloaded, by name: `model`, `data`, `evaluation`, … The spec has its path in place of its URI."""

    download_cache: Annotated[str, OMITTED_IF_EMPTY] = ""
    """Folder of the cache; empty if nothing is downloaded."""

    @property
    def subject(self) -> str:
        """The first tokens of all NATS subjects of this job."""
        return self._names.subject

    @property
    def stream_prefix(self) -> str:
        """The first part of the names of all streams and buckets of this job."""
        return self._names.prefix

    @property
    def _names(self) -> StreamNames:
        return StreamNames.of_job(namespace=self.namespace, job=self.job, uid=self.uid)

    def pool(self, name: str) -> PoolSpec:
        """The pool of that name."""
        return next(p for p in self.spec.rollout.pools if p.name == name)

    def engine_options(self, pool: str) -> dict[str, Any]:
        """The engine's options in a pool: the job's, overridden by the pool's."""
        return {**self.spec.rollout.engine.options, **self.pool(pool).engine.options}

    @property
    def evaluation(self) -> EvaluationSpec | None:
        """The evaluation; None if the job has none."""
        return self.spec.evaluation
