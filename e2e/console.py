"""The console blocks of pages: commands that are typed, with what the page shows of their output."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

from e2e.harness.kubectl import Kubectl


def console(page: str) -> list[tuple[str, str]]:
    """Commands of the only block of a page's text that shows some, with the output that it shows."""
    (block,) = re.findall(r"```console\n(.*?)```", page, re.DOTALL)
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
    """A shell in a folder, where `kubectl` is that of a namespace."""

    def __init__(self, kubectl: Kubectl, folder: Path) -> None:
        program = folder / "bin" / "kubectl"
        program.parent.mkdir()
        program.write_text(
            "#!/bin/sh\n"
            f"exec '{kubectl.program}' --kubeconfig='{kubectl.kubeconfig}' --namespace='{kubectl.namespace}' \"$@\"\n"
        )
        program.chmod(0o755)
        self._folder = folder
        self._environment = {**os.environ, "PATH": f"{program.parent}:{os.environ['PATH']}"}

    def type(self, command: str) -> str:
        """Run a command; its output.

        Raises:
            AssertionError: it fails.
        """
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
