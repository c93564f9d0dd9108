"""The local cluster with real processes: every test starts some, and looks for them by pid afterwards."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest
from children import running_children
from tests.night import some
from tests.waiting import until_async

from rljob_core.spec import RLJob
from rljob_operator.backoff import Backoff
from rljob_operator.cluster.local.cluster import LocalCluster
from rljob_operator.cluster.port import Event, Manifest, Ref

FOREVER = "import time\nwhile True: time.sleep(60)"
QUICK = Backoff(first=0.05, last=0.4, healthy=60)


def deployment(name: str, script: str, *, replicas: int = 1, **spec: Any) -> Manifest:
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name, "labels": {"rljob.dev/job": "chain-sum", "rljob.dev/role": name}},
        "spec": {"replicas": replicas, "template": template(name, script), **spec},
    }


def gang(name: str, script: str, *, nodes: int = 1, **template_spec: Any) -> Manifest:
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "labels": {"rljob.dev/job": "chain-sum", "rljob.dev/role": "trainer"}},
        "spec": {"completions": nodes, "template": template("trainer", script, **template_spec)},
    }


def template(role: str, script: str, **spec: Any) -> Manifest:
    container = {"name": role, "command": ["python", "-c", textwrap.dedent(script)]}
    return {
        "metadata": {"labels": {"rljob.dev/role": role, "rljob.dev/job": "chain-sum"}},
        "spec": {"containers": [container], **spec},
    }


class Watched:
    """A cluster, with what it says of its pods."""

    def __init__(self, cluster: LocalCluster, job: RLJob, events: list[Event]) -> None:
        self.cluster, self.job, self.events = cluster, job, events

    async def pods(self) -> dict[str, Manifest]:
        return {m["metadata"]["name"]: m for m in await self.cluster.children(self.job) if m["kind"] == "Pod"}

    async def get(self, kind: str) -> Manifest:
        (found,) = [m for m in await self.cluster.children(self.job) if m["kind"] == kind]
        return found

    def pids(self) -> dict[str, int]:
        path = self.cluster.folder / "pids.json"
        return (
            {name: pod["pid"] for name, pod in json.loads(path.read_text()).items()} if path.exists() else {}
        )

    def log(self, pod: str) -> str:
        path = self.cluster.folder / "logs" / f"{pod}.log"
        return path.read_text() if path.exists() else ""


@pytest.fixture
async def local(
    tmp_path: Path, environment: dict[str, str], make_job: Callable[..., RLJob]
) -> AsyncIterator[Watched]:
    before = running_children()
    events: list[Event] = []
    async with LocalCluster(tmp_path / "run", environment, backoff=QUICK, on_event=events.append) as cluster:
        yield Watched(cluster, make_job(), events)
    assert running_children() <= before


async def test_a_process_that_dies_starts_again_with_back_off(local: Watched) -> None:
    await local.cluster.apply(deployment("reward", "import sys; print('hello'); sys.exit(7)"))
    await until_async(lambda: len(local.events) >= 4)
    pod = (await local.pods())["reward-0"]
    (status,) = pod["status"]["containerStatuses"]
    end = status["lastState"]["terminated"]
    assert status["restartCount"] >= 3
    assert (end["exitCode"], end["message"]) == (7, "hello")
    assert [line for line in local.log("reward-0").splitlines() if line.startswith("--- reward-0: start 2")]
    delays = [event.message.split()[-2] for event in local.events]
    assert delays[:4] == ["0.05", "0.1", "0.2", "0.4"]
    log = local.cluster.folder / "logs" / "reward-0.log"
    assert local.events[0].message == f"exit code 7: hello; log: {log}; starts again in 0.05 s"
    assert {event.reason for event in local.events} == {"BackOff"}


@pytest.mark.parametrize("serves", some([True, False], 1))
async def test_a_process_that_has_served_starts_again_soon(
    local: Watched, tmp_path: Path, serves: bool
) -> None:
    """A prompt that ends engines ends several in a row: each was in order before."""
    ready = tmp_path / "ready"
    script = f"""
        import pathlib, sys, time
        if {serves}: pathlib.Path({str(ready)!r}).touch()
        time.sleep(2.0)
        pathlib.Path({str(ready)!r}).unlink(missing_ok=True)  # as a watcher does whose engine has died
        time.sleep(1.5)
        sys.exit(7)
    """
    manifest = deployment("rollout", script)
    container = manifest["spec"]["template"]["spec"]["containers"][0]
    container["env"] = [{"name": "RLJOB_READY_FILE", "value": str(ready)}]
    local.cluster._backoff = Backoff(first=2.0, last=16.0)
    await local.cluster.apply(manifest)
    await until_async(lambda: len(local.events) >= 2)
    delays = [event.message.split()[-2] for event in local.events]
    assert delays[:2] == ["2", "2" if serves else "4"]


async def test_a_killed_process_is_replaced_under_the_same_name(local: Watched) -> None:
    await local.cluster.apply(deployment("rollout", FOREVER))
    first = (await until_async(local.pids))["rollout-0"]
    os.kill(first, signal.SIGKILL)
    second = await until_async(lambda: (pid := local.pids().get("rollout-0")) != first and pid)
    assert psutil.pid_exists(second)
    pod = (await local.pods())["rollout-0"]
    assert pod["status"]["containerStatuses"][0]["lastState"]["terminated"]["exitCode"] == 137


async def test_scaling_starts_and_stops_the_highest_slots_only(local: Watched) -> None:
    await local.cluster.apply(deployment("rollout", FOREVER, replicas=1))
    first = (await until_async(local.pids))["rollout-0"]
    await local.cluster.apply(deployment("rollout", FOREVER, replicas=3))
    three = await until_async(lambda: len(pids := local.pids()) == 3 and pids)
    assert sorted(three) == ["rollout-0", "rollout-1", "rollout-2"]
    await local.cluster.apply(deployment("rollout", FOREVER, replicas=1))
    await until_async(lambda: len(local.pids()) == 1)
    assert local.pids() == {"rollout-0": first}
    assert not psutil.pid_exists(three["rollout-2"])


async def test_another_template_replaces_processes_one_at_a_time(local: Watched, tmp_path: Path) -> None:
    # Each process notes who runs when it starts; a roll never has two of three slots down at once.
    seen = tmp_path / "seen"
    seen.mkdir()
    script = f"""
        import os, pathlib, signal, time
        me = pathlib.Path({str(seen)!r}) / str(os.getpid())
        others = len(list(me.parent.iterdir()))
        signal.signal(signal.SIGTERM, lambda *_: (me.unlink(), os._exit(0)))
        me.write_text("MARK")
        pathlib.Path(os.environ["RLJOB_READY_FILE"]).touch()
        print("others", others, flush=True)
        while True: time.sleep(60)
    """
    old = deployment("rollout", script.replace("MARK", "old"), replicas=3, strategy={"type": "RollingUpdate"})
    new = deployment("rollout", script.replace("MARK", "new"), replicas=3, strategy={"type": "RollingUpdate"})
    for manifest in (old, new):
        container = manifest["spec"]["template"]["spec"]["containers"][0]
        container["env"] = [{"name": "RLJOB_READY_FILE", "value": "/run/rljob/ready"}]
        container["volumeMounts"] = [{"name": "run", "mountPath": "/run/rljob"}]
        manifest["spec"]["template"]["spec"]["volumes"] = [{"name": "run", "emptyDir": {}}]
    await local.cluster.apply(old)
    await until_async(lambda: ready_replicas(local, 3))
    before = local.pids()
    await local.cluster.apply(new)
    await until_async(lambda: marks(seen) == ["new"] * 3)
    assert set(before.values()).isdisjoint(local.pids().values())
    # Each says so after it has made its mark.
    await until_async(lambda: all(local.log(name).rstrip().endswith("others 2") for name in before))


def marks(folder: Path) -> list[str]:
    """What is written in the folder's files; one that goes while this looks is as good as gone."""
    texts = []
    for file in folder.iterdir():
        with suppress(FileNotFoundError):
            texts.append(file.read_text())
    return texts


async def ready_replicas(local: Watched, wanted: int) -> bool:
    return (await local.get("Deployment"))["status"]["readyReplicas"] == wanted


async def test_recreate_never_runs_two_at_once(local: Watched, tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    script = f"""
        import os, signal, time
        lock = os.open({str(lock)!r}, os.O_CREAT | os.O_EXCL)
        def end(*_):
            os.unlink({str(lock)!r}); os._exit(0)
        signal.signal(signal.SIGTERM, end)
        print("VERSION", flush=True)
        while True: time.sleep(60)
    """
    strategy = {"type": "Recreate"}
    await local.cluster.apply(deployment("coordinator", script.replace("VERSION", "one"), strategy=strategy))
    await until_async(lambda: "one" in local.log("coordinator-0"))
    await local.cluster.apply(deployment("coordinator", script.replace("VERSION", "two"), strategy=strategy))
    await until_async(lambda: "two" in local.log("coordinator-0"))
    assert "Error" not in local.log("coordinator-0")


async def test_a_process_is_ready_once_it_says_so_and_its_config_is_there(local: Watched) -> None:
    config = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "chain-sum-config"},
        "data": {"config.json": "{}"},
    }
    await local.cluster.apply(config)
    script = """
        import os, pathlib, sys, time
        assert pathlib.Path(os.environ["RLJOB_CONFIG"]).read_text() == "{}"
        assert os.environ["RLJOB_POD"] == "rollout-0"
        assert sys.argv[1] == "--config=" + os.environ["RLJOB_CONFIG"], sys.argv
        go = pathlib.Path(os.environ["RLJOB_READY_FILE"] + ".go")
        while not go.exists(): time.sleep(0.02)
        pathlib.Path(os.environ["RLJOB_READY_FILE"]).touch()
        time.sleep(60)
    """
    manifest = deployment("rollout", script)
    spec = manifest["spec"]["template"]["spec"]
    spec["containers"][0] |= {
        "args": ["--config=$(RLJOB_CONFIG)"],
        "env": [
            {"name": "RLJOB_CONFIG", "value": "/etc/rljob/config.json"},
            {"name": "RLJOB_READY_FILE", "value": "/run/rljob/ready"},
            {"name": "RLJOB_POD", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
        ],
        "volumeMounts": [
            {"name": "config", "mountPath": "/etc/rljob"},
            {"name": "run", "mountPath": "/run/rljob"},
        ],
    }
    spec["volumes"] = [
        {"name": "config", "configMap": {"name": "chain-sum-config"}},
        {"name": "run", "emptyDir": {}},
    ]
    await local.cluster.apply(manifest)
    await until_async(local.pids)
    assert (await local.get("Deployment"))["status"]["readyReplicas"] == 0
    (local.cluster.folder / "pods" / "rollout-0" / "volumes" / "run" / "ready.go").touch()
    await until_async(lambda: ready_replicas(local, 1))


async def test_an_empty_volume_lives_as_long_as_its_pod(local: Watched) -> None:
    script = """
        import pathlib, sys, time
        kept = pathlib.Path("volume-path/kept")
        print("kept", kept.exists(), flush=True)
        if kept.exists():
            time.sleep(600)
        kept.touch()
        sys.exit(1)
    """
    volume = local.cluster.folder / "pods" / "rollout-0" / "volumes" / "run"
    volume.mkdir(parents=True)
    (volume / "kept").touch()  # of an earlier pod of this name
    manifest = deployment("rollout", script.replace("volume-path", str(volume)))
    spec = manifest["spec"]["template"]["spec"]
    spec["containers"][0]["volumeMounts"] = [{"name": "run", "mountPath": "/run/rljob"}]
    spec["volumes"] = [{"name": "run", "emptyDir": {}}]
    await local.cluster.apply(manifest)
    await until_async(lambda: "kept True" in local.log("rollout-0"))
    assert "kept False" in local.log("rollout-0")


async def test_what_ignores_sigterm_is_killed_with_all_it_started(local: Watched) -> None:
    script = """
        import signal, subprocess, sys, time
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        print("child", child.pid, flush=True)
        while True: time.sleep(60)
    """
    manifest = deployment("reward", script)
    manifest["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] = 1
    await local.cluster.apply(manifest)
    await until_async(lambda: "child" in local.log("reward-0"))
    # A process may have spoken before it is written down.
    family = [(await until_async(local.pids))["reward-0"], int(local.log("reward-0").split()[-1])]
    await local.cluster.delete(Ref("Deployment", "default", "reward"))
    assert "deletionTimestamp" in (await local.get("Deployment"))["metadata"]
    await until_async(lambda: no_children(local))
    await until_async(lambda: not any(running(pid) for pid in family))


async def no_children(local: Watched) -> bool:
    return not await local.cluster.children(local.job)


def running(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:  # it may end while this looks
        return False


def pids_in(folder: Path) -> list[int]:
    """Processes that are written down; one may have spoken before it is."""
    path = folder / "pids.json"
    return [pod["pid"] for pod in json.loads(path.read_text()).values()] if path.exists() else []


async def test_a_gang_completes_when_all_its_pods_do(local: Watched) -> None:
    await local.cluster.apply(
        gang("chain-sum-trainer-1", "import os; print(os.environ['JOB_COMPLETION_INDEX'])", nodes=2)
    )
    await until_async(lambda: condition(local, "Complete"))
    assert [local.log(f"chain-sum-trainer-1-{n}").split()[-1] for n in (0, 1)] == ["0", "1"]


async def condition(local: Watched, kind: str) -> Manifest | None:
    status = (await local.get("Job"))["status"]
    return next((c for c in status["conditions"] if c["type"] == kind), None)


async def test_one_failure_ends_the_whole_gang(local: Watched) -> None:
    script = """
        import os, pathlib, sys, time
        if os.environ["JOB_COMPLETION_INDEX"] == "1":
            pathlib.Path(os.environ["RLJOB_TERMINATION_LOG"]).write_text("no such model")
            sys.exit(2)
        time.sleep(600)
    """
    await local.cluster.apply(gang("chain-sum-trainer-1", script, nodes=3))
    failed = await until_async(lambda: condition(local, "Failed"))
    assert failed["message"] == "pod chain-sum-trainer-1-1 failed"
    pods = await local.pods()
    codes = [
        pods[f"chain-sum-trainer-1-{n}"]["status"]["containerStatuses"][0]["state"]["terminated"]["exitCode"]
        for n in range(3)
    ]
    assert codes == [143, 2, 143]
    end = pods["chain-sum-trainer-1-1"]["status"]["containerStatuses"][0]["state"]["terminated"]
    assert end["message"] == "no such model"
    assert local.pids() == {}


async def test_a_program_that_does_not_exist_is_reported_not_raised(local: Watched) -> None:
    manifest = gang("chain-sum-trainer-1", "")
    manifest["spec"]["template"]["spec"]["containers"][0]["command"] = ["no-such-program"]
    await local.cluster.apply(manifest)
    failed = await until_async(lambda: condition(local, "Failed"))
    assert failed["message"] == "pod chain-sum-trainer-1-0 failed"
    (event,) = local.events
    assert event.message.startswith("exit code 127: ")
    assert "no-such-program" in event.message


async def test_a_secret_comes_from_the_users_environment_or_is_asked_for(
    tmp_path: Path, environment: dict[str, str], make_job: Callable[..., RLJob]
) -> None:
    source = {"secretKeyRef": {"name": "hub", "key": "token"}}
    manifest = gang("chain-sum-trainer-1", "import os; print(os.environ['HUB_TOKEN'])")
    manifest["spec"]["template"]["spec"]["containers"][0]["env"] = [
        {"name": "HUB_TOKEN", "valueFrom": source}
    ]
    for shell, expected in (
        ({"HUB_TOKEN": "s3"}, "s3"),
        ({}, "HUB_TOKEN]: its source exists only in a cluster"),
    ):
        async with LocalCluster(tmp_path / expected[:2], {**environment, **shell}) as cluster:
            watched = Watched(cluster, make_job(), [])
            await cluster.apply(manifest)
            await until_async(partial(condition, watched, "Complete" if shell else "Failed"))
            end = (await watched.pods())["chain-sum-trainer-1-0"]["status"]["containerStatuses"][0]["state"][
                "terminated"
            ]
            assert expected in (watched.log("chain-sum-trainer-1-0") if shell else end["message"])


async def test_shutdown_ends_roles_in_order_and_leaves_nothing(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    order = tmp_path / "order"
    script = f"""
        import os, signal, sys, time
        def end(*_):
            with open({str(order)!r}, "a") as file: file.write("NAME\\n")
            sys.exit(0)
        signal.signal(signal.SIGTERM, end)
        print("up", flush=True)
        while True: time.sleep(60)
    """
    async with LocalCluster(tmp_path / "run", environment) as cluster:
        roles = ["nats", "coordinator", "reward", "rollout"]
        for role in roles:
            await cluster.apply(deployment(role, script.replace("NAME", role)))
        await cluster.apply(gang("trainer-1", script.replace("NAME", "trainer")))
        pods = [f"{role}-0" for role in roles] + ["trainer-1-0"]
        await until_async(
            lambda: (
                all(
                    "up" in log.read_text()
                    for log in [cluster.folder / "logs" / f"{p}.log" for p in pods]
                    if log.exists()
                )
                and len(list((cluster.folder / "logs").glob("*.log"))) == 5
            )
        )
        pids = await until_async(lambda: len(found := pids_in(cluster.folder)) == 5 and found)
        await cluster.shutdown(within=60.0)
        assert order.read_text().split() == ["trainer", "rollout", "reward", "coordinator", "nats"]
        assert [pid for pid in pids if running(pid)] == []
        assert json.loads((cluster.folder / "pids.json").read_text()) == {}


async def test_shutdown_kills_what_does_not_stop_within_its_time(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    stubborn = """
        import signal, time
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        print("up", flush=True)
        while True: time.sleep(60)
    """
    async with LocalCluster(tmp_path / "run", environment) as cluster:
        await cluster.apply(gang("trainer-1", stubborn))
        await cluster.apply(deployment("rollout", stubborn))
        logs = [cluster.folder / "logs" / name for name in ("trainer-1-0.log", "rollout-0.log")]
        await until_async(lambda: all(log.exists() and "up" in log.read_text() for log in logs))
        pids = await until_async(lambda: len(found := pids_in(cluster.folder)) == 2 and found)
        await cluster.shutdown(within=1.5)
        assert [pid for pid in pids if running(pid)] == []


PARENT = """
    import asyncio, os, sys
    from pathlib import Path
    from rljob_operator.cluster.local.cluster import LocalCluster

    async def main(folder):
        async with LocalCluster(Path(folder), dict(os.environ)) as cluster:
            script = Path(folder, "worker.py").read_text()
            template = {"metadata": {"labels": {"rljob.dev/role": "reward"}},
                        "spec": {"containers": [{"name": "reward", "command": ["python", "-c", script]}]}}
            await cluster.apply({"kind": "Deployment", "metadata": {"name": "reward"},
                                 "spec": {"replicas": 2, "template": template}})
            await asyncio.Event().wait()

    asyncio.run(main(sys.argv[1]))
"""
WORKER = """
    import os, signal, subprocess, sys, time
    from rljob_runtime.process.lifeline import die_with_parent
    die_with_parent()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    if len(sys.argv) == 1:
        # One that asks for nothing, as a reward function may start it, and dies of no signal to a group.
        stray = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
        open(f"{FOLDER}/strays/{stray.pid}", "w").close()
        # As torchrun does it: another session, so that no signal to our group reaches it.
        code = open(FOLDER + "/worker.py").read()
        child = subprocess.Popen([sys.executable, "-c", code, "rank"], start_new_session=True)
    else:
        open(f"{FOLDER}/ranks/{os.getpid()}", "w").close()
    while True: time.sleep(60)
"""


async def test_kill_9_of_the_parent_leaves_no_child_and_no_grandchild(tmp_path: Path) -> None:
    (tmp_path / "ranks").mkdir()
    (tmp_path / "strays").mkdir()
    worker = f"FOLDER = {str(tmp_path)!r}\n" + textwrap.dedent(WORKER)
    (tmp_path / "worker.py").write_text(worker)
    command = [sys.executable, "-c", textwrap.dedent(PARENT), str(tmp_path)]
    parent = await asyncio.create_subprocess_exec(*command)
    try:
        await until_async(lambda: len(list((tmp_path / "ranks").iterdir())) == 2)
        children = await until_async(lambda: len(found := pids_in(tmp_path)) == 2 and found)
        ranks = [int(path.name) for path in (tmp_path / "ranks").iterdir()]
        assert all(running(pid) for pid in [*children, *ranks])
        assert {psutil.Process(rank).ppid() for rank in ranks} == set(children)
    finally:
        parent.kill()
        await parent.wait()
    strays = [int(path.name) for path in (tmp_path / "strays").iterdir()]
    assert len(strays) == 2
    await until_async(lambda: not any(running(pid) for pid in [*children, *ranks, *strays]))


async def test_a_killed_role_takes_its_ranks_with_it(local: Watched, tmp_path: Path) -> None:
    (tmp_path / "ranks").mkdir()
    (tmp_path / "strays").mkdir()
    worker = f"FOLDER = {str(tmp_path)!r}\n" + textwrap.dedent(WORKER)
    (tmp_path / "worker.py").write_text(worker)
    await local.cluster.apply(gang("chain-sum-trainer-1", worker))
    (rank,) = await until_async(lambda: [int(path.name) for path in (tmp_path / "ranks").iterdir()])
    assert running(rank)
    os.kill((await until_async(local.pids))["chain-sum-trainer-1-0"], signal.SIGKILL)
    await until_async(lambda: condition(local, "Failed"))
    await until_async(lambda: not running(rank))
    (stray,) = [int(path.name) for path in (tmp_path / "strays").iterdir()]
    await local.cluster.__aexit__(None, None, None)
    await until_async(lambda: not running(stray))  # it was killed, and takes a moment to be gone


def test_an_orphan_that_asks_too_late_ends_itself() -> None:
    code = "from rljob_runtime.process.lifeline import die_with_parent; die_with_parent(); print('alive')"
    # A supervisor from which it does not descend, as after its parent's end; and the one from which it does.
    stranger = subprocess.Popen([sys.executable, "-c", FOREVER])
    try:
        for supervisor, expected in ((stranger.pid, (-signal.SIGKILL, "")), (os.getpid(), (0, "alive\n"))):
            environment = {**os.environ, "RLJOB_DIE_WITH_PARENT": "1", "RLJOB_SUPERVISOR": str(supervisor)}
            done = subprocess.run(
                [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
            )
            assert (done.returncode, done.stdout) == expected
    finally:
        stranger.kill()
        stranger.wait()
