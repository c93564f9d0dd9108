"""Two processes of the operator: one works, the other takes over from one that dies, stands still or is cut off.

Who wrote what is read where it cannot be missed, in the API server's audit log. Jobs are changed all the time.
"""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from itertools import groupby, pairwise
from pathlib import Path

import pytest
from api_proxy import ApiProxy
from e2e.harness.control_plane import ControlPlane
from e2e.harness.errors import ClusterError
from e2e.harness.nats_server import EmbeddedServer
from e2e.harness.ports import hold_port
from operators import Namespace, Operator, manifest
from own_control_plane import own_control_plane
from tests.waiting import until

pytestmark = [pytest.mark.xdist_group("leader-election"), pytest.mark.timeout(600)]

LEASE = "rljob-operator"
JOBS = 4
WRITES = {"create", "update", "patch", "delete"}
control_plane, watched = own_control_plane("leader-election", audit=True)


@contextmanager
def changing(watched: Namespace) -> Iterator[None]:
    """Jobs are changed until the end."""
    names = [f"sums-{number}" for number in range(JOBS)]
    for name in names:
        watched.apply(manifest(name))
    over = threading.Event()

    def change() -> None:
        round_ = 0
        while not over.wait(0.1):
            round_ += 1
            with suppress(ClusterError):  # the API server lets clients wait that ask too often
                watched.patch("rljob", names[round_ % JOBS], {"spec": {"steps": 1000 + round_}})

    thread = threading.Thread(target=change)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def writers(control_plane: ControlPlane) -> list[tuple[str, str, str, str]]:
    """When writes were received and answered, by which pod, and what they were; of Leases none."""
    assert control_plane.audit_log is not None
    found = []
    for line in control_plane.audit_log.read_text().splitlines():
        record = json.loads(line)
        agent, at = record.get("userAgent", ""), record.get("objectRef", {})
        if record["verb"] in WRITES and agent.startswith("rljob-operator/") and at["resource"] != "leases":
            received, answered = record["requestReceivedTimestamp"], record["stageTimestamp"]
            found.append(
                (received, answered, agent.partition("/")[2], f"{record['verb']} {record['requestURI']}")
            )
    return sorted(found)


def test_one_works_at_a_time_whatever_happens_to_it(
    control_plane: ControlPlane, watched: Namespace, nats_server: EmbeddedServer, tmp_path: Path
) -> None:
    def operator(pod: str, kubeconfig: Path) -> Operator:
        port = held.enter_context(hold_port()).getsockname()[1]
        variables = {"RLJOB_LEASE": LEASE, "POD_NAME": pod, "POD_NAMESPACE": watched.name}
        return Operator(
            kubeconfig,
            nats_server.url,
            watched.name,
            tmp_path / f"{pod}.log",
            RLJOB_PROBE_PORT=str(port),
            **variables,
        )

    def leader() -> str:
        found = watched.get("lease", LEASE) or {}
        return found.get("spec", {}).get("holderIdentity", "").partition("_")[0]

    def works(pod: str) -> None:
        """It has the Lease, and has written since."""
        until(lambda: leader() == pod, seconds=240)
        before = len(writers(control_plane))
        until(lambda: any(pod in write for write in writers(control_plane)[before:]), seconds=240)

    with ExitStack() as held, ApiProxy(control_plane.kubeconfig, tmp_path) as proxy, changing(watched):
        first, second = operator("first", proxy.kubeconfig), operator("second", control_plane.kubeconfig)
        with first:
            works("first")
            with second:
                until(lambda: "stands by: first" in second.log.read_text())
                assert "rljob_operator_leader 0.0" in second.metrics()
                assert second.status("healthz") == second.status("readyz") == 200
                until(lambda: first.status("readyz") == 200)  # it listens again once it leads
                assert "rljob_operator_leader 1.0" in first.metrics()

                first.kill()
                works("second")
                first.start()

                os.kill(second.pid, signal.SIGSTOP)
                works("first")
                os.kill(second.pid, signal.SIGCONT)
                until(lambda: not second.runs)
                assert "this process no longer has the Lease" in second.log.read_text()
                second.kill()
                second.start()

                proxy.cut_off()
                works("second")
                proxy.join()
                until(lambda: not first.runs)
                first.kill()
                first.start()

                second.stop()  # which gives the Lease back
                works("first")

    seen = writers(control_plane)
    turns = [[*turn] for _, turn in groupby(seen, key=lambda write: write[2])]
    shown = "\n".join(f"{len(turn)} of {turn[0][2]} {turn[0]} … {turn[-1]}" for turn in turns)
    assert [turn[0][2] for turn in turns] == ["first", "second", "first", "second", "first"], shown
    for earlier, later in pairwise(turns):
        assert max(answered for _, answered, *_ in earlier) <= later[0][0]
