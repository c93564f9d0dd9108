"""What the operator of a site makes of a RolloutPool of the hub, in the site's own cluster.

| object | name | owner |
|---|---|---|
| RolloutPool; its pods use the site's NATS server | as at the hub | none: its RLJob is at the hub |
| ConfigMap, Deployment, PodDisruptionBudget | as at the hub | the RolloutPool |
| ServiceAccount, NetworkPolicy | `<pool>-worker`, `<pool>-workers` | the RolloutPool |
| Secret, ConfigMap with the token, of a server with credentials | `<pool>-nats-rollout-…`, `<pool>-nats-tokens` | it |

Kubernetes deletes the others after the RolloutPool.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pydantic import ValidationError

from rljob_core import worker_protocol
from rljob_core.config import JobConfig
from rljob_core.errors import SpecError
from rljob_core.spec import RLJob
from rljob_operator import names
from rljob_operator.children import isolation
from rljob_operator.children.cluster_defaults import ClusterDefaults
from rljob_operator.children.desired import engines, pool_children
from rljob_operator.children.egress import worker_egress
from rljob_operator.children.metadata import policy_manifest, pool_child_metadata, with_digest
from rljob_operator.children.metrics_port import port_of, scrapers
from rljob_operator.children.nats_credentials import TOKEN_VOLUME, Access, site_access, site_credentials
from rljob_operator.children.resolved_job import ResolvedJob
from rljob_operator.cluster.port import Manifest
from rljob_operator.names import Role
from rljob_operator.nats.credentials import Issuer, JobKeys

_CONTAINERS = ("containers", "initContainers")


def site_pool(pool: Manifest, defaults: ClusterDefaults, current: Manifest | None = None) -> Manifest:
    """The site's RolloutPool.

    Args:
        pool: the hub's.
        defaults: of the site's cluster.
        current: the site's as it is; None if there is none. One that is scaled at the site keeps its number of engines.

    Raises:
        SpecError: this release cannot read the pool's configuration.
    """
    metadata, spec = pool["metadata"], pool["spec"]
    template = _template(spec, metadata["name"], defaults.nats_url)
    if defaults.issuer is not None:
        found = site_access(metadata["name"], _keys(_job(pool, defaults), defaults.issuer))
        template = _with_access(template, found)
    made = {field: pool[field] for field in ("apiVersion", "kind")}
    annotations = {names.HUB_UID: metadata["uid"], names.HUB_GENERATION: str(metadata["generation"])}
    kept = {field: metadata[field] for field in ("namespace", "name", "labels")}
    replicas = (
        spec["replicas"] if current is None or not is_scaled_here(pool) else current["spec"]["replicas"]
    )
    return with_digest(
        {
            **made,
            "metadata": {**kept, "annotations": annotations},
            "spec": {**spec, "replicas": replicas, "template": template},
        }
    )


def is_scaled_here(pool: Manifest) -> bool:
    """Whether the number of a RolloutPool's engines is set in the cluster of its site."""
    return bool((pool["spec"].get("scaling") or {}).get("owner") == "Site")


def site_children(
    pool: Manifest, *, uid: str, defaults: ClusterDefaults, expires: Callable[[str], int] = lambda _: 0
) -> tuple[Manifest, ...]:
    """What the site's RolloutPool with that uid owns.

    Args:
        pool: the RolloutPool.
        uid: its uid.
        defaults: of the site's cluster.
        expires: returns the second since 1970 from which the server refuses the token of a job with a UID.

    Raises:
        SpecError: this release cannot read the pool's configuration.
    """
    name, spec, job = pool["metadata"]["name"], pool["spec"], _job(pool, defaults)
    identity = names.identity(spec["job"], Role.ROLLOUT, spec["pool"])
    credentials: tuple[Manifest, ...] = ()
    if defaults.issuer is not None:
        until, keys = expires(job.config.uid), _keys(job, defaults.issuer)
        credentials = site_credentials(pool, keys, uid=uid, expires=until)
    readers = scrapers(port_of(spec["template"]), defaults.scraper_namespaces)
    children = (
        isolation.service_account(pool_child_metadata(pool, names.service_account(name), uid=uid)),
        policy_manifest(
            pool_child_metadata(pool, names.network_policy(name), uid=uid),
            {"matchLabels": identity},
            ingress=readers,
            egress=worker_egress(job),
        ),
        isolation.disruption_budget(
            pool_child_metadata(pool, name, uid=uid),
            job=job.spec,
            of=spec["job"],
            pool=spec["pool"],
            replicas=engines(pool),
        ),
        *pool_children(pool, uid=uid),
        *credentials,
    )
    return tuple(map(with_digest, children))


def _job(pool: Manifest, defaults: ClusterDefaults) -> ResolvedJob:
    """The job of a pool, by the configuration that the pool's engines read.

    Fields that this release does not know are for the engines: their image is that of the hub.
    """
    try:
        config = JobConfig.model_validate_json(pool["spec"]["config"], extra="ignore")
        job = RLJob.model_validate(
            {
                "apiVersion": pool["apiVersion"],
                "kind": "RLJob",
                "metadata": {"namespace": config.namespace, "name": config.job, "uid": config.uid},
                "spec": config.spec,
            }
        )
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"]))
        message = (
            f"is of another release than this site's operator, which cannot read its {where}: {first['msg']}"
        )
        raise SpecError("the pool's configuration", message) from error
    return ResolvedJob(
        job=job,
        defaults=defaults,
        config=config,
        claims=(),
        nats_url=defaults.nats_url,
        image="",
        issuer=None,
    )


def _keys(job: ResolvedJob, issuer: Issuer) -> JobKeys:
    """The keys of a job at this site. A new generation of the hub's credentials makes other ones here, too."""
    config = job.config
    generation = config.spec.nats.credentials_generation
    return JobKeys(issuer, config.namespace, config.job, config.uid, generation)


def _with_access(template: Manifest, access: Access) -> Manifest:
    """The template with the site's credentials in each container that had the hub's, or reaches a NATS server."""
    spec = template["spec"]
    found = {part: [_reaching(c, access) for c in spec[part]] for part in _CONTAINERS if spec.get(part)}
    volumes = [*(v for v in spec.get("volumes") or [] if v["name"] != TOKEN_VOLUME), *access.volumes]
    return {**template, "spec": {**spec, **found, "volumes": volumes}}


def _reaching(container: Manifest, access: Access) -> Manifest:
    ours = {worker_protocol.NATS_CREDENTIALS, worker_protocol.NATS_JWT}
    variables: list[dict[str, Any]] = container.get("env") or []
    if all(v["name"] != worker_protocol.NATS_URL for v in variables):
        return container
    env = [*(v for v in variables if v["name"] not in ours), *access.variables]
    mounts = [m for m in container.get("volumeMounts") or [] if m["name"] != TOKEN_VOLUME]
    return {**container, "env": env, "volumeMounts": [*mounts, *access.mounts]}


def _template(pool: Manifest, name: str, nats_url: str) -> Manifest:
    """The pod template of a RolloutPool's spec, as it is at the site."""
    template = pool["template"]
    spec = template["spec"]
    found = {part: [_container(c, nats_url) for c in spec[part]] for part in _CONTAINERS if spec.get(part)}
    account = spec.get("serviceAccountName")
    if account in {None, names.service_account(pool["job"])}:
        account = names.service_account(
            name
        )  # the job's is at the hub; one that the pool's template names is its own
    return {**template, "spec": {**spec, **found, "serviceAccountName": account}}


def _container(container: Manifest, nats_url: str) -> Manifest:
    """The container, with the site's NATS server where the hub's was."""
    variables: list[dict[str, Any]] = container.get("env") or []
    env = [{**v, "value": nats_url} if v["name"] == worker_protocol.NATS_URL else v for v in variables]
    return {**container, **({"env": env} if env else {})}
