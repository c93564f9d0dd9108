"""The commands of docs/kubernetes.md, typed one after the other, answer as the page shows.

What differs from what a user does: the job would go on for long, so that no command comes too late for it, until it is
given, while it is suspended, only a few more steps.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from e2e.console import Terminal, console, essence
from e2e.harness.kubectl import Kubectl
from e2e.installation import ROOT
from e2e.jobs import Job

pytestmark = pytest.mark.timeout(1200)

PAGE = (ROOT / "docs" / "kubernetes.md").read_text()
EXAMPLE = "manifests/examples/chain-sum.yaml"


def write_example(folder: Path) -> None:
    """The example, as a job that would go on for long."""
    example = folder / EXAMPLE
    example.parent.mkdir(parents=True)
    text = (ROOT / EXAMPLE).read_text()
    example.write_text(text.replace("steps: 60", "steps: 100000"))
    assert example.read_text() != text


def test_the_page_shows_what_happens(jobs: tuple[Kubectl, Path], tmp_path: Path) -> None:
    kubectl, folder = jobs
    write_example(tmp_path)
    terminal, job = Terminal(kubectl, tmp_path), Job(kubectl, "chain-sum")
    coordinators: list[list[str]] = []
    for command, shown in console(PAGE):
        if '"suspend": false' in command:
            few = f'{{"spec": {{"steps": {job.status()["step"] + 20}}}}}'
            job.kubectl("patch", "rljob", "chain-sum", "--type=merge", f"--patch={few}")
        if '"suspend": true' in command:
            job.until(lambda: job.status()["pools"][0]["readyReplicas"] == 3, seconds=300)
            coordinators.append([pod["metadata"]["uid"] for pod in job.pods("coordinator")])
        if "delete" in command:
            assert "verdict: holds" in kubectl("logs", "chain-sum-audit")
        try:
            said = terminal.type(command)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{job.seen()}") from error
        assert essence(said) == essence(shown), said
        if "Ready" in command:
            coordinators.append([pod["metadata"]["uid"] for pod in job.pods("coordinator")])
    assert coordinators[0] == coordinators[1], "a change of spec.pipeline restarted the coordinator"
    _left(kubectl, folder)


def _left(kubectl: Kubectl, folder: Path) -> None:
    """The job's end leaves what the page says."""
    assert kubectl("get", "rljob,rolloutpool,deployment,job,pods,service", "--output=name").split() == []
    (checkpoints,), (weights,) = (
        list((folder / name).glob("chain-sum-*")) for name in ("checkpoints", "weights")
    )
    assert (checkpoints / "latest" / "config.json").is_file()
    assert weights.name == checkpoints.name
