"""The command `rljob run`: checks a job, claims its output folder, runs it and reports how it ended."""

from __future__ import annotations

import asyncio
import os
import uuid
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from rljob_cli.exits import exit_codes, name_folder_in_errors
from rljob_cli.manifest.load import load_job, load_job_and_links
from rljob_cli.patch.change import kept_patches
from rljob_cli.run.end_report import RunEnd, log_of, report_end, resume_command
from rljob_cli.run.link_option import HELP, links_of
from rljob_cli.run_folder.folder import Identity, RunFolder
from rljob_core import worker_protocol
from rljob_core.errors import SpecError
from rljob_core.failures import Advice
from rljob_core.remote_uri import job_with_paths
from rljob_core.spec import RLJob, SiteLinkSpec

if TYPE_CHECKING:
    from rljob_cli.job_checks.downloads import Downloads
    from rljob_operator.cluster.local.fork_server import ForkServerProcess
    from rljob_runtime.messaging.nats.emulated_link import Cut

File = Annotated[Path, typer.Argument(help="YAML file with one RLJob.", show_default=False)]
Overrides = Annotated[
    list[str],
    typer.Option(
        "--set",
        metavar="path=value",
        help="Change a field (spec. may be left out); the value is YAML, list items go by index or name. Repeat it.",
        show_default=False,
    ),
]


def run(
    file: File,
    *,
    output: Annotated[
        Path | None,
        typer.Option(help="Folder for results, state and logs.", show_default="runs/<job's name>"),
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the run in the output folder.")] = False,
    from_version: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="With --resume: give up what came after this version, and continue from there (0: the initial model).",
            show_default=False,
        ),
    ] = None,
    overrides: Overrides = [],  # noqa: B006  typer's way
    nats_port: Annotated[
        int | None,
        typer.Option(min=1, max=65535, help="Port of the embedded nats-server.", show_default="any free one"),
    ] = None,
    record: Annotated[
        bool,
        typer.Option(
            "--record",
            help="Write down all that the coordinator sees and decides, for `rljob replay`; it costs about 1.5 KB of "
            "disk and 60 µs of the coordinator's time per trajectory.",
        ),
    ] = False,
    link: Annotated[list[str], typer.Option(metavar="SITE=parts", help=HELP, show_default=False)] = [],  # noqa: B006  typer's way
    ui: Annotated[
        bool,
        typer.Option("--ui", help="Serve the live page of the run until it ends, and print its address."),
    ] = False,
    metrics: Annotated[
        bool,
        typer.Option("--metrics", help="Serve each role's metrics for Prometheus, on this machine alone."),
    ] = False,
) -> None:
    """Run a job on this machine until it is finished.

    Everything runs as local processes: a nats-server (or `spec.nats.url`), a coordinator, a process per engine,
    reward workers and a trainer. A process that dies is started again. **Ctrl-C** stops all of them within 10 seconds,
    saves a checkpoint and says how to continue; a second one ends them at once.

    The output folder then holds `metrics.jsonl`, `summary.json`, `reward.png`, and in `checkpoint/` the model, which
    `transformers.AutoModelForCausalLM.from_pretrained` loads; `logs/` has what each process said.

    **Examples**

        rljob run manifests/examples/chain-sum.yaml

        rljob run job.yaml --output runs/sync --set spec.pipeline.mode=Synchronous

        rljob run job.yaml --set spec.rollout.pools.cpu.replicas=3 --set spec.algorithm.learningRate=1e-4

        rljob run job.yaml --link west=delay:30ms,rate:100mbit,cut:30s@2m

        rljob run job.yaml --output runs/sync --resume

        rljob run job.yaml --output runs/sync --resume --set spec.steps=400

        rljob run job.yaml --output runs/sync --resume --from-version 40
    """
    begun = _BegunRun()
    with exit_codes(begun.way_on):
        from rljob_cli.job_checks.downloads import download
        from rljob_cli.job_checks.machine import check_machine
        from rljob_cli.job_checks.nats_server import check_nats
        from rljob_cli.job_checks.output_folder import check_claimable, check_output
        from rljob_cli.job_checks.training_rows import training_rows
        from rljob_cli.run.ahead import OFFLINE, importing_ahead
        from rljob_runtime.process.import_path import find_modules_in

        if from_version is not None and not resume:
            raise SpecError("--from-version", "goes back in a run that exists: add --resume")
        if ui and not find_spec("uvicorn"):
            raise SpecError("--ui", "needs starlette and uvicorn: pip install 'rljob[ui]'")
        given, described = load_job_and_links(file, overrides)
        emulated = links_of(link, given, described)
        links = emulated.links
        modules = str(file.resolve().parent)
        find_modules_in([modules])
        folder = RunFolder(output if output is not None else Path("runs") / given.metadata.name)
        begun.job, begun.folder = given.metadata.name, folder
        if from_version is not None:
            begun.flags = ["--from-version", str(from_version)]
        variables = {worker_protocol.MODULES: modules}
        if record:
            variables[worker_protocol.DECISIONS] = str(folder.decisions)
        if metrics:
            variables |= folder.metrics_variables
        environment = {**os.environ, **OFFLINE, **variables}
        with ExitStack() as held:
            held.enter_context(name_folder_in_errors(folder.path))
            fork_server = held.enter_context(importing_ahead(given, variables))
            earlier = check_claimable(folder, given, resume=resume)
            job, _ = _with_patches(file, overrides, given, earlier)
            downloads = download(job.spec, earlier.downloads if earlier is not None else {})
            with folder.changing():
                earlier = folder.identity() if resume else None
                job, kept = _with_patches(file, overrides, given, earlier)
                local = job_with_paths(job, downloads)
                model = check(local, folder, links)
                check_machine()
                check_nats(job, nats_port)
                checked = partial(
                    check_output,
                    folder,
                    job,
                    resume=resume,
                    model=model,
                    from_version=from_version,
                    downloads=downloads,
                )
                checked()
                held.enter_context(folder.locked())
                known = checked()
                if (
                    known is not None
                    and from_version is None
                    and (steps := _finished_steps(folder, job, known))
                ):
                    _say_patches(kept, known)
                    _say_finished(folder, job, steps)
                    return
                before = known.data if known is not None else {}
                data = training_rows(local.spec, before)
                identity = _identity_of(
                    job,
                    given,
                    known,
                    kept,
                    model=model,
                    origin=file.resolve().parent,
                    links=links,
                    data=data,
                    downloads=downloads,
                )
                if from_version is not None:
                    from rljob_cli.run.resume import go_back_to, summary

                    typer.echo(summary(go_back_to(from_version, identity.stamp(job), folder)))
                    begun.flags = []
                folder.claim(identity)
            if before and data != before:
                typer.echo(
                    f"changed since the last run: {job.spec.data.dataset}; its {data['rows']} rows keep their places, "
                    "and those that were changed are trained as they are now"
                )
            if known is not None:
                _say_patches(kept, known)
            code = _run(
                job,
                identity,
                folder,
                nats_port=nats_port or 0,
                cuts=emulated.cuts,
                page=ui,
                environment=environment,
                fork_server=fork_server,
            )
    raise typer.Exit(code)


@dataclass(slots=True)
class _BegunRun:
    """The run that a command starts or continues, for what is said if an error ends the command.

    Attributes:
        folder: None until it is known.
        flags: what the next command needs besides `--resume`.
    """

    job: str = ""
    folder: RunFolder | None = None
    flags: list[str] = field(default_factory=list)

    def way_on(self, advice: Advice) -> list[str]:
        """Where the log is and what continues the run; nothing if the folder holds no run yet."""
        if self.folder is None or not self.folder.job.exists():
            return []
        log = log_of(advice, self.job, self.folder.path / "logs")
        return [*([f"log: {log}"] if log.exists() else []), f"to continue: {resume_command(*self.flags)}"]


def _with_patches(
    file: Path, overrides: Sequence[str], given: RLJob, earlier: Identity | None
) -> tuple[RLJob, list[str]]:
    """The job with the patches of an earlier run that still count, and these."""
    kept = kept_patches(earlier, given) if earlier is not None else []
    return (load_job(file, [*overrides, *kept]) if kept else given), kept


def check(job: RLJob, folder: RunFolder, links: Mapping[str, SiteLinkSpec]) -> str:
    """Check the files and names that a job refers to; returns the identity of its model."""
    from rljob_cli.job_checks.job import check_job
    from rljob_operator.children.resolved_job import resolve_job
    from rljob_runtime.locations import local_path
    from rljob_runtime.model.identity import model_identity

    config = resolve_job(job, folder.defaults(nats_url="", links=links)).config
    for warning in check_job(config):
        typer.echo(f"warning: {warning}", err=True)
    return model_identity(local_path(job.spec.model.uri))


def _identity_of(
    job: RLJob,
    given: RLJob,
    known: Identity | None,
    kept: list[str],
    *,
    model: str,
    origin: Path,
    links: Mapping[str, SiteLinkSpec],
    data: dict[str, Any],
    downloads: Downloads,
) -> Identity:
    """Create the identity that the output folder stores for a new or resumed job."""
    manifest = job.model_dump(mode="json", by_alias=True)
    generation = 1
    if known is not None:
        generation = known.generation + (manifest != known.manifest)
    return Identity(
        name=job.metadata.name,
        namespace=job.metadata.namespace,
        uid=known.uid if known is not None else uuid.uuid4().hex[:12],
        model=model,
        nats_url=job.spec.nats.url or "",
        manifest=manifest,
        generation=generation,
        given=given.model_dump(mode="json", by_alias=True),
        patches=kept,
        origin=str(origin),
        links={site: link.model_dump(mode="json", by_alias=True) for site, link in links.items()},
        data=data,
        downloads=downloads,
    )


def _say_patches(kept: list[str], known: Identity) -> None:
    if kept:
        typer.echo(f"kept from rljob patch: {', '.join(kept)}")
    if dropped := [text for text in known.patches if text not in kept]:
        typer.echo(
            f"no longer kept from rljob patch: {', '.join(dropped)}: this command gives another value there "
            "than the last one"
        )


def _finished_steps(folder: RunFolder, job: RLJob, known: Identity) -> int:
    """Steps of a run that is finished, of which there is nothing to resume; 0 if it is not, or has lost streams."""
    from rljob_cli.run.resume import lost_since_its_end

    summary = folder.earlier_summary()
    steps = int(summary.get("steps", 0))
    if summary.get("exit") != "Succeeded" or job.spec.steps > steps:
        return 0
    lost = lost_since_its_end(folder, known, steps)
    for stream, why in lost.items():
        typer.echo(f"repairing the stream {stream}: {why}")
    return 0 if lost else steps


def _say_finished(folder: RunFolder, job: RLJob, steps: int) -> None:
    """Say that there is nothing to resume, and how more steps are trained."""
    typer.echo(f"{job.metadata.name} is finished already: {steps} steps; see {folder.summary}")
    typer.echo(f"to train more steps: {resume_command('--set', f'spec.steps={2 * steps}')}")


def _run(
    job: RLJob,
    identity: Identity,
    folder: RunFolder,
    *,
    nats_port: int,
    cuts: Mapping[str, Sequence[Cut]],
    page: bool,
    environment: dict[str, str],
    fork_server: ForkServerProcess | None,
) -> int:
    from rljob_cli.run.live_view import open_view
    from rljob_cli.run.run import Run
    from rljob_cli.run.view import EventLog

    job = identity.stamp(job)
    console = Console()
    with open_view(console, job, EventLog(folder.events)) as view:

        async def to_the_end() -> tuple[RunEnd, Run]:
            run = partial(Run, links=identity.site_links, cuts=cuts, page=page, nats_port=nats_port)
            here = run(job, folder, view, environment=environment, fork_server=fork_server)
            return await here.run(), here

        end, ended = asyncio.run(to_the_end())
    return report_end(end, ended.step, ended.follower.warnings, job, folder, sites=ended.progress.sites)
