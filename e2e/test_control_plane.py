"""A real API server without nodes, which tests of the operator use: it answers, refuses, and leaves nothing behind."""

from __future__ import annotations

import json
import os
import signal
import ssl
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

import psutil
import pytest
from tests.waiting import until

from e2e.harness.availability import available
from e2e.harness.binaries import CONTROL_PLANE, CONTROLLERS, find
from e2e.harness.control_plane import ControlPlane
from e2e.harness.keeper import lease
from e2e.harness.kubectl import Kubectl

PROGRAMS = {"etcd", "kube-apiserver"}
CHECKOUT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """A control plane that these tests may harm."""
    with available():
        find().require(CONTROL_PLANE)
    with ControlPlane(tmp_path_factory.mktemp("own"), audit=True) as control_plane:
        yield control_plane


def processes(folder: Path) -> dict[str, psutil.Process]:
    """Programs of a control plane that run, by name."""
    return {
        process.info["name"]: process
        for process in psutil.process_iter(["name", "cmdline"])
        if any(str(folder) in word for word in process.info["cmdline"] or ())
        and process.info["name"] not in {"python", "python3", "sh"}
    }


def start_and_wait(program: str, folder: Path) -> subprocess.Popen[str]:
    """Run a program that prints a line once its cluster runs."""
    process = subprocess.Popen(
        [sys.executable, "-c", program, str(folder)], cwd=CHECKOUT, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline().strip() == "ready"
    return process


def test_a_namespace_holds_objects(kubectl: Kubectl, namespace: str) -> None:
    here = kubectl.within(namespace)
    here.apply(
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "letter"}, "data": {"to": "a friend"}}
    )
    assert here.json("get", "configmap", "letter")["data"] == {"to": "a friend"}


def test_controllers_run(kubectl: Kubectl, namespace: str) -> None:
    with available():
        find().require(CONTROLLERS)
    kubectl.within(namespace).wait("create", "serviceaccount/default", seconds=60)


def test_strangers_are_refused(own: ControlPlane) -> None:
    trust = ssl.create_default_context(cafile=str(own.authority.certificate))
    with pytest.raises(HTTPError) as refusal:
        urlopen(f"{own.url}/api/v1/namespaces", context=trust)
    with refusal.value as answer:
        assert answer.code == 403
        assert "system:anonymous" in json.load(answer)["message"]


def test_a_user_may_do_what_is_granted_and_no_more(own: ControlPlane) -> None:
    own.kubectl("create", "role", "reader", "--verb=get", "--resource=configmaps")
    own.kubectl("create", "rolebinding", "reader", "--role=reader", "--user=ann")
    ann = Kubectl(own.binaries["kubectl"], own.user_kubeconfig("ann"))
    until(
        lambda: ann.succeeds("auth", "can-i", "get", "configmaps")
    )  # the API server learns of it in its time
    assert not ann.succeeds("auth", "can-i", "list", "configmaps")
    assert not ann.succeeds("auth", "can-i", "get", "secrets")


def test_requests_are_recorded(own: ControlPlane) -> None:
    own.kubectl("get", "configmaps")
    log = own.audit_log
    assert log is not None

    def recorded() -> bool:
        lines = log.read_text().splitlines(keepends=True)
        records = [
            json.loads(line) for line in lines if line.endswith("\n")
        ]  # the last one may be half written
        return any(
            record["verb"] == "list" and record["objectRef"]["resource"] == "configmaps"
            for record in records
            if "objectRef" in record
        )

    until(recorded)


def test_objects_outlive_a_kill_of_the_api_server(own: ControlPlane) -> None:
    own.kubectl("create", "configmap", "durable")
    before = own.url
    own.restart_api_server(kill=True)
    own.kubectl("get", "configmap", "durable")
    assert own.url == before


def test_users_share_one_control_plane_until_the_last_has_gone(tmp_path: Path) -> None:
    with available():
        find().require(CONTROL_PLANE)
    with lease(tmp_path) as first:
        with lease(tmp_path) as second:
            assert first == second
            before = processes(tmp_path)
            assert before.keys() >= PROGRAMS
        assert processes(tmp_path) == before
    assert not processes(tmp_path)
    assert not first.exists()


@pytest.mark.parametrize(
    "program",
    [
        pytest.param(
            "import sys, pathlib, time\n"
            "from e2e.harness.control_plane import ControlPlane\n"
            "with ControlPlane(pathlib.Path(sys.argv[1])): print('ready', flush=True); time.sleep(600)",
            id="its owner",
        ),
        pytest.param(
            "import sys, pathlib, time\n"
            "from e2e.harness.keeper import lease\n"
            "with lease(pathlib.Path(sys.argv[1])): print('ready', flush=True); time.sleep(600)",
            id="the last who shared it",
        ),
    ],
)
def test_nothing_outlives_a_kill_of(program: str, tmp_path: Path) -> None:
    with available():
        find().require(CONTROL_PLANE)
    with start_and_wait(program, tmp_path) as owner:
        assert processes(tmp_path).keys() >= PROGRAMS
        os.kill(owner.pid, signal.SIGKILL)
        owner.wait()
        until(lambda: not processes(tmp_path), "end", shown=lambda: processes(tmp_path))
