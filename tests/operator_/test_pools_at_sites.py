"""Pools at sites, as the hub sees them: what is made here, and what their status says of what sites report."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from dictionary_server import NOW, DictionaryServer
from pydantic import ValidationError
from small_job import make_small_job

from rljob_core.site_costs import LinkCosts
from rljob_core.spec import RLJob, RolloutPool
from rljob_operator.children.cluster_defaults import ClusterDefaults
from rljob_operator.cluster.port import Manifest, Ref
from rljob_operator.decisions.autoscaling import _pool
from rljob_operator.decisions.observe import summarize
from rljob_operator.decisions.site_documents import document_of
from rljob_operator.decisions.site_reports import (
    SILENT,
    Agreement,
    PoolReport,
    SiteBeat,
    SiteContact,
    SitePool,
    new_events,
)
from rljob_operator.decisions.site_status import site_status, why_lost
from rljob_operator.names import managing_site, site_manager
from rljob_operator.reconcile.reconcile import Reconciler

POOL = Ref("RolloutPool", "default", "chain-sum-rollout-far")
SERVES = {"type": "Ready", "status": "True", "reason": "EnginesServe"}
LATER = timedelta(hours=1)


def far_job(**more: Any) -> RLJob:
    return make_small_job(
        rollout__pools=[{"name": "near"}, {"name": "far", "site": "east", "replicas": 2}], **more
    )


class Hub:
    """The hub's reconciler, which knows of sites what a test says."""

    def __init__(self, server: DictionaryServer, defaults: ClusterDefaults) -> None:
        self.server = server
        self.pools = {"far": SitePool("east")}
        self.reconciler = Reconciler(
            server, replace(defaults, sites=True), clock=lambda: server.now, site_pools=lambda _: self.pools
        )

    async def settle(self, job: RLJob | None = None) -> None:
        while (await self.reconciler.reconcile(job or far_job())).actions:
            pass

    @property
    def pool(self) -> Manifest:
        return self.server.objects[POOL]

    def report(
        self, *, ready: int = 2, generation: int | None = None, uid: str = "", **condition: str
    ) -> None:
        metadata = self.pool["metadata"]
        self.pools["far"] = SitePool(
            "east",
            PoolReport.model_validate(
                {
                    "uid": uid or metadata["uid"],
                    "generation": metadata["generation"] if generation is None else generation,
                    "replicas": 2,
                    "ready_replicas": ready,
                    "conditions": [{**SERVES, **condition}],
                }
            ),
        )

    def ready(self) -> tuple[str, str, str]:
        (found,) = (c for c in self.pool["status"]["conditions"] if c["type"] == "Ready")
        return found["status"], found["reason"], found["message"]


@pytest.fixture
async def hub(server: DictionaryServer, defaults: ClusterDefaults) -> Hub:
    found = Hub(server, defaults)
    await found.settle()
    return found


def names_of(server: DictionaryServer, kind: str) -> set[str]:
    return {ref.name for ref in server.objects if ref.kind == kind}


# ---------------------------------------------------------------------------------------------- what is made


async def test_of_a_pool_at_a_site_only_the_pool_itself_is_made_here(hub: Hub) -> None:
    assert hub.pool["spec"]["managedBy"] == "rljob.dev/site-east"
    assert RolloutPool.model_validate({k: v for k, v in hub.pool.items() if k != "status"})
    assert (
        "managedBy" not in hub.server.objects[Ref("RolloutPool", "default", "chain-sum-rollout-near")]["spec"]
    )
    for kind in ("Deployment", "PodDisruptionBudget", "ConfigMap"):
        assert not [name for name in names_of(hub.server, kind) if "rollout-far" in name], kind
    assert "chain-sum-rollout-near" in names_of(hub.server, "Deployment")


async def test_a_pool_that_becomes_a_site_s_loses_its_engines_here(
    server: DictionaryServer, defaults: ClusterDefaults
) -> None:
    """As after an upgrade: before, a datacenter had no effect."""
    before = Reconciler(server, defaults, clock=lambda: server.now)
    while (await before.reconcile(far_job())).actions:
        pass
    assert "chain-sum-rollout-far" in names_of(server, "Deployment")
    hub = Hub(server, defaults)
    await hub.settle()
    assert "chain-sum-rollout-far" not in names_of(server, "Deployment") | names_of(
        server, "PodDisruptionBudget"
    )
    assert hub.pool["spec"]["managedBy"] == "rljob.dev/site-east"


async def test_scaling_the_hub_s_pool_is_kept(hub: Hub) -> None:
    hub.pool["spec"]["replicas"] = 5
    await hub.settle()
    assert hub.pool["spec"]["replicas"] == 5


async def test_engines_at_a_site_mount_only_the_model(
    server: DictionaryServer, defaults: ClusterDefaults
) -> None:
    """Checkpoints are at the hub: the site need not have a claim for them."""
    hub = Hub(server, defaults)
    await hub.settle(far_job(model__uri="pvc://models/tiny", trainer__checkpoint__uri="pvc://c/f"))
    near = Ref("RolloutPool", "default", "chain-sum-rollout-near")
    found = {
        ref.name: [
            v["persistentVolumeClaim"]["claimName"]
            for v in server.objects[ref]["spec"]["template"]["spec"]["volumes"]
            if "persistentVolumeClaim" in v
        ]
        for ref in (POOL, near)
    }
    assert found == {POOL.name: ["models"], near.name: ["c", "models"]}


def test_whose_a_pool_is() -> None:
    assert managing_site(site_manager("east")) == "east"
    assert managing_site(None) is None
    assert managing_site("example.org/other") is None


# ---------------------------------------------------------------------------------------------- its status


async def test_the_status_is_what_the_site_has_reported(hub: Hub) -> None:
    assert hub.ready() == ("Unknown", "SitePending", "Site east has not reported this pool yet")
    assert hub.pool["status"]["readyReplicas"] == 0
    hub.report(ready=1, status="False", reason="Unschedulable", message="pod x: no node")
    await hub.settle()
    assert (hub.pool["status"]["replicas"], hub.pool["status"]["readyReplicas"]) == (2, 1)
    assert hub.ready() == ("False", "Unschedulable", "Site east: pod x: no node")
    assert hub.server.stored.rollout == "1/3"
    hub.report()
    await hub.settle()
    assert hub.ready() == ("True", "EnginesServe", "")
    assert hub.pool["status"]["observedGeneration"] == hub.pool["metadata"]["generation"]


async def test_engines_at_a_site_cost_what_they_cost(
    server: DictionaryServer, defaults: ClusterDefaults
) -> None:
    hub = Hub(server, defaults)
    job = make_small_job(
        rollout__pools=[{"name": "near"}, {"name": "far", "site": "east", "costPerHour": "2.5"}]
    )
    await hub.settle(job)
    hub.report()
    await hub.settle(job)
    server.now += timedelta(seconds=20)
    await hub.settle(job)
    assert server.stored.cost is not None
    assert server.stored.cost.per_hour == 5.0


async def test_before_the_reports_are_read_the_status_stays(hub: Hub) -> None:
    hub.report()
    await hub.settle()
    before = hub.pool["status"]
    hub.pools.clear()
    await hub.settle()
    assert hub.pool["status"] == before
    assert hub.server.stored.rollout == "2/3"


async def test_beyond_the_grace_nobody_knows_and_the_counts_stay(hub: Hub) -> None:
    hub.report()
    await hub.settle()
    hub.pools["far"] = replace(hub.pools["far"], away=timedelta(seconds=601))
    await hub.settle()
    assert hub.ready() == (
        "Unknown",
        "SiteAway",
        "Site east has not been heard for 601 s; its engines may serve",
    )
    assert hub.pool["status"]["readyReplicas"] == 2


async def test_the_hub_s_pool_follows_one_that_is_scaled_at_its_site(
    server: DictionaryServer, defaults: ClusterDefaults
) -> None:
    hub = Hub(server, defaults)
    scaling = {"owner": "Site", "minReplicas": 1, "maxReplicas": 8}
    job = make_small_job(
        rollout__pools=[{"name": "near"}, {"name": "far", "site": "east", "scaling": scaling}]
    )
    await hub.settle(job)
    assert hub.pool["spec"]["replicas"] == 1
    hub.report()
    known = hub.pools["far"]
    assert known.report is not None
    hub.pools["far"] = replace(known, report=known.report.model_copy(update={"wanted": 5}))
    await hub.settle(job)
    assert hub.pool["spec"]["replicas"] == 5
    hub.pool["spec"]["replicas"] = 2  # kubectl scale at the hub
    await hub.settle(job)
    assert hub.pool["spec"]["replicas"] == 5
    assert server.stored.rollout == "2/6"
    hub.pools.clear()  # an operator that has just started
    await hub.settle(job)
    assert hub.pool["spec"]["replicas"] == 5


@pytest.mark.parametrize("pool", [{}, {"site": "east", "costPerHour": "1"}])
def test_a_pool_of_the_hub_and_one_that_the_operator_scales_have_no_owner_at_a_site(
    pool: dict[str, Any],
) -> None:
    scaling = {"owner": "Site", "maxReplicas": 2, **({"policy": "Internal"} if pool else {})}
    with pytest.raises(ValidationError, match=r"scaling\.owner Site is for pools of scaling policy External"):
        make_small_job(rollout__pools=[{"name": "far", **pool, "scaling": scaling}])


async def test_engines_of_a_site_that_is_away_are_counted_on_for_nothing_and_stay_as_they_are(
    server: DictionaryServer, defaults: ClusterDefaults
) -> None:
    hub = Hub(server, defaults)
    scaling = {"policy": "Internal", "minReplicas": 0, "maxReplicas": 8}
    pools = [
        {"name": "near", "costPerHour": "1", "scaling": scaling},
        {"name": "far", "site": "east", "costPerHour": "1", "scaling": scaling},
    ]
    job = make_small_job(rollout__pools=pools)
    await hub.settle(job)
    hub.report(ready=1)
    await hub.settle(job)
    hub.pools["far"] = replace(hub.pools["far"], away=timedelta(seconds=700))
    observed = summarize(job, server.stored, await server.children(job), now=server.now, site_pools=hub.pools)
    (_near, far) = (
        _pool(observed, pool, {"near": 1, "far": 3}, free=True, costs=LinkCosts())
        for pool in job.spec.rollout.pools
    )
    assert (far.unheard, far.ready, far.wanted) == (True, 0, 3)


async def test_engines_of_a_lost_site_count_for_nothing_and_the_coordinator_is_told(hub: Hub) -> None:
    config = Ref("ConfigMap", "default", "chain-sum-config")
    pools = Ref("ConfigMap", "default", "chain-sum-rollout-near-config")
    hub.report()
    await hub.settle()
    before = hub.server.objects[config]["data"], hub.server.objects[pools]["data"], hub.pool["spec"]
    assert set(before[0]) == {"config.json"}
    hub.pools["far"] = replace(hub.pools["far"], away=timedelta(hours=30), lost="is forgotten")
    await hub.settle()
    status, reason, message = hub.ready()
    assert (status, reason) == ("False", "SiteLost")
    assert message == "Site east is forgotten: its engines count for nothing until it is heard"
    assert hub.pool["status"]["readyReplicas"] == 0
    assert hub.server.objects[config]["data"] == {**before[0], "lost-sites.json": '["east"]'}
    assert (hub.server.objects[pools]["data"], hub.pool["spec"]) == before[1:], (
        "no engine is replaced by that"
    )
    hub.report()
    await hub.settle()
    assert hub.server.objects[config]["data"] == before[0]
    assert hub.ready()[0] == "True"


async def test_beyond_its_grace_a_site_s_work_is_not_kept_for_it(hub: Hub) -> None:
    config = Ref("ConfigMap", "default", "chain-sum-config")
    hub.report()
    hub.pools["far"] = replace(hub.pools["far"], away=timedelta(seconds=61))
    await hub.settle()
    assert hub.server.objects[config]["data"]["lost-sites.json"] == '["east"]'
    assert hub.ready()[:2] == ("Unknown", "SiteAway")
    hub.report()
    await hub.settle()
    assert "lost-sites.json" not in hub.server.objects[config]["data"]


def test_when_a_site_counts_as_lost() -> None:
    beat = "2026-01-02T03:04:05Z"

    def lost(word: str | None, *, seconds: int = 86_400, after: timedelta = LATER, **status: str) -> str:
        annotations = {} if word is None else {"annotations": {"rljob.dev/forget": word}}
        manifest = {"metadata": {"name": "east", **annotations}, "status": {"connected": False, **status}}
        contact = SiteContact.known_from(manifest["status"], NOW + timedelta(seconds=1))
        return why_lost(manifest, contact, seconds=seconds, now=NOW + after)

    assert lost(None, lastBeat=beat) == ""
    assert (
        lost(None, lastBeat=beat, seconds=600) == "has not been heard for 3600 s, longer than its lostSeconds"
    )
    assert lost(beat, lastBeat=beat) == "is forgotten"
    assert lost(beat, lastBeat="2026-01-02T03:04:06Z") == "", "it has been heard since"
    assert lost("never") == "is forgotten"
    assert lost("never", lastBeat=beat) == ""
    heard = SiteContact(NOW, SiteBeat(number=2), heard=NOW + LATER)
    manifest = {"metadata": {"annotations": {"rljob.dev/forget": beat}}, "status": {"lastBeat": beat}}
    assert why_lost(manifest, heard, seconds=60, now=NOW + LATER) == ""


async def test_a_report_of_an_older_spec_or_another_pool_is_not_this_one_s(hub: Hub) -> None:
    hub.report(generation=0)
    await hub.settle()
    assert hub.ready()[:2] == ("False", "SitePending")
    hub.report(uid="of-one-that-is-gone")
    await hub.settle()
    assert hub.ready()[:2] == ("Unknown", "SitePending")
    assert hub.pool["status"]["replicas"] == 0


# ---------------------------------------------------------------------------------------------- when a site is heard


def test_a_beat_counts_once_it_has_changed_and_by_the_hub_s_clock() -> None:
    contact = SiteContact(NOW)
    old = contact.after(SiteBeat(number=7), NOW + LATER)
    assert old.heard is None, "it may have lain there for days"
    assert old.after(SiteBeat(number=7), NOW + 2 * LATER).heard is None
    heard = old.after(SiteBeat(number=8), NOW + 2 * LATER)
    assert heard.heard == NOW + 2 * LATER
    assert heard.after(None, NOW + 3 * LATER) == heard


@pytest.mark.parametrize("grace", [timedelta(0), timedelta(seconds=600)])
def test_a_site_is_away_after_its_grace_and_never_at_once(grace: timedelta) -> None:
    contact = SiteContact(NOW, SiteBeat(number=1), heard=NOW)
    limit = max(grace, SILENT)
    assert contact.away(NOW + limit, grace) is None
    assert contact.away(NOW + limit + timedelta(seconds=1), grace) == limit + timedelta(seconds=1)


def test_an_operator_that_starts_does_not_say_at_once_that_a_site_is_away() -> None:
    assert SiteContact(NOW).away(NOW + timedelta(seconds=600), timedelta(seconds=600)) is None
    known = {"connected": True, "lastBeat": "2026-01-01T00:00:00Z", "observedGeneration": 1, "conditions": []}
    assert site_status(known, SiteContact(NOW), generation=2, now=NOW + SILENT) == {
        **known,
        "observedGeneration": 2,
    }
    silent = site_status(known, SiteContact(NOW), generation=2, now=NOW + SILENT + timedelta(seconds=1))
    assert silent["connected"] is False
    assert silent["lastBeat"] == known["lastBeat"]
    assert "last heard at 2026-01-01T00:00:00Z" in silent["conditions"][0]["message"]


def test_an_operator_that_starts_goes_on_from_the_silence_that_an_earlier_one_has_seen() -> None:
    gone = {"connected": False, "lastBeat": "2026-01-02T03:04:05Z"}
    grace = timedelta(seconds=600)
    assert SiteContact.known_from(gone, NOW + LATER).away(NOW + LATER, grace) == LATER
    heard = SiteContact.known_from({**gone, "connected": True}, NOW + LATER)
    assert heard.away(NOW + LATER, grace) is None, "it was heard, and this operator has not looked yet"
    assert SiteContact.known_from({}, NOW).since == NOW
    of_the_future = SiteContact.known_from(gone, NOW - LATER)
    assert of_the_future.away(NOW, grace) == LATER, "the clock of the hub has been set back"


def test_two_sides_that_differ_for_long_do_not_agree_by_themselves() -> None:
    start = Agreement()
    assert (start.agrees, start.broken(NOW)) == (None, False)
    differ = start.after(False, NOW).after(False, NOW + timedelta(seconds=15))
    assert not differ.broken(NOW + timedelta(seconds=15))
    assert differ.broken(NOW + timedelta(seconds=16))
    assert not differ.after(True, NOW + LATER).broken(NOW + LATER)


def test_what_is_new_in_a_report_of_events_is_told_once() -> None:
    document = document_of(
        {"metadata": {"namespace": "n", "name": "p", "uid": "u"}, "spec": {"job": "j", "pool": "far"}}
    )

    def report(*reasons: str) -> PoolReport:
        return PoolReport.model_validate(
            {"uid": "u", "generation": 1, "events": [{"reason": r, "message": "m"} for r in reasons]}
        )

    (event,) = new_events("east", document, report("Old"), report("Old", "New"))
    assert (event.type, event.reason, event.message) == ("Warning", "New", "pool far, at Site east: m")
    assert new_events("east", document, report("Old"), None) == []
    assert len(new_events("east", document, None, report("Old"))) == 1


def conditions(status: Manifest) -> dict[str, tuple[str, str]]:
    return {c["type"]: (c["status"], c["message"]) for c in status["conditions"]}


def test_the_status_of_a_site() -> None:
    beat = SiteBeat(number=2, pools="a", outbox_bytes=10, mirror_lag=3)
    contact = SiteContact(NOW, beat, heard=NOW)
    status = site_status({}, contact, generation=1, now=NOW, pools="b")
    assert (status["connected"], status["lastBeat"]) == (True, "2026-01-02T03:04:05Z")
    assert (status["outboxBytes"], status["mirrorLag"]) == (10, 3)
    assert conditions(status) == {
        "Connected": ("True", ""),
        "CaughtUp": (
            "False",
            (
                "10 bytes wait for the hub, 3 messages of the hub wait for the site, "
                "the site has not read the newest state of its pools"
            ),
        ),
    }
    done = site_status(
        status,
        replace(contact, beat=SiteBeat(number=3, pools="b")),
        generation=1,
        now=NOW + SILENT,
        pools="b",
    )
    assert conditions(done) == {"Connected": ("True", ""), "CaughtUp": ("True", "")}
    times = [condition["lastTransitionTime"] for condition in done["conditions"]]
    assert times == ["2026-01-02T03:04:05Z", "2026-01-02T03:04:35Z"]
    gone = site_status(done, contact, generation=1, now=NOW + LATER, pools="b")
    assert conditions(gone)["CaughtUp"][0] == "Unknown"
    assert conditions(gone)["Connected"][0] == "False"
    never = site_status({}, SiteContact(NOW), generation=1, now=NOW + LATER)
    assert "never heard" in conditions(never)["Connected"][1]
    assert "lastBeat" not in never
