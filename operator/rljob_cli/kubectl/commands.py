"""The command line `kubectl rljob`: jobs on a cluster, with a person's own rights.

Exit codes are those of `rljob`; `audit` has one more, 5: all holds that was checked, but not every claim could be.
"""

from __future__ import annotations

import json
from typing import Annotated

import typer

from rljob_cli.exits import exit_codes
from rljob_cli.explain.command import explain
from rljob_cli.init.command import init
from rljob_cli.kubectl.options import (
    ContextOption,
    JobArgument,
    KubeconfigOption,
    NamespaceOption,
    open_cluster,
)
from rljob_cli.kubectl.stream_commands import audit, samples, top, ui
from rljob_cli.sites.command import app as site_app

app = typer.Typer(
    name="kubectl rljob",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Look at RLJobs on a cluster and change them, with the kubeconfig and the rights that kubectl has.",
)


@app.command()
def describe(
    job: JobArgument,
    namespace: NamespaceOption = "",
    context: ContextOption = "",
    kubeconfig: KubeconfigOption = "",
) -> None:
    """Say how a job is, and why: from its conditions to the pool, the pod and the cause.

    **Examples**

        kubectl rljob describe chain-sum

        kubectl rljob describe chain-sum --namespace team-a --context gpu-cluster
    """
    with exit_codes():
        cluster = open_cluster(namespace, context, kubeconfig)
        from datetime import UTC, datetime

        from rljob_cli.kubectl.describe import describe as lines_of
        from rljob_cli.samples.harmless import harmless

        found = cluster.job(job)
        pools, pods, events = cluster.pools(job), cluster.pods(job), cluster.warnings()
        for line in lines_of(found, pools, pods, events, datetime.now(UTC)):
            typer.echo(harmless(line))


@app.command()
def logs(
    job: JobArgument,
    *,
    role: Annotated[
        str, typer.Option(help="Only of this role: coordinator, rollout, reward, trainer or tracker.")
    ] = "",
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on with new lines, until Ctrl-C.")
    ] = False,
    previous: Annotated[
        bool, typer.Option("--previous", "-p", help="Of the processes that ran before they were restarted.")
    ] = False,
    tail: Annotated[
        int | None, typer.Option(min=0, metavar="N", help="The last N lines of each log; all without it.")
    ] = None,
    namespace: NamespaceOption = "",
    context: ContextOption = "",
    kubeconfig: KubeconfigOption = "",
) -> None:
    """Print the logs of a job's pods, each line with the name of its pod.

    **Examples**

        kubectl rljob logs chain-sum --role trainer

        kubectl rljob logs chain-sum --follow --tail 10
    """
    with exit_codes():
        from rljob_cli.kubectl.pod_logs import print_logs

        cluster = open_cluster(namespace, context, kubeconfig)
        cluster.job(job)
        print_logs(cluster, job, role=role, follow=follow, previous=previous, tail=tail)


@app.command()
def patch(
    job: JobArgument,
    overrides: Annotated[
        list[str],
        typer.Option(
            "--set", metavar="path=value", help="A field to change, as for `rljob patch`.", show_default=False
        ),
    ],
    namespace: NamespaceOption = "",
    context: ContextOption = "",
    kubeconfig: KubeconfigOption = "",
) -> None:
    """Change a job's spec; all of one command are one change, which is made whole or not at all.

    What was written since the job was read is not overwritten: the command then has to be given again.

    **Examples**

        kubectl rljob patch chain-sum --set pipeline.maxStaleness=4

        kubectl rljob patch chain-sum --set rollout.pools.cpu.replicas=3 --set steps=400
    """
    with exit_codes():
        from rljob_cli.kubectl.job_patch import patch_job

        cluster = open_cluster(namespace, context, kubeconfig)
        fields = patch_job(cluster, job, overrides)
        for path, before, now in fields:
            typer.echo(f"{path}: {json.dumps(before)} → {json.dumps(now)}")
    if not fields:
        typer.echo("nothing changes: the job has these values already")


@app.command()
def suspend(
    job: JobArgument,
    namespace: NamespaceOption = "",
    context: ContextOption = "",
    kubeconfig: KubeconfigOption = "",
) -> None:
    """Suspend a job: its pods end, and what it has made stays until it is resumed.

    **Examples**

        kubectl rljob suspend chain-sum
    """
    _suspend(job, namespace, context, kubeconfig, suspended=True)


@app.command()
def resume(
    job: JobArgument,
    namespace: NamespaceOption = "",
    context: ContextOption = "",
    kubeconfig: KubeconfigOption = "",
) -> None:
    """Resume a suspended job from its newest checkpoint.

    **Examples**

        kubectl rljob resume chain-sum
    """
    _suspend(job, namespace, context, kubeconfig, suspended=False)


def _suspend(job: str, namespace: str, context: str, kubeconfig: str, *, suspended: bool) -> None:
    with exit_codes():
        from rljob_cli.kubectl.job_patch import suspend_job

        cluster = open_cluster(namespace, context, kubeconfig)
        changed = suspend_job(cluster, job, suspended=suspended)
    word = "suspended" if suspended else "resumed"
    typer.echo(
        f"{job} is {word}" if changed else f"{job} was {word if suspended else 'not suspended'} already"
    )


app.command()(ui)
app.command()(top)
app.command()(samples)
app.command()(audit)
app.command()(explain)
app.command()(init)
app.add_typer(site_app)
