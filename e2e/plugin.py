"""`kubectl rljob` as a person runs it: kubectl finds the plug-in on the PATH, and has the person's own kubeconfig."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from e2e.harness.kubectl import Kubectl
from e2e.installation import SYSTEM

_ROOT = Path(__file__).parents[1]
_SECONDS = 300.0


class Plugin:
    """The plug-in with one kubeconfig, in its namespace.

    Args:
        kubectl: with which kubectl and kubeconfig it is run.
        folder: for the program that kubectl finds on the PATH.
    """

    def __init__(self, kubectl: Kubectl, folder: Path) -> None:
        self._kubectl = kubectl
        for name, entry in {"kubectl-rljob": "plugin", "kubectl_complete-rljob": "completion"}.items():
            program = folder / name  # as installed scripts are, of this checkout
            program.write_text(
                f"#!{sys.executable}\nfrom rljob_cli.main import kubectl_{entry}\nkubectl_{entry}()\n"
            )
            program.chmod(0o755)
        self._environment = {
            **os.environ,
            "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": os.pathsep.join(str(_ROOT / part) for part in ("workers", "operator")),
            "KUBECONFIG": str(kubectl.kubeconfig),
            "COLUMNS": "200",
        }

    def start(self, *arguments: str, program: str = "rljob") -> subprocess.Popen[str]:
        """A command that runs."""
        return subprocess.Popen(
            [str(self._kubectl.program), program, *arguments, f"--namespace={self._kubectl.namespace}"],
            env=self._environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def __call__(self, *arguments: str, code: int = 0) -> str:
        """What a command prints that ends with this exit code, on both outputs."""
        process = self.start(*arguments)
        output, errors = process.communicate(timeout=_SECONDS)
        assert process.returncode == code, f"{arguments}: {process.returncode}\n{output}{errors}"
        return output + errors

    def completes(self, *arguments: str) -> list[str]:
        """What kubectl offers for the last argument, as it asks on a shell's behalf."""
        command = [str(self._kubectl.program), "__complete", "rljob", *arguments]
        done = subprocess.run(
            command, env=self._environment, capture_output=True, text=True, check=True, timeout=_SECONDS
        )
        return [line.partition("\t")[0] for line in done.stdout.splitlines() if not line.startswith(":")]

    @contextmanager
    def page(self, *arguments: str) -> Iterator[Page]:
        """The page that `ui` serves; at the end it is interrupted, and has to end in order."""
        process = self.start("ui", *arguments)
        assert process.stdout is not None
        address = process.stdout.readline().strip()
        assert address.startswith("http://127.0.0.1:"), process.communicate(timeout=_SECONDS)
        yield Page(address)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=_SECONDS)
        assert process.returncode in {0, 130}


class Page:
    """Documents of the page's one run."""

    def __init__(self, address: str) -> None:
        parts = urlsplit(address)
        self._base = f"http://{parts.netloc}/api/runs/0"
        self._token = parse_qs(parts.query)["token"][0]

    def __call__(self, name: str = "") -> dict[str, Any]:
        request = urllib.request.Request(
            f"{self._base}/{name}" if name else self._base, headers={"Authorization": f"Bearer {self._token}"}
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            found: dict[str, Any] = json.load(answer)
        return found


def person(kubectl: Kubectl, folder: Path) -> Kubectl:
    """kubectl of a person who may view jobs in the namespace and forward ports to the NATS server, and nothing else."""
    account = f"{kubectl.namespace}:looker"
    kubectl("create", "serviceaccount", "looker")
    kubectl("create", "rolebinding", "looker", "--clusterrole=rljob-view", f"--serviceaccount={account}")
    binding = ("rolebinding", f"looker-{kubectl.namespace}", "--role=rljob-nats-port-forward")
    kubectl.within(SYSTEM)("create", *binding, f"--serviceaccount={account}")
    config = json.loads(kubectl("config", "view", "--raw", "--output=json"))
    token = kubectl("create", "token", "looker", "--duration=2h").strip()
    context = config["contexts"][0]
    context["context"] |= {"user": "looker", "namespace": kubectl.namespace}
    config |= {"users": [{"name": "looker", "user": {"token": token}}], "contexts": [context]}
    config["current-context"] = context["name"]
    file = folder / "looker.kubeconfig"
    file.touch(mode=0o600)
    file.write_text(json.dumps(config))
    return Kubectl(kubectl.program, file, namespace=kubectl.namespace)


def first_lines(process: subprocess.Popen[str], number: int) -> list[str]:
    """So many lines of a command that runs, which is then interrupted and ends as after Ctrl-C."""
    assert process.stdout is not None
    found = [process.stdout.readline() for _ in range(number)]
    time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=_SECONDS)
    assert process.returncode == 130, errors
    return found
