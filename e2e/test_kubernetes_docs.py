"""The commands of docs/kubernetes.md, typed one after the other, answer as the page shows.

What differs from what a user does: the job would go on for long, so that no command comes too late for it, until it is
given, while it is suspended, only a few more steps.
"""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from e2e.harness.kubectl import Kubectl
from e2e.installation import ROOT
from e2e.jobs import Job

pytestmark = pytest.mark.timeout(1200)

PAGE = (ROOT / "docs" / "kubernetes.md").read_text()
EXAMPLE = "manifests/examples/chain-sum.yaml"


def console() -> list[tuple[str, str]]:
    """Commands of the page with the output that it shows."""
    (block,) = re.findall(r"```console\n(.*?)```", PAGE, re.DOTALL)
    examples = re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]
    return [(example.partition("\n")[0], example.partition("\n")[2]) for example in examples]


def essence(output: str) -> list[str]:
    """Of tables the head and the first column; without what Kubernetes draws by chance, or says of the namespace."""
    lines = [" ".join(line.split()) for line in output.splitlines()]
    if lines and lines[0].startswith("NAME "):
        lines[1:] = [line.split()[0] for line in lines[1:]]
    lines = [re.sub(r"(-[0-9a-f]{6,10})?-[bcdfghjklmnpqrstvwxz2-9]{5}$", "-?", line) for line in lines]
    return [re.sub(r" from \S+ namespace$", "", line) for line in lines]


class Terminal:
    """A shell where `kubectl` is that of a namespace, in a folder with the example."""

    def __init__(self, kubectl: Kubectl, folder: Path) -> None:
        program = folder / "bin" / "kubectl"
        program.parent.mkdir()
        program.write_text(
            "#!/bin/sh\n"
            f"exec '{kubectl.program}' --kubeconfig='{kubectl.kubeconfig}' --namespace='{kubectl.namespace}' \"$@\"\n"
        )
        program.chmod(0o755)
        example = folder / EXAMPLE
        example.parent.mkdir(parents=True)
        text = (ROOT / EXAMPLE).read_text()
        example.write_text(text.replace("steps: 60", "steps: 100000"))
        assert example.read_text() != text
        self._folder = folder
        self._environment = {**os.environ, "PATH": f"{program.parent}:{os.environ['PATH']}"}

    def type(self, command: str) -> str:
        done = subprocess.run(
            ["bash", "-o", "pipefail", "-c", command],
            cwd=self._folder,
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=900,
            check=False,
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
        return done.stdout


@pytest.mark.drawn("whole jobs as pods", 1)
def test_the_page_shows_what_happens(jobs: tuple[Kubectl, Path], tmp_path: Path) -> None:
    kubectl, folder = jobs
    terminal, job = Terminal(kubectl, tmp_path), Job(kubectl, "chain-sum")
    coordinators: list[list[str]] = []
    for command, shown in console():
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
