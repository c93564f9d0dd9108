"""The operator as its own process against a real API server, and what a test looks at there."""

from __future__ import annotations

import atexit
import json
import os
import re
import signal
import subprocess
import sys
import urllib.request
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from e2e.harness.errors import ClusterError
from e2e.harness.kubectl import Kubectl
from tests.waiting import until

Object = dict[str, Any]
WRITES = ("POST", "PUT", "PATCH", "DELETE")

# Imports the operator once and forks: a start takes a tenth of a second, however often it is killed.
_LAUNCHER = """
import json, os, signal, sys
from rljob_operator import main

running = set()
for line in iter(sys.stdin.readline, ""):
    order = json.loads(line)
    if "wait" in order:
        running.discard(order["wait"])
        print(os.waitstatus_to_exitcode(os.waitpid(order["wait"], 0)[1]), flush=True)
        continue
    pid = os.fork()
    if pid == 0:
        os.environ.clear()
        os.environ.update(order["environment"])
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        log = os.open(order["log"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.dup2(log, 1)
        os.dup2(log, 2)
        code = 1
        try:
            code = main.main()
        finally:
            os._exit(code)
    running.add(pid)
    print(pid, flush=True)
for pid in running:
    os.kill(pid, signal.SIGKILL)
"""


@cache
def _launcher() -> subprocess.Popen[str]:
    """Ends with this process, and all operators with it."""
    command = [sys.executable, "-c", _LAUNCHER]
    launcher = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    atexit.register(launcher.communicate)
    return launcher


def _order(**order: Any) -> int:
    launcher = _launcher()
    assert launcher.stdin is not None
    assert launcher.stdout is not None
    launcher.stdin.write(json.dumps(order) + "\n")
    launcher.stdin.flush()
    return int(launcher.stdout.readline())


class Operator:
    """The operator in a process of its own, watching one namespace."""

    def __init__(
        self, kubeconfig: Path, nats_url: str, namespace: str, log: Path, **environment: str
    ) -> None:
        self._environment = {
            **os.environ,
            "KUBECONFIG": str(kubeconfig),
            "RLJOB_NATS_URL": nats_url,
            "WATCH_NAMESPACES": namespace,
            "RLJOB_PROBE_HOST": "127.0.0.1",
            "RLJOB_PROBE_PORT": "0",
            "TMPDIR": str(log.parent),  # for certificates, which a killed process leaves there
            **environment,
        }
        self.log = log
        self.pid = 0
        """Of the process that runs; 0 if none does."""
        self._port = 0

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.stop()
        else:
            self.kill()
            sys.stdout.write(self.log.read_text()[-6000:])

    def start(self) -> None:
        self.log.touch()
        begin = self.log.stat().st_size
        self.pid = _order(environment=self._environment, log=str(self.log))

        def port() -> int:
            said = self.log.read_bytes()[begin:].decode()
            found = re.findall(r"probes and metrics on port (\d+)", said)
            assert found or self.runs, said
            return int(found[-1]) if found else 0  # a process that was elected listens again

        def ready() -> bool:
            self._port = port()
            return self.status("readyz") == 200

        until(ready)

    @property
    def runs(self) -> bool:
        """Whether the process that was started has not ended."""
        return self.pid != 0 and "\nState:\tZ" not in Path(f"/proc/{self.pid}/status").read_text()

    def kill(self) -> None:
        """As the machine would."""
        if self.pid:
            os.kill(self.pid, signal.SIGKILL)
            _order(wait=self.pid)
            self.pid = 0

    def stop(self) -> None:
        """In order."""
        if self.pid:
            os.kill(self.pid, signal.SIGTERM)
            assert _order(wait=self.pid) == 0
            self.pid = 0

    def status(self, path: str) -> int:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self._port}/{path}", timeout=30) as answer:
                return int(answer.status)
        except OSError:
            return 0

    def metrics(self) -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{self._port}/metrics", timeout=30) as answer:
            return str(answer.read().decode())

    def requests(self, verbs: tuple[str, ...] = WRITES) -> int:
        """Requests to the API server so far."""
        pattern = r'^rljob_operator_api_requests_total\{.*verb="(\w+)"\} (\S+)$'
        found = re.findall(pattern, self.metrics(), re.MULTILINE)
        return int(sum(float(count) for verb, count in found if verb in verbs))


class Namespace:
    """A namespace through kubectl, as a user sees it."""

    def __init__(self, kubectl: Kubectl) -> None:
        self.kubectl = kubectl
        self.name = kubectl.namespace

    def __call__(self, *arguments: str) -> str:
        """kubectl in this namespace."""
        return self.kubectl(*arguments)

    def apply(self, manifest: Object) -> None:
        self.kubectl("apply", "--server-side", "--filename=-", input_text=json.dumps(manifest))

    def refuses(self, manifest: Object) -> str:
        """What the API server says to a new object; empty if it takes it. Nothing is written."""
        try:
            self.kubectl("create", "--dry-run=server", "--filename=-", input_text=json.dumps(manifest))
        except ClusterError as error:
            return str(error)
        return ""

    def get(self, kind: str, name: str) -> Object | None:
        text = self("get", kind, name, "--output=json", "--ignore-not-found")
        return json.loads(text) if text else None

    def names(self, kind: str, *, selector: str = "") -> list[str]:
        text = self("get", kind, f"--selector={selector}", "--output=name")
        return sorted(line.partition("/")[2] for line in text.split())

    def children(self) -> set[str]:
        """All objects of jobs, as kind/name, but pods, ReplicaSets, and what stays when a job ends."""
        kinds = (
            "configmap,deployment,job,networkpolicy,poddisruptionbudget,rolloutpool,service,serviceaccount"
        )
        text = self("get", kinds, "--selector=rljob.dev/job,!rljob.dev/kept", "--output=name")
        return {re.sub(r"\.[^/]*", "", line) for line in text.split()}

    def patch(self, kind: str, name: str, changes: Object, *options: str) -> None:
        """Merge changes into an object."""
        self("patch", kind, name, "--type=merge", f"--patch={json.dumps(changes)}", *options)

    def pods_run(self, *, selector: str = "") -> None:
        """What kubelets say of all pods there are: they run, and are ready."""
        self.kubelets_say("Running", ready=True, selector=selector)

    def kubelets_say(self, phase: str, *, ready: bool, selector: str = "", **status: object) -> None:
        """What kubelets say of pods that are scheduled. Of one that goes meanwhile, nothing."""
        conditions = [
            {"type": "PodScheduled", "status": "True"},
            *({"type": kind, "status": str(ready)} for kind in ("ContainersReady", "Ready")),
        ]
        said = {"status": {"phase": phase, "conditions": conditions, **status}}
        for name in self.names("pod", selector=selector):
            try:
                self.patch("pod", name, said, "--subresource=status")
            except ClusterError as error:
                if "NotFound" not in str(error):
                    raise

    def events(self, job: str, reason: str = "") -> list[str]:
        """Messages of a job's events, in order."""
        selector = f"--field-selector=involvedObject.kind=RLJob,involvedObject.name={job}"
        items = json.loads(self("get", "events", selector, "--output=json"))["items"]
        items.sort(key=lambda item: (item["firstTimestamp"], int(item["metadata"]["resourceVersion"])))
        return [item["message"] for item in items if reason in {"", item["reason"]}]

    def existing(self, kind: str, name: str) -> Object:
        """The object, once it is there."""
        found: Object = until(lambda: self.get(kind, name))
        return found

    def condition(self, job: str, kind: str) -> Object | None:
        found = self.get("rljob", job) or {}
        conditions = found.get("status", {}).get("conditions", [])
        return next((c for c in conditions if c["type"] == kind), None)

    def is_true(self, job: str, kind: str) -> bool:
        found = self.condition(job, kind)
        return found is not None and found["status"] == "True"


def manifest(name: str = "sums", **spec: Any) -> Object:
    """A small job."""
    return {
        "apiVersion": "rljob.dev/v1alpha1",
        "kind": "RLJob",
        "metadata": {"name": name},
        "spec": {
            "steps": 3,
            "model": {"uri": "pvc://shared/model"},
            "data": {"dataset": "chain_sum"},
            "rollout": {"pools": [{"name": "cpu", "replicas": 2}]},
            "weights": {"uri": "pvc://shared/weights"},
            "trainer": {"checkpoint": {"uri": "pvc://shared/checkpoints"}},
            **spec,
        },
    }


def children_of(name: str, *, attempt: int = 1) -> set[str]:
    """What that job has, as kind/name, while it runs."""
    return {
        f"configmap/{name}-config",
        f"configmap/{name}-rollout-cpu-config",
        f"deployment/{name}-coordinator",
        f"deployment/{name}-reward",
        f"deployment/{name}-rollout-cpu",
        f"job/{name}-trainer-{attempt}",
        f"networkpolicy/{name}-workers",
        f"poddisruptionbudget/{name}-rollout-cpu",
        f"rolloutpool/{name}-rollout-cpu",
        f"serviceaccount/{name}-worker",
    }


def install_crds(kubectl: Kubectl) -> None:
    """As a user does."""
    kubectl("apply", "--server-side", f"--kustomize={Path(__file__).resolve().parents[2] / 'crds'}")
    for name in ("rljobs.rljob.dev", "rolloutpools.rljob.dev", "sites.rljob.dev"):
        kubectl.wait("condition=Established", f"crd/{name}")
