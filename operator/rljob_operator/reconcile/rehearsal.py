"""Has the cluster check the pod templates of a new spec before anything of the spec is written.

The operator itself finds what does not fit when it merges a user's patch into a pod template. What the API server finds
(unknown fields, values that it does not allow) showed before only when the first objects had been written.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rljob_core.spec import RLJobSpec
from rljob_operator import names
from rljob_operator.children.desired import pool_children
from rljob_operator.cluster.port import Cluster, Manifest, Ref
from rljob_operator.decisions.observe import Observed
from rljob_operator.decisions.plan import Apply, plan
from rljob_operator.names import Role

_NO_POOL_YET = "00000000-0000-0000-0000-000000000000"


class Rehearsal:
    """The checks of one job's templates, once for each generation of its spec."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._passed: int | None = None

    async def check(self, observed: Observed, wanted: Sequence[Manifest]) -> None:
        """Check the workloads that are to be created or changed, as far as the user has patched their templates.

        Raises:
            Rejected: the cluster would refuse a workload.
            NameTaken: an object that is not the job's has a workload's name.
        """
        generation = observed.job.metadata.generation
        if self._passed == generation:
            return
        applied = [action.manifest for action in plan(observed, wanted) if isinstance(action, Apply)]
        for manifest in _workloads(observed, applied):
            await self._cluster.check(manifest)
        self._passed = generation


def _workloads(observed: Observed, applied: Sequence[Manifest]) -> Iterator[Manifest]:
    """The Deployments and Jobs among these manifests, and those that their RolloutPools will own, with user patches."""
    patched = _patched(observed.job.spec)
    for manifest in applied:
        labels = manifest["metadata"]["labels"]
        if (labels.get(names.LABEL_ROLE), labels.get(names.LABEL_POOL)) not in patched:
            continue
        if manifest["kind"] in {"Deployment", "Job"}:
            yield manifest
        elif manifest["kind"] == "RolloutPool":
            owned = pool_children(manifest, uid=_NO_POOL_YET)
            yield from (
                child
                for child in owned
                if child["kind"] == "Deployment" and Ref.of(child) not in observed.children
            )


def _patched(spec: RLJobSpec) -> set[tuple[str, str | None]]:
    """Role and pool of the templates that the user has patched."""
    environment = spec.rollout.environment
    found: dict[tuple[str, str | None], object] = {
        (Role.COORDINATOR.value, None): spec.coordinator.template,
        (Role.REWARD.value, None): spec.reward.template,
        (Role.ENVIRONMENT.value, None): None if environment is None else environment.template,
        (Role.TRAINER.value, None): spec.trainer.template,
        **{(Role.ROLLOUT.value, pool.name): pool.template for pool in spec.rollout.pools},
    }
    return {key for key, template in found.items() if template is not None}
