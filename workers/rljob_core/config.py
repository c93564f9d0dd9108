"""What the operator renders and every worker loads: the job's identity and its whole spec, as one JSON file.

Environment of a worker: `RLJOB_CONFIG` (path of that file), `RLJOB_NATS_URL`, `RLJOB_POD` (its name),
`RLJOB_POOL` (rollout), `RLJOB_ATTEMPT` (trainer), `RLJOB_NATS_CREDENTIALS` (the role's own credentials, or
their file's path, where the server asks for any).
"""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict

from rljob_core.spec import EvaluationSpec, PoolSpec, RLJobSpec
from rljob_core.stream_names import StreamNames


class JobConfig(BaseModel):
    """A job as its workers see it: URIs are resolved, nothing is left to default by the reader."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    namespace: str
    job: str
    uid: str
    spec: RLJobSpec
    weights_uri: str
    """Where the files of weights are; empty where they travel otherwise."""
    checkpoint_uri: str
    trainer_log_uri: str
    """Folder of the trainer's own record of what it fed to backward (the audit's third witness)."""

    @property
    def subject(self) -> str:
        """First tokens of every subject of this job."""
        return self._names.subject

    @property
    def stream_prefix(self) -> str:
        """First part of every stream and bucket name of this job."""
        return self._names.prefix

    @property
    def _names(self) -> StreamNames:
        return StreamNames.of_job(namespace=self.namespace, job=self.job, uid=self.uid)

    def pool(self, name: str) -> PoolSpec:
        """The pool of that name."""
        return next(p for p in self.spec.rollout.pools if p.name == name)

    def engine_options(self, pool: str) -> dict[str, Any]:
        """The engine's options in that pool."""
        return {**self.spec.rollout.engine.options, **self.pool(pool).engine.options}

    @property
    def evaluation(self) -> EvaluationSpec | None:
        """The evaluation, if any."""
        return self.spec.evaluation
