"""A cluster of local processes, which plays the API server and the kubelet for `rljob run`.

    async with LocalCluster(folder, environment, on_event=print) as cluster:
        await cluster.apply(nats_deployment)          # any Deployment, also one that belongs to no RLJob
        outcome = await Reconciler(cluster, defaults).run(job)   # Ctrl-C: cancel it
        await cluster.shutdown()                      # in order, within 10 s; leaving the block does it too

Deployments and Jobs run as processes (`workloads.py`), which see ConfigMaps and Services; other kinds are only stored.
In the folder: `logs/<pod>.log` (stdout and stderr of all starts), `logs/fork-server.log` (of the process that roles are
forked from: `forks.py`), `pids.json` (`{pod: {role, pool, attempt, pid, restarts}}` of what runs now), `status.json`
(the RLJob's status, with which a later run continues), `pods/` (volumes). No process is left behind: see
`process_group.py` and `reaper.py`.
"""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self

from rljob_core.spec import RLJob, RLJobStatus
from rljob_operator.backoff import Backoff
from rljob_operator.cluster.gang_kinds import GangKind
from rljob_operator.cluster.local import reaper
from rljob_operator.cluster.local.files import LocalFiles
from rljob_operator.cluster.local.fork_server import ForkServerProcess, cluster_environment
from rljob_operator.cluster.local.forks import Forks
from rljob_operator.cluster.local.objects import StoredObjects
from rljob_operator.cluster.local.pod import Launch, PodPlace, log_file, prepare, write_config_maps
from rljob_operator.cluster.local.pod_manifest import pod_manifest, replica_set
from rljob_operator.cluster.local.process_group import PodProcess, Termination
from rljob_operator.cluster.local.workloads import Deployment, Job, Workload
from rljob_operator.cluster.port import Event, Manifest, Ref
from rljob_operator.names import Role

SHUTDOWN_SECONDS = 9.0
"""All processes have ended this long after `shutdown` was called."""
BACK_OFF, FAILED = "BackOff", "Failed"
"""Reasons of the events about a process that ended by itself: it will be restarted, or not."""
_LEAST_GRACE = 0.4  # seconds that an earlier role must leave to each later one


class LocalCluster:
    """The `Cluster` protocol over processes of this machine, for one RLJob.

    Args:
        folder: folder for logs, volumes, process ids and status; created if it is missing.
        environment: the environment variables of every process. The folder of this interpreter is put first on PATH,
            so that `python` and `nats-server` are those of its environment.
        backoff: delays between the starts of one pod.
        on_event: called with every event, including the cluster's own (`BackOff`, `Failed`: a process ended by itself).
    """

    def __init__(
        self,
        folder: Path,
        environment: Mapping[str, str],
        *,
        fork_server: ForkServerProcess | None = None,
        backoff: Backoff | None = None,
        on_event: Callable[[Event], None] | None = None,
    ) -> None:
        self.folder = folder.resolve()
        self._environment = (
            cluster_environment(environment) if fork_server is None else fork_server.environment
        )
        self._backoff = backoff or Backoff()
        self._on_event = on_event or (lambda _: None)
        self._objects = StoredObjects()
        self._workloads: dict[Ref, Workload] = {}
        self._ports = LocalPorts()
        self._changed = asyncio.Event()
        self._files = LocalFiles(self.folder)
        self._stepping = False
        self._step_again = False
        self._error: Exception | None = None
        self._reaper: asyncio.subprocess.Process | None = None
        self._forks = Forks(self._environment, log_file(self.folder, "fork-server"), server=fork_server)

    async def __aenter__(self) -> Self:
        self.folder.mkdir(parents=True, exist_ok=True)
        self._reaper = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", reaper.__name__, self._environment[reaper.TOKEN]),
            stdin=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self.shutdown()
        finally:
            await self._forks.close()
            if self._reaper is not None and self._reaper.stdin is not None:
                self._reaper.stdin.close()
                await self._reaper.wait()

    # ------------------------------------------------------------------------------------------ the protocol

    async def children(self, job: RLJob) -> Sequence[Manifest]:
        """The objects with this job's label and their pods, with their statuses."""
        found = []
        for ref, manifest in self._objects.of_job(job.metadata.name):
            workload = self._workloads.get(ref)
            if workload is None:
                found.append(manifest)
                continue
            found.append({**manifest, "status": workload.status()})
            if ref.kind == "Deployment":
                found.append(replica_set(manifest))
            found.extend(pod_manifest(slot.pod, slot.template, manifest) for slot in workload.slots)
        return found

    async def serves(self, kind: GangKind) -> bool:  # noqa: ARG002  the protocol's
        """Nothing schedules processes."""
        return False

    async def find(self, ref: Ref) -> Manifest | None:
        """The object of that name; all objects are this run's own."""
        return self._objects.find(ref)

    async def apply(self, manifest: Manifest) -> None:
        """Store an object; for a Deployment or Job, start or change its processes."""
        ref = Ref.of(manifest)
        known = self._objects.find(ref) is not None
        stored = self._objects.apply(manifest)
        if stored is None:
            return  # it is being deleted; the reconciler applies it again once it is gone
        if ref in self._workloads:
            self._workloads[ref].update(stored)
        elif ref.kind == "Deployment":
            self._workloads[ref] = Deployment(stored, partial(self._start_pod, ref))
        elif ref.kind == "Job":
            self._workloads[ref] = Job(stored, partial(self._start_pod, ref))
        elif ref.kind == "ConfigMap" and known:
            self._refresh_volumes()
        self._step()

    async def check(self, manifest: Manifest) -> None:
        """Do nothing: what a process is given is checked when it starts."""

    async def apply_status(self, manifest: Manifest) -> None:
        """Store an object's status; a Deployment or Job reports its own."""
        ref = Ref.of(manifest)
        if ref not in self._workloads:
            self._objects.set_status(ref, manifest["status"])

    async def delete(self, ref: Ref, uid: str | None = None) -> None:
        """End an object's processes and delete what it owns; it stays visible until its processes have ended."""
        manifest = self._objects.find(ref)
        if manifest is None or uid not in {None, manifest["metadata"]["uid"]}:
            return
        workload = self._workloads.get(ref)
        if workload is None:
            self._objects.remove(ref)
        else:
            self._objects.mark_deleted(ref)
            workload.remove()
        for other in self._objects.owned_by(ref):
            await self.delete(other)
        self._step()

    async def force_delete(self, ref: Ref, uid: str | None = None) -> None:
        """Delete an object. Nothing is to be forced, since the node of a local process cannot be lost."""
        await self.delete(ref, uid)

    async def annotate(self, ref: Ref, annotations: Mapping[str, str], uid: str | None = None) -> None:
        """Do nothing: no one reads annotations of local pods."""

    async def status(self, job: RLJob) -> RLJobStatus:
        """The status of this job in `status.json`."""
        return self._files.read_status(job)

    async def patch_status(self, job: RLJob, status: RLJobStatus) -> None:
        """Write `status.json`."""
        self._files.write_status(job, status)

    async def event(self, job: RLJob, event: Event) -> None:
        """Pass the event to `on_event`."""
        self._on_event(event if event.about else replace(event, about=job.metadata.name))

    async def changed(self) -> None:
        """Wait until something has changed since the last call returned.

        Raises:
            OSError: the folder cannot be written.
        """
        await self._changed.wait()
        self._changed.clear()
        if self._error is not None:
            raise self._error

    # ------------------------------------------------------------------------------------------ shutting down

    async def shutdown(
        self,
        order: Sequence[str] = tuple(Role),
        within: float = SHUTDOWN_SECONDS,
        roles_ended: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """End all processes: role by role in `order`, then the rest (nats-server).

        A role starts to end when the role before it has ended. It gets SIGTERM, and SIGKILL when the time is up: the
        rest of the `within` seconds, less a little for each later role. `roles_ended` is called when all of
        `order` have ended and the rest still runs. If this call is cancelled, it kills all processes at once.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + within
        try:
            stages: list[list[Ref]] = [
                [r for r in self._workloads if self._objects.role(r) == role] for role in order
            ]
            rest = [r for r in self._workloads if self._objects.role(r) not in order]
            stages = [stage for stage in stages if stage]
            for index, stage in enumerate([*stages, rest]):
                if stage is rest and roles_ended is not None:
                    await roles_ended()
                grace = deadline - loop.time() - _LEAST_GRACE * (len(stages) + 1 - index)
                pods = []
                # A workload that an earlier shutdown was ending may be gone by now.
                for ref in (r for r in stage if r in self._workloads):
                    self._objects.mark_deleted(ref)
                    self._workloads[ref].remove()
                    pods += [slot.pod for slot in self._workloads[ref].slots]
                for pod in pods:
                    pod.stop(max(grace, 0.0))
                await asyncio.gather(*(pod.done.wait() for pod in pods))
        finally:
            pods = [slot.pod for workload in self._workloads.values() for slot in workload.slots]
            for workload in self._workloads.values():
                workload.remove()
            for pod in pods:
                if not pod.done.is_set():
                    pod.kill()
            self._step()
        await asyncio.gather(*(pod.done.wait() for pod in pods))

    # ------------------------------------------------------------------------------------------ inside

    def _step(self) -> None:
        """Let every workload take its next step, and repeat while a step changes a pod."""
        self._changed.set()
        self._step_again = True
        if self._stepping:
            return
        self._stepping = True
        try:
            while self._step_again:
                self._step_again = False
                for ref, workload in list(self._workloads.items()):
                    workload.step()
                    if workload.gone:
                        del self._workloads[ref]
                        self._objects.remove(ref)
                        self._ports.release(ref)
            self._files.write_pids(s for workload in self._workloads.values() for s in workload.slots)
        except Exception as error:  # called by tasks of pods, which nothing awaits; `changed` raises it
            self._error = error
        finally:
            self._stepping = False

    def _start_pod(self, owner: Ref, name: str, template: Manifest, restart: bool) -> PodProcess:
        subdomain = template["spec"].get("subdomain")
        addresses = {} if subdomain is None else {f"{owner.name}-0.{subdomain}": "127.0.0.1"}
        for port in template["spec"]["containers"][0].get("ports", []):
            addresses[str(port["containerPort"])] = str(self.port(owner, port["containerPort"]))

        def launch() -> Launch:
            return prepare(template, self._place(name, addresses), is_first=pod.starts == 1)

        def ended(end: Termination, delay: float | None) -> None:
            again = "" if delay is None else f"; starts again in {delay:g} s"
            reason = FAILED if delay is None else BACK_OFF
            self._on_event(
                Event("Warning", reason, f"{end}; log: {log_file(self.folder, name)}{again}", name)
            )

        pod = PodProcess(
            name,
            launch,
            restart=restart,
            backoff=self._backoff,
            changed=self._step,
            ended=ended,
            start_process=self._forks.start,
        )
        pod.start()
        return pod

    def _place(self, pod: str, addresses: Mapping[str, str]) -> PodPlace:
        return PodPlace(pod, self.folder, self._environment, self._objects.config_maps(), addresses)

    def _refresh_volumes(self) -> None:
        """Update the files that running pods mount from ConfigMaps, as a kubelet does."""
        for workload in self._workloads.values():
            for slot in workload.slots:
                write_config_maps(slot.template["spec"], self._place(slot.pod.name, {}))

    def wake(self) -> None:
        """Make `changed` return, because the RLJob itself has changed."""
        self._changed.set()

    def port(self, owner: Ref, port: int) -> int:
        """The local port that all pods of a workload use for a container port; see `LocalPorts`."""
        return self._ports.get(owner, port)


class LocalPorts:
    """Gives every container port of a workload a free port of this machine.

    A socket stays bound to it until the workload is gone, so that the system assigns the port to no other program, even
    while the workload's server restarts. The server can still listen on it because it reuses addresses.
    """

    def __init__(self) -> None:
        self._held: dict[Ref, dict[int, socket.socket]] = {}

    def get(self, owner: Ref, port: int) -> int:
        """Return the local port of a container port, the same one each time."""
        held = self._held.setdefault(owner, {})
        if port not in held:
            held[port] = socket.socket()
            held[port].setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            held[port].bind(("127.0.0.1", 0))
        return int(held[port].getsockname()[1])

    def release(self, owner: Ref) -> None:
        """Let the system assign the workload's ports to other programs."""
        for held in self._held.pop(owner, {}).values():
            held.close()
