"""The `rljob` command line: run a job here, change it while it runs, check a manifest, audit and replay a run.

Exit codes: 0 all is well; 1 the job failed, or the audit or a check found a violation; 2 the input is wrong, and
nothing was started; 130 after Ctrl-C.
"""

from __future__ import annotations

import asyncio
import shlex
import sys
import uuid
from contextlib import ExitStack
from importlib import metadata
from pathlib import Path
from typing import Annotated

import typer
from pydantic import ValidationError
from rich.console import Console

from rljob_cli.check_commands import check_backend, check_engine, check_reward
from rljob_cli.crd_command import crd
from rljob_cli.exits import EXIT_FAILED, EXIT_INTERRUPTED, exit_codes
from rljob_cli.manifest import load_job
from rljob_cli.nats_init import nats_init
from rljob_cli.patch import kept_patches
from rljob_cli.replay_command import replay
from rljob_cli.run_folder import Identity, RunFolder
from rljob_core import worker_protocol
from rljob_core.config import JobConfig
from rljob_core.errors import SpecError
from rljob_core.spec import RLJob, ineffective_fields

app = typer.Typer(
    name="rljob",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

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


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"rljob {metadata.version('rljob')}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Asynchronous reinforcement learning of language models.

    An **RLJob** is a YAML file: a model, prompts, rewards, an algorithm, and how far rollout may run ahead of training
    (`spec.pipeline`). `rljob` runs it on this machine, with the same reconcile that runs it on Kubernetes.

    **Examples**

        rljob validate job.yaml             # would it run?

        rljob run job.yaml --output runs/1  # run it

        rljob patch runs/1 --set steps=400  # change it while it runs

        rljob audit runs/1                  # prove that nothing was lost, trained twice or too stale
    """


@app.command()
def run(
    file: File,
    *,
    output: Annotated[
        Path | None,
        typer.Option(help="Folder for results, state and logs.", show_default="runs/<job's name>"),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with the run in the output folder.")
    ] = False,
    from_version: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="With --resume: give up what came after this version, and go on from there (0: the initial model).",
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
    saves a checkpoint and says how to go on; a second one ends them at once.

    The output folder then holds `metrics.jsonl`, `summary.json`, `reward.png`, and in `checkpoint/` the model, which
    `transformers.AutoModelForCausalLM.from_pretrained` loads; `logs/` has what each process said.

    **Examples**

        rljob run manifests/examples/chain-sum.yaml

        rljob run job.yaml --output runs/sync --set spec.pipeline.mode=Synchronous

        rljob run job.yaml --set spec.rollout.pools.cpu.replicas=3 --set spec.algorithm.learningRate=1e-4

        rljob run job.yaml --output runs/sync --resume

        rljob run job.yaml --output runs/sync --resume --from-version 40
    """
    with exit_codes():
        from rljob_cli.checks import allow_modules_beside, check_nats, check_output

        if from_version is not None and not resume:
            raise SpecError("--from-version", "goes back in a run that is there: add --resume")
        given = load_job(file, overrides)
        python_path = allow_modules_beside(file)
        folder = RunFolder(output if output is not None else Path("runs") / given.metadata.name)
        with ExitStack() as held:
            with folder.changing():
                before = folder.identity() if resume else None
                kept = kept_patches(before, given) if before is not None else []
                job = load_job(file, [*overrides, *kept]) if kept else given
                model = _checked(job, folder)
                check_nats(job, nats_port)
                check_output(folder, job, resume=resume, model=model)
                held.enter_context(folder.locked())
                known = check_output(folder, job, resume=resume, model=model)
                if known is not None and from_version is None and _finished(folder, job):
                    return
                identity = _identity(job, given, known, kept, model=model, origin=file.resolve().parent)
                if from_version is not None:
                    from rljob_cli.rollback import go_back_to, told

                    typer.echo(told(go_back_to(from_version, identity.stamp(job), folder)))
                folder.claim(identity)
            if kept:
                typer.echo(f"kept from rljob patch: {', '.join(kept)}")
            environment = {"PYTHONPATH": python_path}
            if record:
                environment[worker_protocol.DECISIONS] = str(folder.decisions)
            code = _run(job, identity, folder, nats_port=nats_port or 0, environment=environment)
    raise typer.Exit(code)


@app.command()
def patch(
    path: Annotated[
        Path,
        typer.Argument(metavar="DIR", help="Output folder of a run, running or not.", show_default=False),
    ],
    overrides: Annotated[
        list[str],
        typer.Option(
            "--set",
            metavar="path=value",
            help="A field to change, as for `rljob run`; `spec.` may be left out. All of one command are one change.",
            show_default=False,
        ),
    ],
) -> None:
    """Change a job while it runs, or before it goes on.

    The whole spec is checked as `rljob run` does, and what a job keeps for good is refused. A running `rljob run` takes
    the change over within seconds and restarts only the processes that read the field; of `pipeline` it restarts none:
    buffers that are open keep their bound, those that open later get the new one. The change stays for `--resume`.

    **Examples**

        rljob patch runs/sums --set pipeline.mode=Streaming --set pipeline.maxStaleness=0

        rljob patch runs/sums --set pipeline.maxStaleness=4

        rljob patch runs/sums --set rollout.pools.cpu.replicas=3 --set steps=400
    """
    with exit_codes():
        from rljob_cli.patch_report import tell

        for line in tell(RunFolder(path), overrides):
            typer.echo(line)


@app.command()
def validate(file: File, overrides: Overrides = []) -> None:  # noqa: B006  typer's way
    """Check a manifest as `run` does, and start nothing.

    Every wrong field is told with its path and what to write instead.

    **Examples**

        rljob validate job.yaml

        rljob validate job.yaml --set spec.pipeline.mode=Streaming
    """
    with exit_codes():
        from rljob_cli.checks import allow_modules_beside

        job = load_job(file, overrides)
        allow_modules_beside(file)
        _checked(job, RunFolder(Path("runs") / job.metadata.name))
    for path, reason in ineffective_fields(job):
        typer.echo(f"warning: {path} {reason}", err=True)
    typer.echo(f"{file}: RLJob {job.metadata.name} is valid")


@app.command()
def audit(
    path: Annotated[
        Path,
        typer.Argument(
            metavar="DIR",
            help="Output folder of a run (in a pod: the job's config.json).",
            show_default=False,
        ),
    ],
    as_json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON.")] = False,
) -> None:
    """Prove, or refute with the offending ids, that a run kept its promise.

    No trajectory lost, none trained twice, none past its staleness bound: the ledger, the payloads that are left, the
    weights' manifests and the trainer's own log are read one by one and compared; none of them is believed alone. It
    works while a job runs, after it has finished, and after a crash.

    **Examples**

        rljob audit runs/chain-sum

        rljob audit runs/chain-sum --json | jq .verdict
    """
    with exit_codes():
        from rljob_cli.audit import audit as check
        from rljob_cli.audit.read import read_configured, read_folder
        from rljob_cli.audit.table import as_text, print_table

        config = _job_config(path) if path.is_file() else None
        evidence = read_folder(RunFolder(path)) if config is None else read_configured(config)
        findings = check(asyncio.run(evidence))
    if as_json:
        typer.echo(as_text(findings))
    else:
        print_table(Console(), findings)
    raise typer.Exit(0 if findings.holds else EXIT_FAILED)


app.command()(replay)
app.command()(check_engine)
app.command()(check_backend)
app.command()(check_reward)
app.command()(crd)
app.command()(nats_init)


# ------------------------------------------------------------------------------------------------- the steps


def _job_config(path: Path) -> JobConfig:
    try:
        return JobConfig.model_validate_json(path.read_bytes())
    except ValidationError as error:
        raise SpecError(str(path), "is no configuration of a job; give the output folder of a run") from error


def _checked(job: RLJob, folder: RunFolder) -> str:
    """Check what the job names; the identity of its model."""
    from rljob_cli.checks import check_job
    from rljob_operator.children.resolved_job import resolve_job
    from rljob_runtime.locations import local_path
    from rljob_runtime.model.identity import model_identity

    check_job(resolve_job(job, folder.defaults(nats_url="")).config)
    return model_identity(local_path(job.spec.model.uri))


def _identity(
    job: RLJob, given: RLJob, known: Identity | None, kept: list[str], *, model: str, origin: Path
) -> Identity:
    """What to write down of a job that starts, or goes on."""
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
    )


def _finished(folder: RunFolder, job: RLJob) -> bool:
    """Whether there is nothing to go on with; says so.

    Raises:
        SpecError: the job is to go on past its end.
    """
    from rljob_cli.report import earlier

    summary = earlier(folder)
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
    from rljob_cli.run import Run, RunExit
    from rljob_cli.view import open_view

    job = identity.stamp(job)
    console = Console()
    with open_view(console, job) as view:

        async def to_the_end() -> tuple[RunExit, str, int]:
            here = Run(job, folder, view, nats_port=nats_port, environment=environment)
            end = await here.run()
            return end.exit, end.message, here.progress.step

        outcome, message, step = asyncio.run(to_the_end())
    if outcome is RunExit.SUCCEEDED:
        typer.echo(f"finished: {step} steps; results in {folder.path}")
        return 0
    typer.echo(f"to go on: {_resume_command()}", err=True)
    if outcome is RunExit.INTERRUPTED:
        typer.echo(f"interrupted at step {step}", err=True)
        return EXIT_INTERRUPTED
    typer.echo(f"error: {job.metadata.name} failed at step {step}: {message}", err=True)
    typer.echo(f"what each process said: {folder.path / 'logs'}", err=True)
    return EXIT_FAILED


def _resume_command() -> str:
    """The command that was given, to go on: going back is done."""
    arguments = iter(sys.argv[1:])
    kept = []
    for argument in arguments:
        if argument == "--from-version":
            next(arguments, None)
        elif argument != "--resume" and not argument.startswith("--from-version="):
            kept.append(argument)
    return shlex.join(["rljob", *kept, "--resume"])


def main() -> None:
    """Entry of the `rljob` command."""
    app()
