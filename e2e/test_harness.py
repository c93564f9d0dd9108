"""The harness itself: which cluster it chooses, and that none of its own is left when its process is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from tests.waiting import until

from e2e.harness.availability import available
from e2e.harness.cluster import requirements
from e2e.harness.errors import NotAvailableError
from e2e.harness.find import Choice, Source, choose
from e2e.harness.kind import KindCluster
from e2e.harness.node import NodeSpec
from e2e.jobs import log_commands

CHECKOUT = Path(__file__).resolve().parents[1]
OWNER = """
import pathlib, sys, time
from e2e.harness.cluster import Cluster
from e2e.harness.node import parse_nodes
with Cluster(pathlib.Path(sys.argv[1]), parse_nodes(["lonely"])) as cluster:
    print(cluster.network.host, flush=True)
    time.sleep(600)
"""


def lacking(*sources: Source) -> dict[Source, Callable[[], str]]:
    return {source: (lambda: "no luck") if source in sources else (lambda: "") for source in Source}


@pytest.mark.parametrize(
    ("environment", "lacks", "source"),
    [
        ({}, [], Source.OWN),
        ({}, [Source.OWN], Source.KIND),
        ({"RLJOB_E2E_CLUSTER": "kind"}, [], Source.KIND),
        ({"KUBECONFIG": "/etc/hostname"}, [], Source.OWN),
    ],
)
def test_the_first_that_is_to_be_had_is_chosen(
    environment: dict[str, str], lacks: list[Source], source: Source
) -> None:
    assert choose(environment, lacks=lacking(*lacks)) == Choice(source)


def test_a_cluster_that_is_named_a_throw_away_is_used(tmp_path: Path) -> None:
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.touch()
    assert choose({"RLJOB_E2E_KUBECONFIG": str(kubeconfig)}) == Choice(Source.GIVEN, kubeconfig)


def test_what_is_lacking_is_said() -> None:
    with pytest.raises(NotAvailableError, match="own: no luck\n  kind: no luck"):
        choose({}, lacks=lacking(Source.OWN, Source.KIND))
    with pytest.raises(NotAvailableError, match="kind: no luck"):
        choose({"RLJOB_E2E_CLUSTER": "kind"}, lacks=lacking(Source.KIND))


def test_kind_is_asked_for_zones_and_deleted(tmp_path: Path) -> None:
    """With a program in kind's place that writes down its arguments."""
    said = tmp_path / "said"
    program = tmp_path / "kind"
    program.write_text(f'#!/bin/sh\necho "$1 $2" >> "{said}"\n')
    program.chmod(0o755)
    nodes = [NodeSpec("east", {"tier": "1"})]
    with KindCluster(tmp_path / "cluster", nodes, images=[Path("base.tar")], program=program):
        settings = (tmp_path / "cluster" / "kind.json").read_text()
        assert '"topology.kubernetes.io/zone": "east"' in settings
    assert said.read_text().splitlines() == ["create cluster", "load image-archive", "delete cluster"]


@pytest.mark.timeout(900)
def test_of_a_pod_that_fails_each_container_s_log_is_shown_and_the_one_before() -> None:
    """Also of `scorer`, which runs reward functions beside the container `reward`."""
    waiting = {"name": "scorer", "restartCount": 3, "state": {"waiting": {"reason": "CrashLoopBackOff"}}}
    status = {"containerStatuses": [{"name": "reward", "restartCount": 0}, waiting]}
    commands = log_commands({"metadata": {"name": "p"}, "status": status})
    assert list(commands) == ["p reward", "p scorer", "p scorer, before it was restarted"]
    assert commands["p scorer, before it was restarted"] == (
        "logs",
        "p",
        "--container=scorer",
        "--tail=20",
        "--previous",
    )
    assert log_commands({"metadata": {"name": "p"}}) == {}


def test_nothing_of_a_cluster_outlives_a_kill_of_its_owner(tmp_path: Path) -> None:
    with available():
        requirements(tmp_path)
    with subprocess.Popen(
        [sys.executable, "-c", OWNER, str(tmp_path)], cwd=CHECKOUT, stdout=subprocess.PIPE, text=True
    ) as owner:
        assert owner.stdout is not None
        address = owner.stdout.readline().strip()
        assert leftovers(tmp_path, owner.pid, address)
        os.kill(owner.pid, signal.SIGKILL)
    until(
        lambda: not leftovers(tmp_path, owner.pid, address),
        "end of all",
        every=0.1,
        shown=lambda: leftovers(tmp_path, owner.pid, address),
    )


def leftovers(folder: Path, owner: int, address: str) -> list[str]:
    """Processes, control groups, links, mounts and files that a cluster may have left."""
    commands = [(process.info["cmdline"] or []) for process in psutil.process_iter(["pid", "cmdline"])]
    found = [" ".join(words) for words in commands if any(str(folder) in word for word in words)]
    groups = Path("/sys/fs/cgroup")
    found += [str(group) for level in ("", "*/") for group in groups.glob(f"{level}rljob-{owner}-*")]
    links = psutil.net_if_addrs().items()
    found += [name for name, addresses in links if any(each.address == address for each in addresses)]
    found += [line for line in Path("/proc/mounts").read_text().splitlines() if str(folder) in line]
    return found + [str(path) for path in (folder / "nodes", folder / "etcd") if path.exists()]
