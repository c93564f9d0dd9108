"""`kubectl rljob` without a cluster: what it says of a job, its options, and a port-forward."""

from __future__ import annotations

import json
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, get_args

import pytest
from e2e.harness.ports import hold_port
from evidence_builder import job as trained
from typer.testing import CliRunner

from rljob_cli.audit import audit
from rljob_cli.audit.table import exit_code
from rljob_cli.kubectl.commands import app
from rljob_cli.kubectl.describe import describe
from rljob_cli.kubectl.port_forward import forwarded
from rljob_cli.run_folder.folder import Identity, RunFolder
from rljob_cli.samples.kept import kept_samples
from rljob_core.errors import RLJobError, SpecError
from rljob_operator.children.server_rules import ServicePort, service_of
from rljob_operator.decisions.conditions import HEALTHY, ConditionKind

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
SOON, LONG_AGO = "2026-01-01T11:55:00Z", "2026-01-01T09:00:00Z"


def plugin(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, arguments)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.stderr


def job(**conditions: str) -> dict[str, Any]:
    found = [
        {
            "type": kind,
            "status": said.split()[0],
            "reason": said.split()[1],
            "message": said,
            "lastTransitionTime": SOON,
        }
        for kind, said in conditions.items()
    ]
    status = {"state": "Waiting", "progress": "3/9", "rewardMean": 0.5, "conditions": found}
    return {"metadata": {"name": "sums"}, "spec": {}, "status": status}


def pool(ready: int) -> dict[str, Any]:
    return {
        "metadata": {"name": "sums-spot"},
        "spec": {"pool": "spot", "replicas": 2},
        "status": {"readyReplicas": ready},
    }


def pod(name: str, role: str, *, pool: str = "", **status: Any) -> dict[str, Any]:
    labels = {"rljob.dev/job": "sums", "rljob.dev/role": role} | ({"rljob.dev/pool": pool} if pool else {})
    return {"metadata": {"name": name, "labels": labels}, "spec": {}, "status": status}


def warning(kind: str, name: str, reason: str, at: str = SOON) -> dict[str, Any]:
    about = {"kind": kind, "name": name}
    return {"involvedObject": about, "reason": reason, "message": "it is so", "lastTimestamp": at, "count": 2}


READY = {"conditions": [{"type": "Ready", "status": "True"}], "phase": "Running"}
UNSCHEDULABLE = {
    "phase": "Pending",
    "conditions": [
        {
            "type": "PodScheduled",
            "status": "False",
            "reason": "Unschedulable",
            "message": "no GPU",
            "lastTransitionTime": LONG_AGO,
        }
    ],
}
CRASHED = {
    "phase": "Running",
    "containerStatuses": [
        {
            "name": "trainer",
            "restartCount": 3,
            "state": {"waiting": {"reason": "CrashLoopBackOff"}},
            "lastState": {"terminated": {"exitCode": 1, "message": "Traceback\nValueError: no loss"}},
        }
    ],
}


def test_the_chain_leads_from_the_condition_to_the_cause() -> None:
    lines = list(
        describe(
            job(Ready="False RolloutNotReady", TrainerStarved="False Busy"),
            [pool(1)],
            [
                pod("p-0", "rollout", pool="spot", **READY),
                pod("p-1", "rollout", pool="spot", **UNSCHEDULABLE),
            ],
            [
                warning("Pod", "p-1", "FailedScheduling"),
                warning("Pod", "p-1", "Old", LONG_AGO),
                warning("Pod", "q", "No"),
            ],
            NOW,
        )
    )
    assert lines == [
        "sums: Waiting, step 3/9, reward 0.500",
        "  Ready is False: RolloutNotReady, for 5 min",
        "    False RolloutNotReady",
        "  → pool spot: 1 of 2 engines are ready",
        "    → pod p-1 (rollout): Unschedulable: no GPU",
        "        FailedScheduling (2 times): it is so",
    ]


def test_a_process_that_ends_again_and_again_is_said_with_its_words_and_its_log() -> None:
    lines = list(
        describe(job(Ready="False TrainerNotReady"), [], [pod("t-0", "trainer", **CRASHED)], [], NOW)
    )
    assert "ValueError: no loss" in lines[3]
    assert lines[4] == "      its log: kubectl rljob logs sums --role trainer --previous"


@pytest.mark.parametrize("kind", ["Suspended", "Succeeded"])
def test_of_a_job_that_has_no_pods_for_a_reason_nothing_is_said_to_be_missing(kind: str) -> None:
    found = job(**{kind: "True ByUser", "Ready": "False No"})
    lines = list(describe(found, [pool(0)], [], [warning("RLJob", "sums", "Unschedulable")], NOW))
    assert not [line for line in lines if "pool" in line or "Ready" in line or "Unschedulable" in line]


@pytest.mark.parametrize("kind", get_args(ConditionKind))
def test_each_condition_is_trouble_in_one_of_its_states_alone(kind: ConditionKind) -> None:
    well = {other: f"{holds} AsItShouldBe" for other, holds in HEALTHY.items()}
    assert list(describe(job(**well), [], [], [], NOW))[1:] == ["  nothing is wrong with it"]
    if kind != "Succeeded":
        other = "False" if HEALTHY[kind] else "True"
        lines = list(describe(job(**well | {kind: f"{other} Otherwise"}), [], [], [], NOW))
        assert (
            next(line for line in lines if "Otherwise" in line)
            == f"  {kind} is {other}: Otherwise, for 5 min"
        )


def test_each_condition_that_the_operator_writes_has_its_healthy_state() -> None:
    assert set(HEALTHY) == set(get_args(ConditionKind))
    assert {kind for kind, holds in HEALTHY.items() if holds} == {"Ready", "ModelReady", "GangScheduled"}


def test_a_suspended_job_is_not_said_to_lack_its_model() -> None:
    found = job(Suspended="True ByUser", Ready="False No", ModelReady="False Resolving")
    assert not [line for line in describe(found, [], [], [], NOW) if "ModelReady" in line]


def test_a_job_that_nobody_has_seen_is_said_so() -> None:
    found = {"metadata": {"name": "sums"}, "spec": {}}
    lines = list(describe(found, [], [], [], NOW))
    assert lines[0].startswith("sums: not seen by an operator yet")
    assert "does an operator run" in lines[1]


@pytest.mark.parametrize(
    ("url", "service"),
    [
        ("tls://nats.rljob-system:4222", ServicePort("rljob-system", "nats", 4222)),
        ("nats://nats.rljob-system.svc.cluster.local", ServicePort("rljob-system", "nats", 4222)),
        ("tls://nats:4333", ServicePort("team", "nats", 4333)),
        ("nats://10.0.0.7:4222", None),
        ("tls://nats.example.com:4222", None),
    ],
)
def test_services_are_told_from_servers_elsewhere(url: str, service: ServicePort | None) -> None:
    assert service_of(url, "team") == service


# ---------------------------------------------------------------------------------------------- options


@pytest.fixture
def kubeconfig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Of an API server that does not answer."""
    held = hold_port()
    port = held.getsockname()[1]
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{port}"}}],
        "users": [{"name": "u", "user": {"token": "t"}}],
        "contexts": [{"name": "here", "context": {"cluster": "c", "user": "u", "namespace": "team"}}],
        "current-context": "here",
    }
    file = tmp_path / "kubeconfig"
    file.write_text(json.dumps(document))
    monkeypatch.setenv("KUBECONFIG", f"/does/not/exist:{file}")
    yield file
    held.close()


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("describe", "sums"), 1, "cannot get the RLJob sums: the API server does not answer"),
        (("describe", "sums", "--context", "there"), 2, "no context there (it has: here)"),
        (("describe", "sums", "--kubeconfig", "/nowhere"), 2, "/nowhere is not a file"),
        *(
            ((command, "../../sums"), 2, "cannot be the name of an RLJob")
            for command in ("ui", "top", "describe")
        ),
        (("samples", "sums", "--storage", "claim"), 2, "write CLAIM=FOLDER"),
        (("samples", "sums", "--storage", "claim=/nowhere"), 2, "with a folder that exists"),
    ],
)
@pytest.mark.usefixtures("kubeconfig")
def test_what_is_wrong_with_the_command_is_said(arguments: tuple[str, ...], code: int, words: str) -> None:
    ended, errors = plugin(*arguments)
    assert (ended, errors.count("\n")) == (code, 1)
    assert words in errors


@pytest.mark.parametrize("text", ["x: [", "just words", "", "[1]"])
def test_a_file_that_is_no_kubeconfig_is_said_so(kubeconfig: Path, text: str) -> None:
    kubeconfig.write_text(text)
    ended, errors = plugin("describe", "sums", f"--kubeconfig={kubeconfig}")
    assert ended == 2
    assert errors.startswith("error: --kubeconfig: ")


def test_a_missing_client_is_said_in_words(kubeconfig: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "rljob_cli.kubectl.cluster", raising=False)
    monkeypatch.setitem(sys.modules, "kubernetes", None)
    assert plugin("describe", "sums", f"--kubeconfig={kubeconfig}") == (
        2,
        "error: kubectl rljob needs kubernetes: pip install 'rljob[operator]'\n",
    )


# ---------------------------------------------------------------------------------------------- the port-forward


def echoing() -> socket.socket:
    """A socket that gives back what it gets, in capitals, until it gets no more."""
    near, far = socket.socketpair()

    def serve() -> None:
        while part := far.recv(1 << 16):
            far.sendall(part.upper())
        far.close()

    threading.Thread(target=serve, daemon=True).start()
    return near


def test_each_connection_has_a_way_of_its_own_and_a_broken_one_ends_its_own_alone() -> None:
    ways: list[socket.socket] = []

    def connect() -> socket.socket:
        ways.append(echoing())
        return ways[-1]

    with forwarded(connect) as port:
        connections = []
        for _ in range(2):  # one after the other, so that the ways are in their order
            connections.append(socket.create_connection(("127.0.0.1", port), timeout=30))
            connections[-1].sendall(b"said")
            assert connections[-1].recv(100) == b"SAID"
        first, second = connections
        ways[1].shutdown(socket.SHUT_RDWR)
        assert first.recv(100) == b""
        second.sendall(b"on")
        assert second.recv(100) == b"ON"
        first.close()
        second.close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), timeout=30)


def test_no_right_to_forward_is_known_before_anything_is_served() -> None:
    def refused() -> socket.socket:
        raise RLJobError("you may not")

    with pytest.raises(RLJobError, match="you may not"), forwarded(refused):
        pytest.fail("it is not served")


def test_a_way_that_cannot_be_made_later_ends_its_connection() -> None:
    answers: list[Callable[[], socket.socket]] = [echoing]

    def connect() -> socket.socket:
        if not answers:
            raise RLJobError("the pod is gone")
        return answers.pop()()

    with forwarded(connect) as port, socket.create_connection(("127.0.0.1", port), timeout=30) as client:
        assert client.recv(1) == b""


# ---------------------------------------------------------------------------------------------- what it cannot read


def test_claims_that_need_the_storage_are_named_and_never_said_to_hold() -> None:
    seen = trained().evidence()
    whole = audit(seen)
    assert (exit_code(whole), whole.unchecked) == (0, ())
    part = audit(replace(seen, manifests=(), fed=(), streams_only=True))
    assert part.holds
    assert exit_code(part) == 5
    assert {check.claim for check in part.checks} | set(part.unchecked) == {
        check.claim for check in whole.checks
    }
    assert "none was trained twice, by the trainer's own log" in part.unchecked


def test_samples_on_a_claim_are_said_to_be_there(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.write(Identity("sums", "team", "u", "", "nats://x", {"spec": {}}, mirrors=True))
    config = {
        "namespace": "team",
        "job": "sums",
        "uid": "u",
        "spec": {
            "steps": 1,
            "model": {"uri": "pvc://c/model"},
            "data": {"dataset": "chain_sum"},
            "rollout": {"pools": [{"name": "cpu"}]},
        },
        "weights_uri": "/mnt/claims/c/w",
        "checkpoint_uri": "/mnt/claims/c/x",
        "trainer_log_uri": "/mnt/claims/c/l",
        "samples_uri": "/mnt/claims/c/s",
    }
    folder.workers_config.write_text(json.dumps(config))
    with pytest.raises(SpecError, match="--storage CLAIM=FOLDER"):
        kept_samples(tmp_path)
