"""One local run of a job: reconciles it over local processes, shows its progress, and writes its results.

A run ends when the job ends, when a signal comes, or when the output folder can no longer be written. In each case all
processes are stopped, the trainer first, so that it saves a checkpoint; no process is left behind.
"""

from __future__ import annotations

import asyncio
import re
import shutil
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path

from rljob_cli.job_checks.job import check_pods
from rljob_cli.job_checks.nats_server import check_servers
from rljob_cli.job_checks.output_folder import LEAST_FREE_BYTES
from rljob_cli.run import result_files
from rljob_cli.run.end_report import RunEnd, RunExit, reason_of
from rljob_cli.run.memory_use import PeakMemory
from rljob_cli.run.metrics_file import MetricsFile
from rljob_cli.run.resume import continued, reopen_ended
from rljob_cli.run.run_progress import RunProgress
from rljob_cli.run.stream_follower import StreamFollower
from rljob_cli.run.view import View
from rljob_cli.run_folder.embedded_nats import (
    LINK_REPORT,
    EmbeddedServers,
    deployment,
    site_folder,
    start_nats,
)
from rljob_cli.run_folder.embedded_nats import (
    NAME as SERVER_NAME,
)
from rljob_cli.run_folder.folder import RunFolder
from rljob_cli.run_folder.job_file import changes, stored_job
from rljob_cli.run_folder.streams import is_complete, join_sites, opened_store
from rljob_core.errors import RLJobError, SpecError, StoreUnavailable, failure_of
from rljob_core.exhausted import limit_in
from rljob_core.failures import Failure, Reason
from rljob_core.job_state import JobState
from rljob_core.spec import RLJob, SiteLinkSpec
from rljob_core.words import innermost
from rljob_operator.children.cluster_defaults import ClusterDefaults
from rljob_operator.children.resolved_job import resolve_job
from rljob_operator.cluster.local.cluster import BACK_OFF, FAILED, LocalCluster
from rljob_operator.cluster.local.fork_server import ForkServerProcess
from rljob_operator.cluster.port import Event
from rljob_operator.decisions import status as job_status
from rljob_operator.decisions.repeated_failures import Patience
from rljob_operator.decisions.status import Phase
from rljob_operator.decisions.tracker_conditions import degraded_trackers
from rljob_operator.reconcile.reconcile import Reconciler
from rljob_runtime.messaging.ledger import Ledger
from rljob_runtime.messaging.nats.emulated_link import Cut, read_traffic
from rljob_runtime.messaging.nats.store import NatsStore


class StopSignals:
    """The first SIGINT, SIGTERM or SIGHUP requests an orderly stop, the second cancels the task at once."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self._task = asyncio.current_task()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, self._take)

    def _take(self) -> None:
        if self.asked.is_set() and self._task is not None:
            self._task.cancel()
        self.asked.set()


_PAGE = "page"
"""Name of the process that serves the live page."""
_ADDRESS = re.compile(r"^(http://\S+)\n", re.MULTILINE)
_PATIENCE = Patience(times=6, crashed=timedelta(0), missing=timedelta(minutes=1))
"""Less than on a cluster: what is missing here rarely comes back by itself, and a run that has failed is continued."""
_LOG_CHARACTERS = 16 << 10
"""At the end of the server's log, where a limit is looked for."""
_LOOK_SECONDS = 0.2
_SAMPLE_SECONDS = 1.0
_SUMMARY_SECONDS = 5.0
_LAST_LINES_SECONDS = 5.0
_UNFINISHED_SECONDS = 30.0
_LEDGER_SECONDS = 1.0
"""Seconds that the ledger has at least to be read, even if the roles took all the time until then to end."""
_STOP_SECONDS = 8.0
"""Seconds in which all processes end, so that this process ends within 10 s of the signal."""
_TRACKER_SECONDS = 20.0
"""Seconds more that trackers have at the end of a job to store its last metrics."""


class _OutputLost(Exception):
    """The output folder can no longer be written."""


class _StreamsLost(Exception):
    """The files of the job's streams are gone."""


class Run:
    """One run of a job in its folder.

    Args:
        job: the job, checked, with its uid.
        folder: its output folder, claimed and locked.
        view: shows the progress.
        nats_port: port of the embedded server; 0 for any free port.
        environment: variables of every process.
        links: the links to the job's sites, by site.
        cuts: when each of them is cut, counted from the start.
        page: whether the live page is served as long as the run is under way.
        fork_server: one that runs already, with their `cluster_environment`; None if none does.
    """

    def __init__(
        self,
        job: RLJob,
        folder: RunFolder,
        view: View,
        *,
        nats_port: int,
        environment: Mapping[str, str],
        links: Mapping[str, SiteLinkSpec],
        cuts: Mapping[str, Sequence[Cut]],
        page: bool,
        fork_server: ForkServerProcess | None,
    ) -> None:
        self._job = job
        self._folder = folder
        self._view = view
        self._nats_port = nats_port
        self._environment = environment
        self._links = links
        self._cuts = cuts
        self._page = page
        self._fork_server = fork_server
        self._metrics = MetricsFile(folder.metrics)
        self._earlier = folder.earlier_summary()
        self._started = time.monotonic()
        self._summarized = 0.0
        self._peak = PeakMemory(int(self._earlier.get("peak_memory_bytes", 0)))
        self.progress = RunProgress(job.spec.rollout.sites)
        self.follower = StreamFollower(self.progress, self._metrics, view, job.spec)
        self._streams: Callable[[], AbstractAsyncContextManager[NatsStore]] | None = None
        self._ledger: JobState | None = None
        self._degraded = ""
        self._stuck = asyncio.Event()
        self._stuck_message = ""
        self._opened = False  # whether an end in the ledger is this run's

    async def run(self) -> RunEnd:
        """Run until the job is finished, a signal comes or the folder is lost, and end all processes."""
        signals = StopSignals()
        cluster = LocalCluster(
            self._folder.path, self._environment, fork_server=self._fork_server, on_event=self._event
        )
        end, finishing = RunEnd(RunExit.INTERRUPTED), None
        self._view.note(f"starting; what each process says goes to {self._folder.path / 'logs'}")
        try:
            async with cluster:
                end = await self._work(cluster, signals)
                if end.exit is not RunExit.SUCCEEDED:
                    self._view.note("stopping: the trainer saves a checkpoint (Ctrl-C again ends at once)")
                trackers = end.exit is RunExit.SUCCEEDED and self._job.spec.trackers
                within = _STOP_SECONDS + (_TRACKER_SECONDS if trackers else 0.0)
                by = asyncio.get_running_loop().time() + within
                await cluster.shutdown(within=within, roles_ended=partial(self._read_ledger, by))
                # While the cluster makes sure that no process is left.
                finishing = asyncio.create_task(asyncio.to_thread(self._finish, end))
        except asyncio.CancelledError:
            await cluster.shutdown(within=0.0)
        finally:
            self._metrics.close(self._view.note)
        return self._finish(end) if finishing is None else await finishing

    async def _work(self, cluster: LocalCluster, signals: StopSignals) -> RunEnd:
        """Run the job until it ends or a signal comes."""
        work = asyncio.create_task(self._until_finished(cluster))
        asked = asyncio.create_task(signals.asked.wait())
        try:
            await asyncio.wait({work, asked}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            asked.cancel()
            if not work.done():
                work.cancel()
                await asyncio.wait({work})
        if work.cancelled():
            return RunEnd(RunExit.INTERRUPTED)
        raised = work.exception()
        error = innermost(raised) if raised is not None else None
        if error is not None and failure_of(error).reason is Reason.LIMIT_REACHED:
            return RunEnd.failed(failure_of(error))
        if limit := self._limit_of_server(error):
            return RunEnd.failed(Failure(Reason.LIMIT_REACHED, f"{limit}: {error}"))
        if isinstance(error, _OutputLost | OSError):
            lost = f"{self._folder.path} cannot be written any more: {reason_of(error)}"
            return RunEnd.failed(Failure(Reason.STORAGE_REFUSED, lost))
        if isinstance(error, _StreamsLost):
            return RunEnd.failed(Failure(Reason.LEDGER_DAMAGED, str(error)))
        if isinstance(error, RLJobError):
            return RunEnd.failed(error.failure)
        return work.result()

    def _limit_of_server(self, error: BaseException | None) -> str:
        """The limit at which the job's own server has failed: its answers do not say that it is one, its log does."""
        log = self._folder.path / "logs" / f"{SERVER_NAME}-0.log"
        if not isinstance(error, StoreUnavailable) or not log.exists():
            return ""
        return limit_in(log.read_text(encoding="utf-8", errors="replace")[-_LOG_CHARACTERS:])

    async def _until_finished(self, cluster: LocalCluster) -> RunEnd:
        servers = EmbeddedServers(self._job.spec.nats.url or "")
        if not servers.url:
            sites = self._job.spec.rollout.sites
            servers = await start_nats(
                cluster,
                self._folder.nats,
                port=self._nats_port,
                sites=sites,
                links=self._links,
                cuts=self._cuts,
            )
        url, defaults = servers.url, self._folder.defaults(servers.url, servers.sites, self._links)
        # Has no effect on a new run; of a resumed run it removes the conditions with which the job had ended.
        status = await cluster.status(self._job)
        await cluster.patch_status(self._job, job_status.resumed(status))
        config = resolve_job(self._job, defaults).config
        self._streams = partial(opened_store, config, url)
        async with opened_store(config, url) as store, asyncio.TaskGroup() as beside:
            if (reopened := await reopen_ended(config, url, store)) is not None:
                self._view.note(continued(reopened, config.spec.steps))
            self._opened = True
            await join_sites(config, servers)
            helpers = [
                beside.create_task(self.follower.follow(store)),
                beside.create_task(self._sample()),
                beside.create_task(self._follow_changes(cluster, defaults)),
                *([beside.create_task(self._serve_page(cluster))] if self._page else []),
            ]
            end = await self._reconciled(cluster, defaults)
            for helper in helpers:
                helper.cancel()
        self._degraded = degraded_trackers(await cluster.status(self._job))
        return end

    async def _reconciled(self, cluster: LocalCluster, defaults: ClusterDefaults) -> RunEnd:
        """Reconcile until the job ends; the end is that of the trainer and of the coordinator's last metrics line."""
        reconciler = Reconciler(
            cluster, defaults, patience=_PATIENCE, metrics=lambda: self.progress.job_metrics
        )
        reconcile = asyncio.create_task(reconciler.run(lambda: self._job))
        said = asyncio.create_task(self.follower.ended.wait())
        stuck = asyncio.create_task(self._stuck.wait())
        try:
            await asyncio.wait({reconcile, said, stuck}, return_when=asyncio.FIRST_COMPLETED)
            if self._stuck_message:  # roles that cannot end their work would wait for what fails
                return RunEnd.failed(Failure(Reason.NO_PROGRESS, self._stuck_message))
            drawing = asyncio.create_task(asyncio.to_thread(result_files.load_drawing))
            # Both come soon after each other: the coordinator publishes its last line before the trainer ends.
            patience = _LAST_LINES_SECONDS if reconcile.done() else _UNFINISHED_SECONDS
            await asyncio.wait({reconcile, said, drawing}, timeout=patience)
            outcome = reconcile.result() if reconcile.done() else None
        finally:
            for task in (reconcile, said, stuck):
                task.cancel()
            await asyncio.wait({reconcile, said, stuck})
        end = self.progress.end
        if end is not None and end.failure is not None:
            return RunEnd.failed(end.failure)
        if outcome is not None and outcome.phase is not Phase.SUCCEEDED:
            reason = Reason.of(outcome.reason, otherwise=Reason.INVALID_SPEC)  # of what cannot be made
            return RunEnd.failed(Failure(reason, outcome.message or outcome.reason))
        return RunEnd(RunExit.SUCCEEDED)

    # ------------------------------------------------------------------------------------------ while it runs

    def _event(self, event: Event) -> None:
        self._view.event(event)
        if event.reason in {BACK_OFF, FAILED}:
            self.follower.pod_ended(event.about)
        if event.reason == Reason.NO_PROGRESS:
            self._stuck_message = event.message
            self._stuck.set()

    async def _follow_changes(self, cluster: LocalCluster, defaults: ClusterDefaults) -> None:
        """Apply the changes that `rljob patch` writes."""
        async for identity in changes(self._folder, self._job.metadata.generation or 0):
            try:
                job = identity.stamp(stored_job(identity))
                check_servers(job, defaults.site_servers)
                # Checked again, because the pods get the environment of this process.
                check_pods(resolve_job(job, defaults), self._environment)
            except SpecError as error:
                self._view.note(f"not taken over from rljob patch: {error}")
                continue
            self._job = job
            self._view.changed(job)
            cluster.wake()

    async def _serve_page(self, cluster: LocalCluster) -> None:
        """Serve the live page by a process of its own, and say its address."""
        log = self._folder.path / "logs" / f"{_PAGE}-0.log"
        before = log.stat().st_size if log.exists() else 0  # what it has said in an earlier run
        command = [
            sys.executable,
            "-c",
            "from rljob_cli.main import main; main()",
            "ui",
            str(self._folder.path),
        ]
        await cluster.apply(deployment(_PAGE, command))
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            said = log.read_bytes()[before:].decode(errors="replace") if log.exists() else ""
            if (address := _ADDRESS.search(said)) is not None:
                self._view.note(f"live page: {address[1]}")
                return

    async def _sample(self) -> None:
        """Once a second, measure free space and rates, memory if it is due, and update the view and the summary."""
        # None of a server of the user's. What the server has in memory lets roles wait, and no write ends.
        streams = [
            file.parent for file in (self._folder.nats / "store" / "jetstream").glob("*/streams/*/meta.inf")
        ]
        incomplete = set[Path]()
        while True:
            before, incomplete = incomplete, {place for place in streams if not is_complete(place)}
            if lost := next(iter(before & incomplete), None):
                raise _StreamsLost(f"{lost} is gone, or damaged: a stream of the job")
            await self._peak.measure()
            if (free := shutil.disk_usage(self._folder.path).free) < LEAST_FREE_BYTES:
                raise _OutputLost(f"only {free >> 20} MB are free on its disk")
            now = time.monotonic()
            for name, site in self.progress.sites.items():
                traffic = read_traffic(site_folder(self._folder.nats, name) / LINK_REPORT)
                site.bytes_up, site.bytes_down = traffic.up, traffic.down
            self.progress.mark(now)
            self._view.refresh(self.progress)
            if now - self._summarized >= _SUMMARY_SECONDS:
                self._summarized = now
                self._summarize("Running")
            await asyncio.sleep(_SAMPLE_SECONDS)

    async def _read_ledger(self, by: float) -> None:
        """Read what the roles have recorded and published until they ended: nobody writes any more.

        Args:
            by: when all processes should have ended, on the loop's clock.
        """
        if self._streams is None:
            return
        by = max(by, asyncio.get_running_loop().time() + _LEDGER_SECONDS)
        try:
            async with asyncio.timeout_at(by), self._streams() as store:
                await self.follower.catch_up(store)
                uid = self._job.metadata.uid or ""
                self._ledger = await Ledger(store, job=uid, instance="rljob-run").replay()
        except (RLJobError, OSError, TimeoutError) as error:
            why = str(error) or "it did not answer in time"
            self._view.note(f"summary.json counts by the last metrics: the ledger was not read ({why})")

    # ------------------------------------------------------------------------------------------ the end

    @property
    def step(self) -> int:
        """The number of committed steps: by the ledger, once the run has ended."""
        return self.progress.step if self._ledger is None else self._ledger.version

    @property
    def _wall_seconds(self) -> float:
        return float(self._earlier.get("wall_seconds", 0.0)) + time.monotonic() - self._started

    def _summarize(self, outcome: str, failure: Failure | None = None) -> None:
        summary = result_files.summarize(
            self._job,
            self.progress,
            wall_seconds=self._wall_seconds,
            peak_bytes=self._peak.bytes,
            outcome=outcome,
            failure=failure,
            warnings=[str(one) for one in self.follower.warnings if one.warns],
            ledger=self._ledger,
            degraded=self._degraded,
        )
        result_files.write_summary(self._folder, summary)
        result_files.write_engines(self._folder, self.progress)

    def _finish(self, end: RunEnd) -> RunEnd:
        """Write the results; a full disk turns the end into a failure."""
        finished = self._ledger.finished if self._ledger is not None and self._opened else None
        if (
            finished is not None and finished.failure is not None
        ):  # in the ledger's words, whoever said it first
            end = RunEnd.failed(finished.failure)
        elif finished is not None and end.exit is RunExit.INTERRUPTED:  # it was over before the signal
            end = RunEnd(RunExit.SUCCEEDED)
        try:
            self._summarize(end.exit, end.failure)
            result_files.plot(self._folder.plot, self._job, self.progress)
        except OSError as error:
            lost = f"its results cannot be written to {self._folder.path}: {reason_of(error)}"
            if end.failure is None:
                return RunEnd.failed(Failure(Reason.STORAGE_REFUSED, lost))
            return RunEnd.failed(replace(end.failure, detail=f"{end.failure.detail}; {lost}"))
        return end
