"""The `rljob` command line: run a job here, change it while it runs, check a manifest, audit and replay a run.

Exit codes: 0 all is well; 1 the job failed, or the audit or a check found a violation; 2 the input is wrong, and
nothing was started; 130 after Ctrl-C. The audit has two more: 3 unfinished, 4 damaged.
"""

from __future__ import annotations

import asyncio
from importlib import metadata
from pathlib import Path
from typing import Annotated

import typer

from rljob_cli.backup.commands import backup, restore
from rljob_cli.checkpoints.eval_command import evaluate
from rljob_cli.checkpoints.export import export
from rljob_cli.compare.command import compare
from rljob_cli.exits import exit_codes
from rljob_cli.explain.command import explain
from rljob_cli.generate.chart.command import chart
from rljob_cli.generate.commands import crd, job_policy, monitoring, record_schema
from rljob_cli.generate.nats_keys import nats_init
from rljob_cli.generate.nats_site import nats_site
from rljob_cli.init.command import init
from rljob_cli.manifest.load import load_job_and_links
from rljob_cli.page.command import ui
from rljob_cli.plugin_checks.commands import (
    check_backend,
    check_engine,
    check_environment,
    check_loss,
    check_reward,
)
from rljob_cli.reference.command import reference
from rljob_cli.replay import replay
from rljob_cli.run.command import File, Overrides, check, run
from rljob_cli.run_folder.folder import RunFolder
from rljob_cli.samples.command import samples
from rljob_cli.simulate.command import simulate
from rljob_cli.sites.command import app as site_app
from rljob_core.remote_uri import job_with_paths

app = typer.Typer(
    name="rljob",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


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

        rljob init job.yaml                 # write a manifest to begin with

        rljob explain spec.algorithm.loss   # what a field means

        rljob validate job.yaml             # would it run?

        rljob run job.yaml --output runs/1  # run it

        rljob ui runs/1                     # look at it in a browser, while it runs and afterwards

        rljob patch runs/1 --set steps=400  # change it while it runs

        rljob audit runs/1                  # prove that nothing was lost, trained twice or too stale

        rljob compare runs/1 runs/2         # which one learned faster, and what differs

        rljob samples runs/1                # what it answered, and how that was scored

        rljob backup runs/1 /mnt/backups/1  # copy it, while it runs
    """


app.command()(init)
app.command()(run)
app.command()(simulate)
app.command()(ui)


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
    """Change a job while it runs, or before it is resumed.

    The whole spec is checked as `rljob run` does, and what a job keeps for good is refused. A running `rljob run` takes
    the change over within seconds and restarts only the processes that read the field; of `pipeline` it restarts none:
    buffers that are open keep their bound, those that open later get the new one. The change stays for `--resume`.

    **Examples**

        rljob patch runs/sums --set pipeline.mode=Streaming --set pipeline.maxStaleness=0

        rljob patch runs/sums --set pipeline.maxStaleness=4

        rljob patch runs/sums --set rollout.pools.cpu.replicas=3 --set steps=400
    """
    with exit_codes():
        from rljob_cli.patch.report import patch_and_report

        for line in patch_and_report(RunFolder(path), overrides):
            typer.echo(line)


@app.command()
def validate(file: File, overrides: Overrides = []) -> None:  # noqa: B006  typer's way
    """Check a manifest as `run` does, and start nothing.

    Every wrong field is listed with its path and what to write instead. What is to be downloaded is downloaded, as it
    is looked into.

    **Examples**

        rljob validate job.yaml

        rljob validate job.yaml --set spec.pipeline.mode=Streaming
    """
    with exit_codes():
        from rljob_cli.job_checks.downloads import download
        from rljob_runtime.process.import_path import find_modules_in

        job, links = load_job_and_links(file, overrides)
        find_modules_in([str(file.resolve().parent)])
        job = job_with_paths(job, download(job.spec, {}))
        check(job, RunFolder(Path("runs") / job.metadata.name), links)
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
    metrics: Annotated[
        Path | None,
        typer.Option(help="File to write the verdict into, as Prometheus reads it.", show_default=False),
    ] = None,
) -> None:
    """Prove, or refute with the offending ids, that a run kept its promise.

    No trajectory lost, none trained twice, none past its staleness bound: the ledger, the payloads that are left, the
    weights' manifests and the trainer's own log are read one by one and compared; none of them is believed alone. It
    works while a job runs, after it has finished, and after a crash.

    Exit codes: 0 it holds; 1 it is violated; 2 DIR holds no run; 3 it is unfinished: the ledger has lost records that
    only `rljob run --resume` restores; 4 evidence is damaged: missing, altered or unreadable; 6 the audit could not be
    made (no room, no memory, no server), which says nothing about the run.

    **Examples**

        rljob audit runs/chain-sum

        rljob audit runs/chain-sum --json | jq .verdict
    """
    from rljob_cli.audit.ending import audit_exit_codes, report

    with audit_exit_codes():
        from rljob_cli.audit import audit as check
        from rljob_cli.audit.metrics_file import write_metrics
        from rljob_cli.audit.read import read_configured, read_folder
        from rljob_cli.cluster_job import job_config

        config = job_config(path) if path.is_file() else None
        evidence = read_folder(RunFolder(path)) if config is None else read_configured(config)
        findings = check(asyncio.run(evidence))
        code = report(findings, as_json=as_json)
        if metrics is not None:
            write_metrics(metrics, findings, path, config)
    raise typer.Exit(code)


app.command()(compare)
app.command("eval")(evaluate)
app.command()(export)
app.command()(explain)
app.command()(samples)
app.command()(backup)
app.command()(restore)
app.command()(replay)
app.command()(check_engine)
app.command()(check_backend)
app.command()(check_loss)
app.command()(check_reward)
app.command()(check_environment)
app.command()(crd)
app.command()(job_policy)
app.command()(record_schema)
app.command()(reference)
app.command()(monitoring)
app.command()(chart)
app.command()(nats_init)
app.command()(nats_site)
app.add_typer(site_app)
