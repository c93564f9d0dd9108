"""Level-triggered reconcile of one RLJob: observe → decide → write the status → plan → apply.

    defaults = ClusterDefaults(nats_url=…, weights_uri=…, checkpoint_uri=…, trainer_log_uri=…)
    reconciler = Reconciler(cluster, defaults, metrics=latest_metrics)      # () -> JobMetrics | None
    outcome = await reconciler.run(job)               # until it is finished and its children are gone

To resume a job that has ended: `await cluster.patch_status(job, status.resumed(await cluster.status(job)))`, then
`run`. To check pod template patches: `desired(resolve_job(job, defaults), Targets(1, 0, {}))` raises `SpecError`.

The status is written *before* anything is done: the number of a trainer attempt before its Job exists, `Succeeded`
before the children that prove it are removed. So a crash between any two calls repeats work, and never loses or
doubles a decision. Every pass starts from the observed objects, whatever event caused it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from types import MappingProxyType

from rljob_core.errors import SpecError
from rljob_core.spec import RLJob, RLJobStatus
from rljob_operator import names
from rljob_operator.backoff import Backoff
from rljob_operator.children.cluster_defaults import ClusterDefaults
from rljob_operator.children.desired import Targets
from rljob_operator.children.nats_credentials import renewed_tokens
from rljob_operator.children.queue_admission import QueueAdmission
from rljob_operator.children.resolved_job import resolve_job
from rljob_operator.cluster.node_notices import NodeNotice
from rljob_operator.cluster.port import Cluster, Manifest, NameTaken, Ref, Refused, Rejected
from rljob_operator.decisions import failure_advice, trainer_attempts
from rljob_operator.decisions import status as job_status
from rljob_operator.decisions.autoscaling import Autoscaled, autoscaled, scaled_at_sites
from rljob_operator.decisions.conditions import condition
from rljob_operator.decisions.job_events import events, rules_warning
from rljob_operator.decisions.job_metrics import JobMetrics
from rljob_operator.decisions.job_name import check_name
from rljob_operator.decisions.job_rules import JobRules
from rljob_operator.decisions.job_sites import KnownSites, with_sites
from rljob_operator.decisions.kept_log import at_rest, kept_gang
from rljob_operator.decisions.leaving_engines import (
    notice_events,
    shrinking,
    with_costs,
    with_leaving_engines,
)
from rljob_operator.decisions.model_downloads import held_back, with_revisions
from rljob_operator.decisions.observe import Observed, may_be_restored, summarize
from rljob_operator.decisions.plan import Apply, ClusterAction, plan
from rljob_operator.decisions.pods import Trouble
from rljob_operator.decisions.pool_status import pool_statuses
from rljob_operator.decisions.repeated_failures import FailuresInARow, Patience, count, stuck
from rljob_operator.decisions.scaling_status import with_scaling
from rljob_operator.decisions.site_reports import SitePool
from rljob_operator.decisions.status import Assessment, Phase
from rljob_operator.nats.token_times import TokenTimes, token_times
from rljob_operator.reconcile.desired_memo import DesiredMemo
from rljob_operator.reconcile.gang_choice import GangChoice
from rljob_operator.reconcile.outcome import REJECTIONS, Pass, ReconcileOutcome, rejection_reason
from rljob_operator.reconcile.perform import perform
from rljob_operator.reconcile.pod_controllers import PodControllers
from rljob_operator.reconcile.rehearsal import Rehearsal
from rljob_operator.reconcile.untaken_children import TAKEN_SECONDS, PolicyRefusals, TakenNames

RESYNC_SECONDS = 10.0
"""Longest time between two passes, and shortest time between two updates of the metrics in the status."""


class Reconciler:
    """Creates, changes and deletes the objects of an RLJob until they match its spec.

    Args:
        cluster: where the objects are.
        defaults: the cluster's defaults for jobs.
        clock: returns the current time, with its time zone.
        backoff: delays between trainer attempts.
        patience: with roles that fail again and again.
        metrics: returns the newest metrics of the job's workers, at once.
        outage: returns why no job can continue now; None if they can.
        loads: returns, by pod, the trajectories that a job's engines generate or have queued; called when a pool
            shrinks.
        rules: returns what jobs may name.
        sites: returns the Sites that pools may be at; None where a pool's site is not checked.
        site_pools: returns what is known of a job's pools at sites, by pool.
        notices: returns, by name, the nodes that are about to be taken away.
        admission: returns what the queue says that the job waits in; None if it waits in none.
        concurrent: apply independent manifests concurrently, because each call waits for a server.
    """

    def __init__(
        self,
        cluster: Cluster,
        defaults: ClusterDefaults,
        *,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
        backoff: Backoff | None = None,
        patience: Patience | None = None,
        metrics: Callable[[], JobMetrics | None] = lambda: None,
        outage: Callable[[RLJob], Trouble | None] = lambda _: None,
        loads: Callable[[RLJob], Awaitable[Mapping[str, int]]] | None = None,
        rules: Callable[[], JobRules] = lambda: JobRules({}),
        sites: Callable[[], KnownSites] | None = None,
        site_pools: Callable[[RLJob], Mapping[str, SitePool]] = lambda _: {},
        notices: Callable[[], Mapping[str, NodeNotice]] = lambda: MappingProxyType({}),
        admission: Callable[[], QueueAdmission | None] = lambda: None,
        concurrent: bool = False,
    ) -> None:
        self._cluster = cluster
        self._defaults = defaults
        self._clock = clock
        self._backoff = backoff or Backoff()
        self._patience, self._failures = patience or Patience(), FailuresInARow()
        self._metrics = metrics
        self._outage = outage
        self._loads = loads
        self._rules = rules
        self._sites = sites
        self._site_pools = site_pools
        self._notices = notices
        self._admission = admission
        self._concurrent = concurrent
        self._desired = DesiredMemo()
        self._metrics_written: datetime | None = None
        self._rejected: tuple[int | None, str] = (0, "")
        """The generation whose children the cluster rejected, and why; nothing is applied until the spec changes."""
        self._taken, self._above = TakenNames(cluster), PodControllers(cluster)
        self._gang = GangChoice(cluster)
        self._refusals, self._rehearsal = PolicyRefusals(cluster), Rehearsal(cluster)

    async def reconcile(self, job: RLJob) -> Pass:
        """Reconcile once."""
        now = self._clock()
        due = self._metrics_written is None or (now - self._metrics_written).total_seconds() >= RESYNC_SECONDS
        observed = await self._observe(job, now=now)
        tokens = token_times(job.metadata.uid or "", lifetime=self._defaults.token_seconds, now=now)
        defaults = with_sites(self._defaults, self._sites)
        scaling = autoscaled(observed, due=due, links=defaults.links)
        try:
            assessment, wanted = await self._decide(observed, defaults, scaling, tokens, now=now, due=due)
        except (*REJECTIONS, Refused, Rejected, NameTaken) as error:
            reason = self._remember(error, job, now)
            assessment, wanted = job_status.rejected(observed, reason, str(error)), observed.kept
        failed = assessment.phase is Phase.FAILED
        wanted = (*wanted, *kept_gang(observed, failed=failed))
        assessment = failure_advice.added(assessment, observed, self._defaults)
        assessment = with_scaling(assessment, observed, scaling, metrics_due=due)
        stalled = assessment.phase is Phase.STALLED
        await self._write(job, observed.status, assessment.status)
        if due:
            self._metrics_written = now
        if stalled:
            await self._renew_tokens(observed, tokens)
        actions = () if stalled else await self._with_costs(job, observed, plan(observed, wanted))
        has_engines = assessment.phase in {Phase.RUNNING, Phase.STALLED}
        if has_engines:
            actions = with_leaving_engines(observed, actions)
        # The status of a pool that is about to change is written in the next pass: writing it now would create a newer
        # version of the object than the one that the change is based on.
        changing = {Ref.of(action.manifest) for action in actions if isinstance(action, Apply)}
        for manifest in pool_statuses(observed):
            if Ref.of(manifest) not in changing:
                with suppress(Refused):  # if more of the pool is refused, the job's status says so
                    await self._cluster.apply_status(manifest)
        try:
            await perform(self._cluster, actions, concurrent=self._concurrent)
            for event in notice_events(observed) if has_engines else ():
                await self._cluster.event(job, event)
        except (Rejected, NameTaken, Refused) as error:
            self._remember(error, job, now)
            # Of a job that is to end, whatever a policy refuses: its pods go.
            if assessment.phase is Phase.RUNNING or not isinstance(error, Refused):
                return await self.reconcile(job)
        moving = condition(assessment.status, "Reconciling")
        times = [assessment.retry_at, self._refusals.retry_at, self._gang.retry_at(now)]
        times += [pod.doubtful_until for pod in observed.pods]
        if self._defaults.issuer is not None:
            times.append(tokens.renewed_at)
        if not due and self._metrics_written is not None and job_status.outdated(assessment.status, observed):
            times.append(self._metrics_written + timedelta(seconds=RESYNC_SECONDS))
        if self._taken:
            times.append(now + timedelta(seconds=TAKEN_SECONDS))
        return Pass(
            phase=assessment.phase,
            status=assessment.status,
            actions=len(actions),
            settled=stalled or (assessment.phase is not Phase.RUNNING and at_rest(observed, failed=failed)),
            at_rest=moving is not None and moving.status == "False",
            retry_at=min((time for time in times if time is not None), default=None),
            expire_at=assessment.expire_at,
        )

    async def _decide(
        self,
        observed: Observed,
        defaults: ClusterDefaults,
        scaling: Autoscaled,
        tokens: TokenTimes,
        *,
        now: datetime,
        due: bool,
    ) -> tuple[Assessment, Sequence[Manifest]]:
        """The job's status, and the objects that it should have.

        Raises:
            SpecError, NotAllowed, SiteRefused, GangNotServed, Rejected: they cannot be made.
            Refused, NameTaken: they cannot be made now.
        """
        job = observed.job
        if self._defaults.per_job:
            check_name(observed)
        resolved = resolve_job(job, with_revisions(replace(defaults, admission=observed.admission), observed))
        attempt = trainer_attempts.decide(
            observed, resolved, wanted_hash=self._desired.trainer_hash(resolved), backoff=self._backoff
        )
        targets = Targets(
            attempt.number if attempt.keep else None,
            attempt.failures,
            observed.pools,
            restorable=may_be_restored(job, observed.status.trainer_attempt),
            tokens_expire=None if resolved.issuer is None else tokens.expires,
            scaled={**scaling.replicas, **scaled_at_sites(observed)},
            nodes=attempt.nodes,
            gang=await self._gang.choose(observed, resolved, attempt),
            lost_sites=observed.lost_sites,
            has_run=observed.has_run,
        )
        made = self._desired(resolved, targets)
        self._failures = count(self._failures, observed)
        no_further = stuck(self._failures, observed, self._patience)
        assessment = job_status.assess(observed, attempt, stuck=no_further, metrics_due=due)
        running = assessment.phase is Phase.RUNNING
        if running:
            self._rules().check(job)
            if self._sites is not None:
                self._sites().check(job)
            self._gang.check()
        if self._rejected[0] == job.metadata.generation:
            raise SpecError("", self._rejected[1])
        if not running:
            made = tuple(m for m in made if names.LABEL_KEPT in m["metadata"]["labels"])
        taken = await self._taken.first(observed, made)
        if taken is not None and assessment.phase in {Phase.RUNNING, Phase.SUSPENDED}:
            raise taken
        made = tuple(m for m in made if Ref.of(m) not in self._taken)
        if not running:
            return assessment, made
        await self._refusals.check(made, job.metadata.generation, now)
        await self._rehearsal.check(observed, made)
        return assessment, (*made, *held_back(observed, resolved))

    def _remember(self, error: Exception, job: RLJob, now: datetime) -> str:
        """Keep in mind what the cluster does not take, for the next passes; the reason of the job's condition."""
        match error:
            case Refused():
                self._refusals.add(error, job.metadata.generation, now)
                return "PolicyRefused"
            case Rejected():
                self._rejected = job.metadata.generation, str(error)
                return "InvalidTemplate"
            case NameTaken():
                self._taken.add(error.ref)
                return "NameTaken"
            case _:
                return rejection_reason(error)

    async def refuse(self, job: RLJob, error: SpecError) -> None:
        """Say of a job that it cannot be read; `job` stands in for it. What it has stays as it is."""
        observed = await self._observe(job, now=self._clock())
        assessment = job_status.rejected(observed, "InvalidSpec", str(error))
        said = {
            name: getattr(assessment.status, name) for name in ("conditions", "observed_generation", "state")
        }
        await self._write(job, observed.status, observed.status.model_copy(update=said))

    async def _observe(self, job: RLJob, *, now: datetime) -> Observed:
        children, above = await self._above.read(job)
        status, metrics = await self._cluster.status(job), self._metrics()
        return summarize(
            job,
            status,
            children,
            above,
            now=now,
            metrics=metrics,
            outage=self._outage(job),
            keeps_log=self._defaults.per_job,
            site_pools=self._site_pools(job),
            notices=self._notices(),
            admission=self._admission(),
        )

    async def tear_down(self, job: RLJob) -> bool:
        """Delete the children of a deleted job, one role per pass; returns whether none is left."""
        observed = await self._observe(job, now=self._clock())
        await perform(self._cluster, plan(observed, ()), concurrent=self._concurrent)
        return not observed.children and not observed.pods

    async def _renew_tokens(self, observed: Observed, tokens: TokenTimes) -> None:
        """Renew the NATS tokens of a job whose spec cannot be followed: the pods that it has continue."""
        metadata = observed.job.metadata
        found = observed.children.get(Ref("ConfigMap", metadata.namespace, names.tokens(metadata.name)))
        if found is None or self._defaults.issuer is None:
            return
        wanted = renewed_tokens(observed.job, found, self._defaults.issuer, expires=tokens.expires)
        due = [action for action in plan(observed, [wanted]) if isinstance(action, Apply)]
        with suppress(Refused, Rejected, NameTaken):  # the job's status says what keeps it from continuing
            await perform(self._cluster, due, concurrent=False)

    async def _with_costs(
        self, job: RLJob, observed: Observed, actions: Sequence[ClusterAction]
    ) -> Sequence[ClusterAction]:
        pools = shrinking(observed, actions)
        if not pools or self._loads is None:
            return actions
        return with_costs(observed, actions, pools, await self._loads(job))

    async def run(self, job: RLJob | Callable[[], RLJob]) -> ReconcileOutcome:
        """Reconcile until the job is finished or suspended and its children are gone.

        Args:
            job: the job, or a function that returns its newest version if it may change in the meantime.
        """
        while True:
            result = await self.reconcile(job() if callable(job) else job)
            if result.settled:
                return result.outcome
            with suppress(TimeoutError):
                seconds = result.seconds(self._clock(), longest=RESYNC_SECONDS)
                async with asyncio.timeout(seconds):  # wait_for may swallow a cancellation before Python 3.12
                    await self._cluster.changed()

    async def _write(self, job: RLJob, before: RLJobStatus, after: RLJobStatus) -> None:
        if after == before:
            return
        await self._cluster.patch_status(job, after)
        warnings = rules_warning(job, before, self._rules().warning(job))
        for event in (*warnings, *events(before, after)):
            await self._cluster.event(job, event)
