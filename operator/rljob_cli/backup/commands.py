"""The commands `rljob backup` and `rljob restore`."""

from __future__ import annotations

import asyncio
import shlex
from pathlib import Path
from typing import Annotated

import typer

from rljob_cli.exits import exit_codes
from rljob_cli.own_command import own_command
from rljob_cli.run_folder.folder import RunFolder
from rljob_core.errors import SpecError

Target = Annotated[
    str,
    typer.Argument(
        metavar="TARGET",
        help="Place of the backup: a folder, s3://bucket/prefix or gs://bucket/prefix.",
        show_default=False,
    ),
]


def backup(
    path: Annotated[
        Path,
        typer.Argument(
            metavar="DIR",
            help="Output folder of a run, running or not (in a pod: the job's config.json).",
            show_default=False,
        ),
    ],
    target: Target,
) -> None:
    """Copy a job, while it runs or after it has ended, so that it can continue elsewhere.

    The backup holds the job as it was at one moment: its ledger, the payloads, scores and metrics in its streams, the
    weights that its newest versions need, every manifest, the checkpoints and the trainer's own log. The job is not
    stopped, and does not notice. The model that it started from, and its data, are not in the backup.

    Given again, the command replaces the backup by a newer one, and copies only what is new. A backup that was
    interrupted leaves the one before it as it is.

    **Examples**

        rljob backup runs/sums /mnt/backups/sums

        rljob backup runs/sums s3://backups/sums

        rljob restore /mnt/backups/sums runs/sums-2 && rljob audit runs/sums-2
    """
    with exit_codes():
        from rljob_cli.backup.place import open_place
        from rljob_cli.backup.sources import back_up_configured, back_up_run
        from rljob_cli.cluster_job import job_config

        place = open_place(target)
        copying = (
            back_up_configured(job_config(path), place)
            if path.is_file()
            else back_up_run(RunFolder(path), place)
        )
        taken = asyncio.run(copying)
    typer.echo(str(taken))
    typer.echo(f"to restore it: {shlex.join(['rljob', 'restore', target])} DIR")


def restore(
    target: Target,
    path: Annotated[
        Path,
        typer.Argument(
            metavar="DIR",
            help="Output folder to make: it must not exist, or be empty (in a pod: the config.json of a job that never "
            "ran).",
            show_default=False,
        ),
    ],
    overrides: Annotated[
        list[str],
        typer.Option(
            "--set",
            metavar="spec.path=value",
            help="Where the job keeps from now on what it kept outside of its folder: spec.nats.url, spec.weights.uri, "
            "spec.trainer.checkpoint.uri. May be given again.",
            show_default=False,
        ),
    ] = [],  # noqa: B006  typer's way
) -> None:
    """Make an output folder from a backup; `rljob run --resume` then continues the job, and `rljob audit` audits it.

    The job keeps its name, its uid and its history: what was consumed before the backup is never trained again. What
    the job did after the backup was taken is not in it. So continue only one copy of a job.

    What the job kept outside of its folder (streams on a server, weights, checkpoints) is written where --set says, and
    never where the backup alone says. Nothing is overwritten. Every file is compared with its digest; if one differs,
    nothing is restored.

    **Examples**

        rljob restore /mnt/backups/sums runs/sums-2 && rljob run job.yaml --output runs/sums-2 --resume

        rljob restore s3://backups/sums runs/sums-2 --set spec.weights.uri=s3://weights/sums-2
    """
    with exit_codes():
        from rljob_cli.backup.place import open_place
        from rljob_cli.backup.restore import patches_in
        from rljob_cli.backup.restore import restore as restored
        from rljob_cli.backup.restore_on_cluster import restore_configured
        from rljob_cli.cluster_job import job_config

        place = open_place(target)
        if path.is_file():
            if overrides:
                raise SpecError("--set", "is for output folders: change the RLJob itself")
            config = job_config(path)
            index, where = asyncio.run(restore_configured(place, config)), f"the job {config.job}"
        else:
            folder = RunFolder(path)
            index, where = asyncio.run(restored(place, folder, overrides)), str(folder.path)
    typer.echo(f"restored {index.name} at version {index.version}, as it was at {index.taken}, into {where}")
    if path.is_file():
        typer.echo("to continue: set spec.suspend of the RLJob to false")
        return
    typer.echo(f"to check it: {own_command('audit', str(path))}")
    changes = [part for text in (*overrides, *patches_in(index)) for part in ("--set", text)]
    typer.echo(f"to continue: {own_command('run', 'JOB.yaml', '--output', str(path), '--resume', *changes)}")
