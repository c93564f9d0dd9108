"""The configuration that every worker of a job loads: the job's identity and its whole spec, as one JSON file.

Each value means the same to every reader: URIs are resolved, and no reader adds defaults of its own. The environment
variables that lead a worker to the file stand in `worker_protocol`.
"""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict

from rljob_core.spec import EvaluationSpec, PoolSpec, RLJobSpec
from rljob_core.stream_names import StreamNames


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

    replicas: int = 1
    """Servers that keep each stream, where a role creates it."""

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
