"""A temporary run folder that follows a job on a cluster: what reads the folder of a run then reads the job.

The folder has the job's identity, with the address of a port-forward and a viewer's credentials, its status, and its
metrics. Streams are read through the port-forward. The folder is locked, as that of a run is, until the job has ended.
What the job has stored elsewhere, its weights and its trainer's log, is not in it; samples are, where this machine can
read the place that they are kept in.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import ExitStack, asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from rljob_cli.kubectl.refusals import JobGone
from rljob_cli.kubectl.viewer import JobViewer
from rljob_cli.run.metrics_file import MetricsFile
from rljob_cli.run.result_files import summarize, write_summary
from rljob_cli.run.run_progress import RunProgress
from rljob_cli.run.stream_follower import StreamFollower
from rljob_cli.run.view import View
from rljob_cli.run_folder.folder import Identity, RunFolder
from rljob_cli.run_folder.streams import store_of
from rljob_core.config import JobConfig
from rljob_core.errors import RLJobError, SpecError, StoreUnavailable
from rljob_core.failures import Failure, Reason
from rljob_core.spec import API_VERSION, RLJob
from rljob_operator.cluster.local.replace_text import replace_text
from rljob_operator.cluster.port import Manifest

_CREDENTIALS = "viewer.creds"
_POLL_SECONDS = 2.0
_RENEWAL_SECONDS = 300.0
_CONNECT_SECONDS = 30.0
_RETRY_SECONDS = 2.0
_ENDS = ("Succeeded", "Failed")


class JobMirror:
    """Keeps the folder up to date.

    Args:
        viewer: of the job.
        path: an existing folder.
        url: of the NATS server, as this machine reaches it.

    Attributes:
        folder: the run folder.
        progress: of the job.
        ended: whether it has ended, or was deleted.
    """

    def __init__(self, viewer: JobViewer, path: Path, url: str) -> None:
        self.folder = RunFolder(path)
        self._viewer = viewer
        self._url = url
        self._credentials = path / _CREDENTIALS
        self.progress = RunProgress()
        self._lock = ExitStack()
        self._renewed = 0.0
        self._manifest: Manifest = {}
        self._identity: Identity | None = None
        self.ended = False

    def prepare(self) -> RLJob:
        """Read the job, and write the folder's first files; returns the job.

        Raises:
            RLJobError: the job cannot be read.
        """
        self._manifest = self._viewer.cluster.job(self._viewer.job)
        config = self._write_config()
        if config.spec.nats.credentials_secret is not None:
            raise SpecError(
                "spec.nats.credentialsSecret",
                "the job brings its own credentials, and the operator has none for viewers: audit it --in-cluster",
            )
        viewer = str(self._credentials) if self._renew() else ""
        job = job_of(self._manifest, config.namespace, config.uid)
        self._identity = Identity(
            name=config.job,
            namespace=config.namespace,
            uid=config.uid,
            model="",
            nats_url=self._url,
            manifest=job.model_dump(mode="json", by_alias=True),
            generation=self._manifest["metadata"]["generation"],
            viewer=viewer,
            mirrors=True,
        )
        self.folder.write(self._identity)
        self._lock.enter_context(self.folder.locked())
        self._write_status(job)
        return job

    def _write_config(self) -> JobConfig:
        config = self._viewer.config()
        replace_text(self.folder.workers_config, config.model_dump_json(by_alias=True))
        return config

    @property
    def identity(self) -> Identity:
        """Whose folder it is; once `prepare` has returned."""
        assert self._identity is not None  # noqa: S101
        return self._identity

    @property
    def step(self) -> int:
        """The newest committed step, by the job's status."""
        return int(self._manifest.get("status", {}).get("step", 0))

    def _renew(self) -> bool:
        """Write the credentials with a newer token, before the one in the folder expires."""
        self._renewed = time.monotonic()
        return self._viewer.write_credentials(self._credentials)

    def close(self) -> None:
        """Unlock the folder."""
        self._lock.close()

    async def follow(self, view: View) -> None:
        """Follow the job until cancelled: its status, and its metrics, which `view` shows, too."""
        job = RLJob.model_validate(self.identity.manifest, by_alias=True, by_name=False)
        metrics = MetricsFile(self.folder.metrics)
        follower = StreamFollower(self.progress, metrics, view, job.spec)
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._follow_status(view))
                tasks.create_task(self._follow_streams(follower, view))
                tasks.create_task(self._refresh(view))
        except Exception as error:  # what is shown would stay as it is without a word
            view.note(f"the job is not followed any more: {error}")
        finally:
            metrics.close(lambda _: None)

    async def _follow_streams(self, follower: StreamFollower, view: View) -> None:
        said = ""
        while True:
            store = store_of(self.identity, self._url, connect=_CONNECT_SECONDS)
            try:
                await store.open()
                await follower.follow(store)
            except StoreUnavailable as error:
                if str(error) != said:
                    said = str(error)
                    view.note(f"{said}; trying again")
            finally:
                await store.close()
            await asyncio.sleep(_RETRY_SECONDS)

    async def _refresh(self, view: View) -> None:
        while True:
            self.progress.rollout.mark(time.monotonic())
            view.refresh(self.progress)
            await asyncio.sleep(1)

    async def _follow_status(self, view: View) -> None:
        said = ""
        while True:
            await asyncio.sleep(_POLL_SECONDS)
            try:
                await asyncio.to_thread(self._read, view)
                said = ""
            except JobGone as error:
                if not self.ended:
                    view.note(str(error))
                self._end()
            except (RLJobError, OSError) as error:
                if str(error) != said:
                    said = str(error)
                    view.note(said)

    def _read(self, view: View) -> None:
        found = self._viewer.cluster.job(self._viewer.job)
        if found["metadata"]["uid"] != self.identity.uid:
            raise JobGone(self._viewer.job, "was deleted; the RLJob that has its name now is another one")
        if time.monotonic() - self._renewed > _RENEWAL_SECONDS:
            self._renew()
        job = job_of(found, self.identity.namespace, self.identity.uid)
        if found["metadata"]["generation"] != self._manifest["metadata"]["generation"]:
            changed = job.model_dump(mode="json", by_alias=True)
            generation = found["metadata"]["generation"]
            self._identity = replace(self.identity, manifest=changed, generation=generation)
            self.folder.write(self.identity)
            self._write_config()
            view.changed(job)
        self._manifest = found
        self._write_status(job)

    def _write_status(self, job: RLJob) -> None:
        status = self._manifest.get("status", {})
        replace_text(self.folder.path / "status.json", json.dumps({"status": status}))
        ends = {found["type"]: found for found in status.get("conditions", []) if found["status"] == "True"}
        outcome = next((kind for kind in _ENDS if kind in ends), "Running")
        end = ends.get(outcome, {})
        began = datetime.fromisoformat(self._manifest["metadata"]["creationTimestamp"])
        until = datetime.fromisoformat(end["lastTransitionTime"]) if end else datetime.now(UTC)
        summary = summarize(
            job,
            self.progress,
            wall_seconds=(until - began).total_seconds(),
            peak_bytes=0,
            outcome=outcome,
            failure=_failure(end) if outcome == "Failed" else None,
        )
        write_summary(self.folder, {**summary, "peak_memory_bytes": None})
        if end:
            self._end()

    def _end(self) -> None:
        self.ended = True
        self._lock.close()


def _failure(failed: Mapping[str, str]) -> Failure:
    """Why the job has failed, by its condition."""
    return Failure(Reason.of(failed.get("reason", ""), otherwise=Reason.UNKNOWN), failed.get("message", ""))


def job_of(manifest: Manifest, namespace: str, uid: str) -> RLJob:
    """An RLJob as an API server has it.

    Raises:
        SpecError: this release does not know a field of it.
    """
    metadata = {"name": manifest["metadata"]["name"], "namespace": namespace, "uid": uid}
    metadata["generation"] = manifest["metadata"].get("generation", 1)
    try:
        return RLJob.model_validate(
            {"apiVersion": API_VERSION, "kind": "RLJob", "metadata": metadata, "spec": manifest["spec"]},
            by_alias=True,
            by_name=False,
        )
    except ValueError as error:
        raise SpecError(
            metadata["name"],
            f"is not as this release of rljob knows it: install that of the cluster ({error})",
        ) from error


@asynccontextmanager
async def prepared(viewer: JobViewer, path: Path) -> AsyncIterator[tuple[JobMirror, RLJob]]:
    """Yield a mirror of a job, which has the job as it is now, and the job.

    Args:
        viewer: of the job.
        path: an existing folder, which others cannot read: it gets credentials.

    Raises:
        RLJobError: the job or its NATS server cannot be reached.
    """
    with ExitStack() as held:
        url = await asyncio.to_thread(lambda: held.enter_context(viewer.reached()))
        mirror = JobMirror(viewer, path, url)
        held.callback(mirror.close)
        yield mirror, await asyncio.to_thread(mirror.prepare)


@asynccontextmanager
async def mirrored(
    viewer: JobViewer, path: Path, open_view: Callable[[RLJob], View]
) -> AsyncIterator[JobMirror]:
    """Mirror a job in a folder until the context ends.

    Args:
        viewer, path: as of `prepared`.
        open_view: returns what shows the job's progress.

    Raises:
        RLJobError: as of `prepared`.
    """
    async with prepared(viewer, path) as (mirror, job):
        with open_view(job) as view:
            following = asyncio.create_task(mirror.follow(view))
            try:
                yield mirror
            finally:
                following.cancel()
                await asyncio.gather(following, return_exceptions=True)
