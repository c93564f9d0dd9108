"""A repository of jobs, `manifests/gitops`, as a person or a tool of GitOps applies it with kubectl."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

from e2e.harness.errors import ClusterError
from installation import MANIFESTS
from operators import Namespace
from tests.waiting import until

MANAGER = "--field-manager=gitops"
ENVIRONMENTS = ("staging", "production")


def drift(diff: Callable[[], str]) -> str:
    """What `kubectl diff` shows of a repository: empty if nothing has drifted.

    It reads an object, has the API server try the apply, and compares. Where the operator writes the job's status in
    between, what it shows is two states of the living job, with different resource versions: then it is asked again.
    """
    shown = ""

    def of_one_state() -> bool:
        nonlocal shown
        shown = diff()
        return not re.search(r"^[-+]\s+resourceVersion:", shown, re.MULTILINE)

    until(of_one_state)
    return shown


class JobRepository:
    """A copy of the layout whose environments are all in one namespace, and the commits that a test makes to it."""

    def __init__(self, watched: Namespace, folder: Path) -> None:
        self._watched = watched
        self.folder = folder
        for name in ("base", *ENVIRONMENTS):
            shutil.copytree(MANIFESTS / "gitops" / name, folder / name)
        for name in ENVIRONMENTS:
            self.commit(f"{name}/kustomization.yaml", f"rljob-{name}", watched.name)

    def commit(self, file: str, old: str, new: str) -> None:
        """Write something else instead of the words that are in a file exactly once."""
        path = self.folder / file
        text = path.read_text()
        assert text.count(old) == 1, f"{old!r} in {file}"
        path.write_text(text.replace(old, new))

    def apply(self, environment: str, *options: str) -> str:
        """Server-side apply that overrules nobody: a conflict with another owner of a field is an error."""
        return self._watched.kubectl("apply", "--server-side", MANAGER, *options, *self._place(environment))

    def refused(self, environment: str, *options: str) -> str:
        """What the API server says to `apply`; empty if it takes everything."""
        try:
            self.apply(environment, *options)
        except ClusterError as error:
            return str(error)
        return ""

    def apply_and_prune(self, environment: str) -> str:
        """Apply, and delete what an earlier call has applied and the repository has no more."""
        kubectl = self._watched.kubectl
        done = subprocess.run(
            [
                kubectl.program, f"--kubeconfig={kubectl.kubeconfig}", f"--namespace={self._watched.name}",
                "apply", "--server-side", MANAGER, "--prune", "--applyset=configmaps/jobs", *self._place(environment),
            ],
            env={**os.environ, "KUBECTL_APPLYSET": "true"},
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout

    def drift(self, environment: str) -> str:
        """What the next `apply` would change; empty if nothing."""

        def diff() -> str:
            try:
                return self._watched.kubectl("diff", "--server-side", MANAGER, *self._place(environment))
            except ClusterError as error:
                return str(error)

        return drift(diff)

    def _place(self, environment: str) -> tuple[str, str]:
        return "--kustomize", str(self.folder / environment)
