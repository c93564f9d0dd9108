"""`kubectl` against one cluster, for the harness and for tests: what a user would type."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from e2e.harness.errors import ClusterError

KubernetesObject = Mapping[str, Any]


class Kubectl:
    """Calls of the program, with the kubeconfig of one cluster and, if given, in one namespace.

    `kubectl("get", "pods")` returns what it prints; it raises `ClusterError` with its message where it fails.
    """

    def __init__(self, program: Path, kubeconfig: Path, *, namespace: str = "") -> None:
        self.program = program
        self.kubeconfig = kubeconfig
        self.namespace = namespace

    def within(self, namespace: str) -> Kubectl:
        return Kubectl(self.program, self.kubeconfig, namespace=namespace)

    def __call__(self, *arguments: str, input_text: str | None = None, timeout: float = 400.0) -> str:
        done = self._run(arguments, input_text, timeout)
        if done.returncode != 0:
            raise ClusterError(f"kubectl {' '.join(arguments)}: {done.stderr.strip() or done.stdout.strip()}")
        return done.stdout

    def succeeds(self, *arguments: str, timeout: float = 60.0) -> bool:
        """Whether the call exits with 0; a question, such as `auth can-i`."""
        try:
            return self._run(arguments, None, timeout).returncode == 0
        except subprocess.TimeoutExpired:
            return False

    def json(self, *arguments: str) -> Any:
        """`get` and the like, parsed."""
        return json.loads(self(*arguments, "--output=json"))

    def apply(self, manifests: KubernetesObject | Iterable[KubernetesObject]) -> None:
        """Server-side apply; conflicts with another owner of a field are errors."""
        items = [manifests] if isinstance(manifests, Mapping) else list(manifests)
        document = json.dumps({"apiVersion": "v1", "kind": "List", "items": items})
        self("apply", "--server-side", "--field-manager=e2e", "--filename=-", input_text=document)

    def wait(self, condition: str, *what: str, seconds: float = 120.0) -> None:
        """`wait("condition=Ready", "pod/a", "pod/b")`; what is waited for must exist or come to."""
        deadline = time.monotonic() + seconds
        while True:
            try:
                self("wait", f"--for={condition}", f"--timeout={seconds:.0f}s", *what, timeout=seconds + 10)
            except ClusterError as error:
                # kubectl gives up on an object whose status nobody has written yet.
                if "accessor error" not in str(error) or time.monotonic() > deadline:
                    raise
                time.sleep(0.1)
            else:
                return

    def _run(
        self, arguments: Iterable[str], input_text: str | None, timeout: float
    ) -> subprocess.CompletedProcess[str]:
        command = [str(self.program), f"--kubeconfig={self.kubeconfig}"]
        if self.namespace:
            command.append(f"--namespace={self.namespace}")
        return subprocess.run(
            [*command, *arguments],
            input=input_text,
            stdin=subprocess.DEVNULL if input_text is None else None,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
