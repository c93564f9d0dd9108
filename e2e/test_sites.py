"""A job over two clusters, the hub and a site, set up as docs/sites.md says, while much happens to the site.

One job runs through all tests but two. It is emulated: what cuts, servers and nodes do to it is the same. Each test
ends with steps that were trained on what the site's engines have generated since, and with an audit that holds.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.night import NIGHT, chance

from e2e.conftest import FLAGS
from e2e.console import Terminal, essence
from e2e.harness.availability import available
from e2e.harness.find import Source, choose
from e2e.harness.images import BASE_IMAGE
from e2e.jobs import Job, emulated_example, example
from e2e.ledger_reader import site_is_trained_on
from e2e.sites_page import page_console, page_job
from e2e.two_sites import SITE, TwoSites

pytestmark = pytest.mark.timeout(1800)

MINUTES_AWAY = 300.0 if NIGHT else 60.0
SHORT_CUTS, LONGEST_SHORT_CUT = (50, 20.0) if NIGHT else (8, 5.0)
FAULTS = ("faults of sites", 1)


@pytest.fixture(scope="module")
def sites(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TwoSites]:
    """Both clusters, and everything at the hub; nothing at the site yet."""
    image = os.environ.get("RLJOB_E2E_IMAGE", BASE_IMAGE)
    with available():
        if choose(os.environ).source is not Source.OWN:
            pytest.skip("this test cuts links between clusters, which only clusters of our own are for")
        both = TwoSites(tmp_path_factory.mktemp("sites"), image, flags=FLAGS)
    with both:
        both.start_hub()
        yield both


class SiteJob(Job):
    """A job with a pool at the site, and its part there."""

    def __init__(self, sites: TwoSites, name: str) -> None:
        super().__init__(sites.kubectl, name)
        self.sites = sites
        self._far = Job(sites.far, name)
        self._pool = f"rolloutpool/{name}-rollout-far"

    def engines(self) -> dict[str, int]:
        """The pods at the site by uid, with the number of their restarts."""
        found = {}
        for pod in self._far.pods("rollout"):
            assert pod["spec"].get("nodeName", "far") == "far"
            statuses = pod["status"].get("containerStatuses", [])
            found[pod["metadata"]["uid"]] = sum(each["restartCount"] for each in statuses)
        return found

    def serves(self, engines: int) -> bool:
        """Whether the hub says that so many engines serve at the site, and no more are there."""
        status = self.kubectl.json("get", self._pool).get("status", {})
        return [status.get(count) for count in ("replicas", "readyReplicas")] == [engines, engines]

    def has_trained(self, steps: int) -> bool:
        """Whether it has taken that many steps."""
        return bool(self.status().get("step", 0) >= steps)

    def scale(self, engines: int) -> None:
        """Scale the site's pool, at the hub."""
        self.kubectl("scale", self._pool, f"--replicas={engines}")

    def patch(self, **spec: Any) -> None:
        """Change the job's spec."""
        self.kubectl("patch", "rljob", self.name, "--type=merge", f"--patch={json.dumps({'spec': spec})}")

    def works(self) -> None:
        """The site's engines are trained on; nothing was lost, trained twice, or trained past its bound."""
        site_is_trained_on(self, SITE)
        self.audit()

    def seen(self) -> str:
        return f"{self.sites.seen()}\n{super().seen()}"


def over_both(manifest: dict[str, Any]) -> dict[str, Any]:
    """A job with the pools of the page."""
    shown = page_job()
    spec = manifest["spec"]
    spec["weights"] = shown["weights"]
    spec["rollout"] |= shown["rollout"]
    return manifest


@pytest.fixture(scope="module")
def job(sites: TwoSites) -> SiteJob:
    """A job that has begun with the hub's engine, before there was anything at the site."""
    manifest = over_both(emulated_example("sums"))
    manifest["spec"]["trainer"]["checkpoint"] = {"everySteps": 5}
    manifest["spec"]["backoffLimit"] = 3
    sites.kubectl.apply(manifest)
    job = SiteJob(sites, "sums")
    job.advances(ready=False)
    assert not sites.connected()
    sites.start_site()
    return job


def test_a_fresh_site_joins_a_running_job(sites: TwoSites, job: SiteJob, tmp_path: Path) -> None:
    """And the commands of the page answer as it shows."""
    terminal = Terminal(sites.kubectl, tmp_path)
    for command, shown in page_console():
        try:
            said = terminal.type(command)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{job.seen()}") from error
        assert essence(said) == essence(shown), said
    assert job.serves(2)
    assert len(job.engines()) == 2
    job.works()
    job.advances()


def test_a_pool_is_scaled_at_the_hub(job: SiteJob) -> None:
    job.scale(1)
    job.until(lambda: job.serves(1) and len(job.engines()) == 1, seconds=400)
    job.works()


def test_many_short_cuts(sites: TwoSites, job: SiteJob) -> None:
    engines, cuts = job.engines(), chance("short cuts")
    for _ in range(SHORT_CUTS):
        sites.wan.cut()
        time.sleep(cuts.uniform(0.3, LONGEST_SHORT_CUT))
        sites.wan.mend()
        time.sleep(cuts.uniform(0.0, 10.0))
    job.works()
    assert job.engines() == engines


def test_a_site_that_is_away_for_minutes(sites: TwoSites, job: SiteJob) -> None:
    """Others train on, and no engine ends."""
    engines = job.engines()
    sites.wan.cut()
    try:
        end = time.monotonic() + MINUTES_AWAY
        job.until(lambda: not sites.connected(), seconds=400)
        job.advances(ready=False)
        time.sleep(max(0.0, end - time.monotonic()))
        job.advances(ready=False)
    finally:
        sites.wan.mend()
    job.until(sites.connected, seconds=400)
    job.works()
    assert job.engines() == engines


@pytest.mark.parametrize("direction", ["up", "down"])
def test_a_link_that_carries_nothing_in_one_direction(sites: TwoSites, job: SiteJob, direction: str) -> None:
    engines = job.engines()
    sites.wan.cut(up=direction == "up", down=direction == "down")
    try:
        time.sleep(20.0)
        job.advances(ready=False)
    finally:
        sites.wan.mend()
    job.works()
    assert job.engines() == engines


def test_a_link_that_loses_packets(sites: TwoSites, job: SiteJob) -> None:
    sites.wan.lose(0.05)
    try:
        job.works()
    finally:
        sites.wan.mend()


def test_the_site_s_nats_server_is_killed(sites: TwoSites, job: SiteJob) -> None:
    engines = job.engines()
    for _ in range(2):
        sites.kill_at_site("nats")
    job.works()
    assert job.engines() == engines


def test_the_site_s_operator_is_killed(sites: TwoSites, job: SiteJob) -> None:
    engines = job.engines()
    job.scale(2)
    sites.kill_at_site("rljob-operator")
    job.until(lambda: job.serves(2), seconds=400)
    assert engines.items() <= job.engines().items()
    job.works()
    job.scale(1)
    job.until(lambda: job.serves(1), seconds=400)


def test_the_site_s_api_server_is_away(sites: TwoSites, job: SiteJob) -> None:
    engines = job.engines()
    sites.site.control_plane.daemons["kube-apiserver"].stop(kill=True)
    try:
        job.works()
    finally:
        sites.site.control_plane.restart_api_server()
    assert job.engines() == engines


def test_the_site_s_node_is_drained_during_a_cut(sites: TwoSites, job: SiteJob) -> None:
    """Everything at the site goes, its NATS server and its operator too, and comes back, before the link does."""
    before, there = job.engines().keys(), sites.site.kubectl
    sites.wan.cut()
    try:
        options = ("--ignore-daemonsets", "--delete-emptydir-data", "--timeout=180s")
        there("drain", "far", *options, timeout=200)
        job.advances(ready=False)
        there("uncordon", "far")
        sites.await_operator(sites.site)
    finally:
        sites.wan.mend()
    job.until(lambda: job.serves(1), seconds=400)
    assert before.isdisjoint(job.engines())
    job.works()


def test_a_job_is_changed_during_a_cut(sites: TwoSites, job: SiteJob) -> None:
    engines = job.engines()
    sites.wan.cut()
    try:
        job.patch(pipeline={"mode": "BoundedAsync", "maxStaleness": 3, "inflight": "Keep"})
        job.until(lambda: job.status().get("pipeline", {}).get("maxStaleness") == 3, seconds=400)
        job.advances(ready=False)
    finally:
        sites.wan.mend()
    job.works()
    assert job.engines() == engines


def test_a_job_is_suspended_during_a_cut(sites: TwoSites, job: SiteJob) -> None:
    sites.wan.cut()
    try:
        job.patch(suspend=True)
        job.until(lambda: not job.pods(), seconds=400)
        assert job.engines()  # nobody can have told them
    finally:
        sites.wan.mend()
    job.until(lambda: not job.engines(), seconds=400)
    job.patch(suspend=False)
    job.until(lambda: job.serves(2), seconds=400)  # as the job says: the scaled pool is gone
    job.works()


def test_at_the_end_nothing_is_lost_or_trained_twice(job: SiteJob) -> None:
    steps = job.status()["step"] + 30
    job.patch(steps=steps)
    job.until(lambda: job.condition("Succeeded").get("status") == "True", seconds=600)
    assert job.status()["step"] == steps
    job.audit()
    job.until(lambda: not job.engines(), seconds=400)


def test_a_job_is_deleted_during_a_cut(sites: TwoSites, job: SiteJob) -> None:
    sites.kubectl.apply(over_both(emulated_example("gone")))
    gone = SiteJob(sites, "gone")
    gone.until(lambda: gone.serves(2), seconds=400)
    gone.works()
    sites.wan.cut()
    try:
        sites.kubectl("delete", "rljob", "gone", "--timeout=300s", timeout=310)
        assert len(gone.engines()) == 2
    finally:
        sites.wan.mend()
    job.until(lambda: not gone.engines(), seconds=400)
    job.until(lambda: not sites.far("get", "rolloutpool,deployment", "--output=name").split(), seconds=400)


@pytest.mark.skipif(not NIGHT, reason="takes 13 minutes on two cores: nightly")
@pytest.mark.usefixtures("job")
def test_the_demo_learns_over_both(sites: TwoSites) -> None:
    """With real models, and three cuts; a step's answers are more than the hub's engine takes at once."""
    manifest = over_both(example("chain-sum"))
    manifest["spec"]["rollout"]["engine"]["options"]["slots"] = 64
    sites.kubectl.apply(manifest)
    demo = SiteJob(sites, "chain-sum")
    demo.until(lambda: demo.serves(2), seconds=600)
    for step, seconds in ((10, 2.0), (20, 8.0), (30, 20.0)):
        demo.until(partial(demo.has_trained, step), seconds=600)
        sites.wan.cut()
        time.sleep(seconds)
        sites.wan.mend()
    demo.until(lambda: demo.condition("Succeeded").get("status") == "True", seconds=1200)
    status = demo.status()
    assert status["step"] == 60
    assert status["rewardMean"] > 0.6
    site_is_trained_on(demo, SITE, steps=10, since=0)
    demo.audit()
