"""Jobs whose pools are at sites: what keeps them from running, and that they go on once it does not."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from typing import Any

import pytest
from dictionary_server import DictionaryServer
from small_job import make_small_job
from tests.waiting import until_async

from rljob_core.config import JobConfig
from rljob_core.spec import PoolSpec, RLJob, Site, SiteLinkSpec
from rljob_operator.children.cluster_defaults import ClusterDefaults
from rljob_operator.children.resolved_job import ResolvedJob, resolve_job
from rljob_operator.children.worker_pod import config_hash
from rljob_operator.cluster.kube.api import KubeApi, Page
from rljob_operator.cluster.kube.errors import ApiError
from rljob_operator.cluster.kube.kinds import resource_path
from rljob_operator.cluster.port import Manifest
from rljob_operator.decisions.conditions import condition
from rljob_operator.decisions.job_sites import KnownSites, SiteRefused, pools_at_sites, with_sites
from rljob_operator.decisions.status import Phase
from rljob_operator.names import WORKERS, Role
from rljob_operator.reconcile.reconcile import Reconciler
from rljob_operator.reconcile.site_watch import SiteWatch


def site_manifest(name: str = "east", version: int = 1, **spec: Any) -> Manifest:
    metadata = {"name": name, "uid": name, "generation": 1, "resourceVersion": str(version)}
    return {"apiVersion": "rljob.dev/v1alpha1", "kind": "Site", "metadata": metadata, "spec": spec}


def known(*manifests: Manifest, unreadable: str = "") -> KnownSites:
    sites = [Site.model_validate(manifest) for manifest in manifests]
    return KnownSites({site.metadata.name: site for site in sites}, unreadable)


def job_at(*sites: str | None, **more: Any) -> RLJob:
    pools = [{"name": f"p{i}", "site": name, **more} for i, name in enumerate(sites)]
    return make_small_job(rollout__pools=pools)


OPEN = site_manifest(namespaces=["*"])


@pytest.mark.parametrize(
    ("job", "sites", "reason", "words"),
    [
        (
            job_at(None, "east"),
            known(),
            "UnknownSite",
            "spec.rollout.pools[1].site: there is no Site east (Sites: none): create it, name another, or leave",
        ),
        (job_at("east"), known(site_manifest("west")), "UnknownSite", "(Sites: west)"),
        (
            job_at("east"),
            known(site_manifest(namespaces=["team-a"])),
            "SiteNotAllowed",
            "Site east does not admit RLJobs of namespace default: add default to its spec.namespaces, name another",
        ),
        (job_at("east"), known(site_manifest()), "SiteNotAllowed", "does not admit"),
        (
            job_at("east", template={"spec": {"nodeSelector": {"gpu": "h100"}}}),
            known(site_manifest(namespaces=["*"], poolLabels={"gpu": "l40s"})),
            "SiteNotAllowed",
            "template.spec.nodeSelector: no node of Site east has the label gpu=h100 (its spec.poolLabels: gpu=l40s)",
        ),
        (
            job_at("east"),
            known(OPEN, unreadable="this operator may not read Sites"),
            "SitesUnreadable",
            "spec.rollout.pools[0].site: this operator may not read Sites; or leave site out",
        ),
        (
            make_small_job(rollout__pools=[{"name": "a", "site": "east"}], nats={"url": "nats://own:4222"}),
            known(OPEN),
            "SiteUnsupported",
            "spec.nats.url: pool a is at Site east, which has the operator's server alone: remove url",
        ),
        (
            make_small_job(rollout__pools=[{"name": "a", "site": "east"}], nats={"credentialsSecret": "own"}),
            known(OPEN),
            "SiteUnsupported",
            "spec.nats.credentialsSecret: pool a is at Site east, where the operator makes all credentials: remove",
        ),
        (
            make_small_job(rollout__pools=[{"name": "a", "site": "east"}], weights={"uri": "/weights"}),
            known(OPEN),
            "SiteUnsupported",
            "spec.weights.transport: each engine of pool a would read all weights over the link of Site east: use",
        ),
    ],
)
def test_what_is_refused(job: RLJob, sites: KnownSites, reason: str, words: str) -> None:
    with pytest.raises(SiteRefused) as refusal:
        sites.check(job)
    assert refusal.value.reason == reason
    assert words in str(refusal.value)


@pytest.mark.parametrize(
    "job",
    [
        job_at(None),
        job_at("east", None, "east"),
        job_at("east", template={"spec": {"nodeSelector": {"gpu": "l40s"}}}),
        job_at("east", template={"spec": None}),
    ],
)
def test_what_is_allowed(job: RLJob) -> None:
    known(site_manifest(namespaces=["default"], poolLabels={"gpu": "l40s", "zone": "a"})).check(job)


def test_a_job_without_sites_does_not_ask_for_any() -> None:
    assert not any(pools_at_sites(job_at(None)))
    known(unreadable="may not").check(job_at(None))


# ---------------------------------------------------------------------------------------------- reconcile


async def test_a_job_is_stalled_until_the_site_exists(
    server: DictionaryServer, defaults: ClusterDefaults
) -> None:
    sites = known()
    reconciler = Reconciler(server, defaults, clock=lambda: server.now, sites=lambda: sites)
    job = job_at("east")
    stalled = await reconciler.reconcile(job)
    assert (stalled.phase, stalled.settled) == (Phase.STALLED, True)
    found = condition(server.stored, "Stalled")
    assert found is not None
    assert (found.status, found.reason) == ("True", "UnknownSite")
    assert ("Warning", "UnknownSite") in server.events
    assert not server.objects
    sites = known(OPEN)
    assert (await reconciler.reconcile(job)).phase is Phase.RUNNING
    assert server.objects
    sites = known()  # what runs stays
    before = set(server.objects)
    assert (await reconciler.reconcile(job)).phase is Phase.STALLED
    assert set(server.objects) == before


async def test_where_sites_are_not_checked_a_site_is_only_a_name(
    server: DictionaryServer, defaults: ClusterDefaults
) -> None:
    reconciler = Reconciler(server, defaults, clock=lambda: server.now)
    assert (await reconciler.reconcile(job_at("east"))).phase is Phase.RUNNING


# ---------------------------------------------------------------------------------------------- the watch


class SitesServer(KubeApi):
    """Lists and watches of Sites, as a test says; an error instead of a list is raised."""

    def __init__(self, lists: Iterable[Page | ApiError], *watches: list[tuple[str, Manifest]]) -> None:
        self.lists = list(lists)
        self.watches = list(watches)
        self.requests = 0

    async def pages(self, kind: str, namespace: str, selector: str) -> AsyncIterator[Page]:
        assert (kind, namespace, selector) == ("Site", "", "")
        self.requests += 1
        page = self.lists.pop(0)
        if isinstance(page, ApiError):
            raise page
        yield page

    async def watch(
        self, kind: str, namespace: str, selector: str, version: str
    ) -> AsyncIterator[tuple[str, Manifest]]:
        self.requests += 1
        if self.watches:
            for event in self.watches.pop(0):
                yield event
            raise ApiError(410, "Expired", "too old")
        await asyncio.Event().wait()


def test_a_site_is_in_no_namespace() -> None:
    assert resource_path("Site", "default", "east") == "/apis/rljob.dev/v1alpha1/sites/east"


async def followed(api: SitesServer, *, lists: int) -> tuple[SiteWatch, int]:
    """The watch after it has read, and all that the server says; and how often it reported a change."""
    changes: list[int] = []
    watch = SiteWatch(api, changed=lambda: changes.append(1))
    running = asyncio.create_task(watch.run())
    await asyncio.sleep(0)
    assert api.requests == 0, "nobody has asked for Sites"
    await watch.read()
    await watch.read()
    assert api.requests == 1
    await until_async(lambda: not (api.watches or len(api.lists) > lists))
    await asyncio.sleep(0.01)
    running.cancel()
    return watch, len(changes)


async def test_sites_are_read_when_the_first_job_names_one_and_followed_from_then_on() -> None:
    east, west = site_manifest(), site_manifest("west")
    beat = {**site_manifest(version=3), "status": {"connected": True}}
    other = site_manifest(version=4, namespaces=["*"])
    api = SitesServer(
        [Page([east], "1"), Page([other], "9")],
        [("ADDED", west), ("MODIFIED", beat), ("MODIFIED", other), ("DELETED", west), ("ADDED", west)],
    )
    watch, changes = await followed(api, lists=0)
    assert set(watch.known.sites) == {"east"}, "what is missing from the second list is gone"
    assert watch.known.sites["east"].spec.namespaces == ["*"]
    assert changes == 5, "a status is no change"


@pytest.mark.parametrize(
    ("status", "words"), [(403, "list and watch sites.rljob.dev"), (404, "applies the CRDs of this release")]
)
async def test_where_sites_cannot_be_read_it_says_so_until_they_can(status: int, words: str) -> None:
    api = SitesServer([ApiError(status, "", "no"), Page([OPEN], "5")])
    changes: list[str] = []
    watch = SiteWatch(api, changed=lambda: changes.append(watch.known.unreadable))
    await watch.read()
    assert words in watch.known.unreadable
    running = asyncio.create_task(watch.run())
    await until_async(lambda: not watch.known.unreadable)
    running.cancel()
    watch.known.check(job_at("east"))
    assert changes[-1] == ""


async def test_a_server_that_does_not_answer_says_nothing_about_sites() -> None:
    watch = SiteWatch(
        SitesServer([ApiError(0, "Unreachable", "no"), Page([OPEN], "5")]), changed=lambda: None
    )
    with pytest.raises(ApiError):
        await watch.read()
    await watch.read()
    watch.known.check(job_at("east"))


async def test_a_site_of_a_newer_release_is_read_without_what_is_new_and_a_broken_one_is_named() -> None:
    newer = site_manifest(namespaces=["*"], colour="green")
    watch = SiteWatch(
        SitesServer([Page([newer, site_manifest("bad", graceSeconds=-1)], "5")]), changed=lambda: None
    )
    await watch.read()
    assert set(watch.known.sites) == {"east"}
    with pytest.raises(
        SiteRefused, match=r"cannot read Site bad \(spec.graceSeconds: .*: correct it"
    ) as refused:
        watch.known.check(job_at("bad"))
    assert refused.value.reason == "SitesUnreadable"


def test_links_reach_the_configuration_and_restart_the_coordinator_alone(defaults: ClusterDefaults) -> None:
    job = job_at(None, "east")

    def pods(**link: Any) -> tuple[ResolvedJob, dict[Role, str]]:
        sites = known(site_manifest(namespaces=["*"], link=link), site_manifest("west"))
        resolved = resolve_job(job, with_sites(defaults, lambda: sites))
        return resolved, {role: config_hash(resolved, role, pool_of(role)) for role in WORKERS}

    def pool_of(role: Role) -> PoolSpec | None:
        return job.spec.rollout.pools[1] if role is Role.ROLLOUT else None

    resolved, before = pods(bitsPerSecond=10**8)
    assert resolved.config.links == {"east": SiteLinkSpec(bits_per_second=10**8)}
    assert JobConfig.model_validate_json(resolved.config_text).links == resolved.config.links
    other, after = pods(bitsPerSecond=10**9)
    assert other.digest != resolved.digest
    assert {role for role in WORKERS if before[role] != after[role]} == {Role.COORDINATOR}


@pytest.mark.parametrize(("seconds", "grace"), [(0, {}), (600, {}), (601, {"east": 601})])
def test_a_grace_that_is_longer_than_any_coordinators_restarts_the_coordinator_alone(
    defaults: ClusterDefaults, seconds: int, grace: dict[str, int]
) -> None:
    job, pool_of = job_at(None, "east"), {Role.ROLLOUT: job_at(None, "east").spec.rollout.pools[1]}

    def pods(**spec: Any) -> tuple[ResolvedJob, dict[Role, str]]:
        sites = known(site_manifest(namespaces=["*"], **spec), site_manifest("west", graceSeconds=900))
        resolved = resolve_job(job, with_sites(defaults, lambda: sites))
        return resolved, {role: config_hash(resolved, role, pool_of.get(role)) for role in WORKERS}

    (plain, before), (resolved, after) = pods(), pods(graceSeconds=seconds)
    assert JobConfig.model_validate_json(resolved.config_text).grace == grace
    assert (resolved.digest != plain.digest) == bool(grace)
    assert {r for r in WORKERS if before[r] != after[r]} == ({Role.COORDINATOR} if grace else set())


def test_without_sites_nothing_changes(defaults: ClusterDefaults) -> None:
    assert with_sites(defaults, None) is defaults
    assert with_sites(defaults, known) is defaults
    assert resolve_job(job_at(None), defaults).config.links == {}
