"""The command `rljob run`: checks a job, claims its output folder, runs it and reports how it ended."""

from __future__ import annotations

import asyncio
import shlex
import sys
import uuid
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from rljob_cli.exits import EXIT_FAILED, EXIT_INTERRUPTED, exit_codes, name_folder_in_errors
from rljob_cli.faults import flags_to_continue, log_of
from rljob_cli.manifest.load import load_job
from rljob_cli.patch.change import kept_patches
from rljob_cli.run_folder.folder import Identity, RunFolder
from rljob_core import worker_protocol
from rljob_core.errors import SpecError
from rljob_core.faults import UNKNOWN, Fault
from rljob_core.spec import RLJob

File = Annotated[Path, typer.Argument(help="YAML file with one RLJob.", show_default=False)]
Overrides = Annotated[
    list[str],
    typer.Option(
        "--set",
        metavar="spec.path=value",
        help="Change a field; the value is YAML, items of lists go by index or name. May be given again.",
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

        rljob run job.yaml --output runs/sync --resume

        rljob run job.yaml --output runs/sync --resume --from-version 40
    """
    begun = _BegunRun()
    with exit_codes(begun.way_on):
        from rljob_cli.job_checks.nats_server import check_nats
        from rljob_cli.job_checks.output_folder import check_output
        from rljob_cli.job_checks.training_rows import training_rows
        from rljob_cli.manifest.import_path import allow_modules_beside

        if from_version is not None and not resume:
            raise SpecError("--from-version", "goes back in a run that exists: add --resume")
        given = load_job(file, overrides)
        python_path = allow_modules_beside(file)
        folder = RunFolder(output if output is not None else Path("runs") / given.metadata.name)
        begun.job, begun.folder = given.metadata.name, folder
        if from_version is not None:
            begun.flags = ["--from-version", str(from_version)]
        with ExitStack() as held:
            held.enter_context(name_folder_in_errors(folder.path))
            with folder.changing():
                earlier = folder.identity() if resume else None
                kept = kept_patches(earlier, given) if earlier is not None else []
                job = load_job(file, [*overrides, *kept]) if kept else given
                model = check(job, folder)
                check_nats(job, nats_port)
                check_output(folder, job, resume=resume, model=model, from_version=from_version)
                held.enter_context(folder.locked())
                known = check_output(folder, job, resume=resume, model=model, from_version=from_version)
                if known is not None and from_version is None and _finished(folder, job):
                    return
                before = known.data if known is not None else {}
                data = training_rows(job.spec.data, before)
                identity = _identity(
                    job, given, known, kept, model=model, origin=file.resolve().parent, data=data
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
            if kept:
                typer.echo(f"kept from rljob patch: {', '.join(kept)}")
            environment = {"PYTHONPATH": python_path}
            if record:
                environment[worker_protocol.DECISIONS] = str(folder.decisions)
            code = _run(job, identity, folder, nats_port=nats_port or 0, environment=environment)
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

    def way_on(self, fault: Fault) -> list[str]:
        """Where the log is and what continues the run; nothing if the folder holds no run yet."""
        if self.folder is None or not self.folder.job.exists():
            return []
        log = log_of(fault, self.job, self.folder.path / "logs")
        return [*([f"log: {log}"] if log.exists() else []), f"to continue: {resume_command(*self.flags)}"]


def check(job: RLJob, folder: RunFolder) -> str:
    """Check the files and names that a job refers to; returns the identity of its model."""
    from rljob_cli.job_checks.job import check_job
    from rljob_operator.children.resolved_job import resolve_job
    from rljob_runtime.locations import local_path
    from rljob_runtime.model.identity import model_identity

    check_job(resolve_job(job, folder.defaults(nats_url="")).config)
    return model_identity(local_path(job.spec.model.uri))


def _identity(
    job: RLJob,
    given: RLJob,
    known: Identity | None,
    kept: list[str],
    *,
    model: str,
    origin: Path,
    data: dict[str, Any],
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
        data=data,
    )


def _finished(folder: RunFolder, job: RLJob) -> bool:
    """Whether there is nothing to resume; says so.

    Raises:
        SpecError: the job would continue past its end.
    """
    summary = folder.earlier_summary()
    if summary.get("exit") != "Succeeded":
        return False
    steps = int(summary.get("steps", 0))
    if job.spec.steps > steps:
        raise SpecError(
            "spec.steps",
            f"the job in {folder.path} is finished after {steps} steps, for good: start another one from its "
            f"checkpoint, with spec.model.uri={folder.checkpoint} and another --output",
        )
    typer.echo(f"{job.metadata.name} is finished already: {steps} steps; see {folder.summary}")
    return True


def _run(
    job: RLJob, identity: Identity, folder: RunFolder, *, nats_port: int, environment: dict[str, str]
) -> int:
    from rljob_cli.run.run import Run
    from rljob_cli.run.run_end import RunEnd, RunExit
    from rljob_cli.run.view import open_view

    job = identity.stamp(job)
    console = Console()
    with open_view(console, job) as view:

        async def to_the_end() -> tuple[RunEnd, int]:
            here = Run(job, folder, view, nats_port=nats_port, environment=environment)
            return await here.run(), here.step

        end, step = asyncio.run(to_the_end())
    if end.exit is RunExit.SUCCEEDED:
        typer.echo(f"finished: {step} steps; results in {folder.path}")
        typer.echo(f"to check it: {shlex.join(['rljob', 'audit', str(folder.path)])}")
        return 0
    log, flags = folder.path / "logs", list[str]()
    if end.exit is RunExit.INTERRUPTED:
        typer.echo(f"interrupted at step {step}, by a signal from outside", err=True)
    else:
        fault = end.fault or UNKNOWN
        log, flags = (
            log_of(fault, job.metadata.name, log),
            flags_to_continue(fault, end.message),
        )
        typer.echo(f"error: {job.metadata.name} failed at step {step}: {end.message}", err=True)
        typer.echo(f"at fault: {fault.who}", err=True)
        typer.echo(f"to do: {fault.remedy}", err=True)
    typer.echo(f"log: {log}", err=True)
    typer.echo(f"to continue: {resume_command(*flags)}", err=True)
    return EXIT_INTERRUPTED if end.exit is RunExit.INTERRUPTED else EXIT_FAILED


def resume_command(*flags: str) -> str:
    """The command that was given, to continue; without its flags of that kind: a rollback is done."""
    arguments = iter(sys.argv[1:])
    kept = []
    for argument in arguments:
        if argument == "--from-version":
            next(arguments, None)
        elif argument != "--resume" and not argument.startswith("--from-version="):
            kept.append(argument)
    return shlex.join(["rljob", *kept, "--resume", *flags])
