"""The commands that read what a job has stored: `ui`, `top`, `samples` and `audit`."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Annotated, Any, Self

import typer
from rich.console import Console

from rljob_cli.exits import exit_codes, run_async, scratch_folder, signals_interrupt
from rljob_cli.kubectl.options import (
    ContextOption,
    JobArgument,
    KubeconfigOption,
    NamespaceOption,
    StorageOption,
    open_cluster,
    storage_folders,
)
from rljob_cli.run.run_progress import RunProgress
from rljob_cli.samples import command as folder_samples
from rljob_core.messages import StepMetrics
from rljob_core.spec import RLJob
from rljob_operator.cluster.port import Event


class Notes:
    """Prints messages only."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Nothing is left to print."""

    def line(self, line: StepMetrics, progress: RunProgress) -> None:
        """Print nothing."""

    def refresh(self, progress: RunProgress) -> None:
        """Print nothing."""

    def event(self, event: Event) -> None:
        """Print nothing."""

    def changed(self, job: RLJob) -> None:
        """Print nothing."""

    def note(self, text: str) -> None:
        """Print the message."""
        typer.echo(text, err=True)


if TYPE_CHECKING:
    from rljob_cli.kubectl.mirror import JobMirror
    from rljob_cli.kubectl.viewer import JobViewer

_LAST_LINES_SECONDS = 10.0


def ui(
    job: JobArgument,
    *,
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port of the loopback interface; 0 for any free port.")
    ] = 0,
    storage: StorageOption = [],  # noqa: B006  typer's way
    namespace: NamespaceOption = "",
    context: ContextOption = "",
    kubeconfig: KubeconfigOption = "",
) -> None:
    """Show a job on a live page in a browser, as `rljob ui` shows a run.

    The page is served on the loopback interface of this machine, and reads the job's streams through a port-forward to
    its NATS server. It follows the job while it runs, and shows one that has ended as long as its RLJob exists.

    **Examples**

        kubectl rljob ui chain-sum

        kubectl rljob ui chain-sum --storage rljob=/mnt/rljob     # with samples that are kept on a claim
    """

    async def serve(viewer: JobViewer, folder: Path) -> None:
        from rljob_cli.kubectl.mirror import mirrored
        from rljob_cli.page.command import serve_page

        async with mirrored(viewer, folder, lambda _: Notes()):
            await serve_page([folder], port)

    with exit_codes(), _opened(job, namespace, context, kubeconfig, storage) as (viewer, folder):
        run_async(lambda: serve(viewer, folder))


def top(
    job: JobArgument,
    namespace: NamespaceOption = "",
    context: ContextOption = "",
    kubeconfig: KubeconfigOption = "",
) -> None:
    """Show a job's progress in the terminal, as `rljob run` does, until it ends or Ctrl-C.

    Where the output is redirected, it has a line for each step that ends, and for each evaluation.

    **Examples**

        kubectl rljob top chain-sum
    """

    async def show(viewer: JobViewer, folder: Path) -> None:
        from rljob_cli.kubectl.mirror import mirrored
        from rljob_cli.run.live_view import open_view
        from rljob_cli.run.view import EventLog

        events = EventLog(folder / "events.log")
        async with mirrored(
            viewer, folder, lambda job: open_view(Console(), job, events, stale="")
        ) as mirror:
            await _until_ended(mirror)

    with exit_codes(), _opened(job, namespace, context, kubeconfig) as (viewer, folder):
        run_async(lambda: show(viewer, folder))
        typer.echo(f"{job}: {viewer.cluster.job(job).get('status', {}).get('state', 'ended')}")


async def _until_ended(mirror: JobMirror) -> None:
    """Wait until the job has ended, and its last step was read."""
    while not mirror.ended:  # noqa: ASYNC110  nothing tells when
        await asyncio.sleep(0.2)
    end = time.monotonic() + _LAST_LINES_SECONDS
    while mirror.progress.step < mirror.step and time.monotonic() < end:  # noqa: ASYNC110
        await asyncio.sleep(0.2)
    await asyncio.sleep(0.5)  # for the last drawing


def samples(
    job: JobArgument,
    *,
    step: folder_samples.StepOption = None,
    prompt: folder_samples.PromptOption = "",
    reward_below: folder_samples.RewardOption = None,
    aborted: folder_samples.AbortedOption = False,
    evaluation: folder_samples.EvaluationOption = None,
    order: folder_samples.OrderOption = "newest",
    start: folder_samples.StartOption = 0,
    limit: folder_samples.LimitOption = 10,
    as_json: folder_samples.JsonOption = False,
    storage: StorageOption = [],  # noqa: B006  typer's way
    namespace: NamespaceOption = "",
    context: ContextOption = "",
    kubeconfig: KubeconfigOption = "",
) -> None:
    """Show what the model answered, as `rljob samples` does.

    Samples are beside the checkpoints. This machine reads them there: on an object store with your own credentials for
    it, on a claim where it is mounted here, too (`--storage`).

    **Examples**

        kubectl rljob samples chain-sum --order worst --limit 3

        kubectl rljob samples chain-sum --storage rljob=/mnt/rljob
    """
    with exit_codes(), _opened(job, namespace, context, kubeconfig, storage) as (viewer, folder):
        viewer.cluster.job(job)
        file = folder / "config.json"
        file.write_text(viewer.config().model_dump_json(by_alias=True), encoding="utf-8")
        folder_samples.samples(
            file,
            step=step,
            prompt=prompt,
            reward_below=reward_below,
            aborted=aborted,
            evaluation=evaluation,
            order=order,
            start=start,
            limit=limit,
            as_json=as_json,
        )


def audit(
    job: JobArgument,
    *,
    in_cluster: Annotated[
        bool,
        typer.Option(
            "--in-cluster",
            help="Audit in a Pod, which has the job's storage; needs the right to create Pods.",
        ),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON.")] = False,
    storage: StorageOption = [],  # noqa: B006  typer's way
    namespace: NamespaceOption = "",
    context: ContextOption = "",
    kubeconfig: KubeconfigOption = "",
) -> None:
    """Prove, or refute with the offending ids, that a job kept its promise: as `rljob audit`.

    A viewer reads the ledger, payloads, rewards and metrics. The weights' manifests and the trainer's own log are in
    the job's storage: claims that need them are checked with `--storage`, or `--in-cluster`, and else named.

    Exit codes: those of `rljob audit`, and 5: it holds as far as it was checked, but not every claim could be.

    **Examples**

        kubectl rljob audit chain-sum

        kubectl rljob audit chain-sum --in-cluster
    """

    async def read(viewer: JobViewer, folder: Path) -> Any:
        from rljob_cli.audit.read import read_folder
        from rljob_cli.kubectl.mirror import prepared
        from rljob_cli.run_folder.folder import RunFolder

        async with prepared(viewer, folder):
            return await read_folder(RunFolder(folder))

    from rljob_cli.audit.ending import audit_exit_codes, report

    with audit_exit_codes(), _opened(job, namespace, context, kubeconfig, storage) as (viewer, folder):
        if in_cluster:
            from rljob_cli.kubectl.audit_in_cluster import audit_in_cluster

            raise typer.Exit(audit_in_cluster(viewer.cluster, job, as_json=as_json))
        from rljob_cli.audit import audit as check

        code = report(check(run_async(lambda: read(viewer, folder))), as_json=as_json)
    raise typer.Exit(code)


@contextmanager
def _opened(
    job: str, namespace: str, context: str, kubeconfig: str, storage: Sequence[str] = ()
) -> Iterator[tuple[JobViewer, Path]]:
    """A viewer of a job, and an empty folder, which is removed at the end, also after a signal.

    Raises:
        SpecError: an option is wrong.
    """
    cluster = open_cluster(namespace, context, kubeconfig)
    from rljob_cli.kubectl.cluster import check_name
    from rljob_cli.kubectl.viewer import JobViewer

    check_name(job)
    viewer = JobViewer(cluster, job, storage_folders(storage))
    with signals_interrupt(), scratch_folder() as scratch:
        folder = scratch / job  # a run is shown by the name of its folder
        folder.mkdir()
        yield viewer, folder
