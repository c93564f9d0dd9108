"""Runs whole jobs with the `rljob` command, as a user does, and reads their output folders."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
EXAMPLE = ROOT / "manifests" / "examples" / "chain-sum.yaml"
MODEL = EXAMPLE.parent / "models" / "chain-sum"


class JobFailed(Exception):
    """`rljob run` or `rljob audit` did not exit with 0."""


def run_job(
    manifest: Path, folder: Path, changes: Sequence[str] = (), *, audit: bool = True, source: Path = ROOT
) -> dict[str, Any]:
    """Run a job to its end and audit it; returns its summary.json.

    Args:
        source: the checkout whose sources run it.
    """
    sets = [argument for change in changes for argument in ("--set", change)]
    # The job's processes import the reward functions of this package.
    own = [str(source / name) for name in ("operator", "workers")]
    path = os.pathsep.join(filter(None, [*own, str(ROOT), os.environ.get("PYTHONPATH", "")]))
    program = str(Path(sys.executable).parent / "rljob")
    log = folder.with_suffix(".log")
    with log.open("wb") as output:
        for command in (["run", str(manifest), "--output", str(folder), *sets], ["audit", str(folder)]):
            if command[0] == "audit" and not audit:
                continue
            done = subprocess.run(
                [program, *command],
                env={**os.environ, "PYTHONPATH": path},
                stdout=output,
                stderr=subprocess.STDOUT,
                check=False,
            )
            if done.returncode:
                raise JobFailed(f"rljob {command[0]} failed, see {log}:\n{log.read_text()[-2000:]}")
    summary: dict[str, Any] = json.loads((folder / "summary.json").read_text())
    return summary


def ahead(bound: int) -> dict[str, Any]:
    """The pipeline that runs ahead by so many versions."""
    return {"mode": "BoundedAsync", "maxStaleness": bound}


def steps_of(folder: Path) -> list[dict[str, Any]]:
    """The lines of metrics.jsonl of committed steps."""
    return [line for line in metrics(folder) if line["reward_mean"] is not None]


def metrics(folder: Path) -> list[dict[str, Any]]:
    """The lines of metrics.jsonl."""
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
