"""The phases of the benchmark: each acts on the cluster that the phase before left, and returns its figures."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any

from bench.control_plane import jobs
from bench.control_plane.audit import Request
from bench.control_plane.measure import Measurements, Stretch, percentile, summary
from bench.control_plane.process import OperatorProcess
from bench.control_plane.world import World
from rljob_operator.cluster.kube.errors import ApiError
from rljob_operator.cluster.port import Manifest, Ref

_STUCK_SECONDS = 600.0
_SAY_SECONDS = 10.0
_HEAVY = ("torch", "vllm", "transformers", "deepspeed")


class Stuck(Exception):
    """The jobs make no progress, or the operator has ended."""


# ---------------------------------------------------------------------------------------------- start


async def start(world: World, *, rounds: int = 3) -> Measurements:
    """Heavy modules that the import loads; seconds from the start of a process to its first reconcile."""
    code = f"import sys, rljob_operator.main; print([m for m in {_HEAVY!r} if m in sys.modules])"
    began = time.perf_counter()
    command = [sys.executable, "-c", code]
    done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, check=True)
    imported = time.perf_counter() - began
    firsts = []
    for number in range(rounds):
        await world.api.create(jobs.manifest(number))
        world.audit.read()
        operator = OperatorProcess(world)
        with operator:
            # Of a new job's reconcile the first thing is a write.
            await until_at_rest(world, operator, [jobs.name(number)], say=lambda _: None)
        writes = [r for r in world.audit.read() if r.operator and r.write]
        firsts.append(min(request.began for request in writes) - operator.started)
    return {
        "import_seconds": round(imported, 2),
        "heavy_modules": [name for name in _HEAVY if f"'{name}'" in done.stdout],
        "first_reconcile_seconds": [round(seconds, 2) for seconds in firsts],
    }


# ---------------------------------------------------------------------------------------------- small and scale


async def create(
    world: World, operator: OperatorProcess, numbers: Sequence[int], say: Callable[[str], None]
) -> Measurements:
    """Create many jobs by one `kubectl create`, and wait until all are at rest."""
    manifests = [jobs.manifest(number) for number in numbers]
    file = world.folder / "jobs.json"
    file.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": manifests}))
    stretch = Stretch(world, operator)
    creating = asyncio.create_task(
        asyncio.to_thread(world.kubectl, "create", f"--filename={file}", "--output=name", timeout=7200.0)
    )
    creating.add_done_callback(lambda _: created.append(time.time()))
    created: list[float] = []
    done = await until_at_rest(world, operator, [m["metadata"]["name"] for m in manifests], say=say)
    await creating
    figures, requests = stretch.end()
    last = max(jobs.turned(job, "Reconciling") for job in done)
    lives = _lives(requests)
    to_ready = [jobs.turned(job, "Ready") - lives[job["metadata"]["name"]].created for job in done]
    return {
        **figures,
        "jobs": len(done),
        "pods": len(done) * jobs.PODS,
        "seconds": round(last - stretch.began, 2),
        "kubectl_create_seconds": round(created[0] - stretch.began, 2),
        "jobs_per_second": round(len(done) / (last - stretch.began), 2),
        "writes_per_job": round(figures["writes"] / len(done), 1),
        "reconciles_per_job": round(figures["reconciles"] / len(done), 1),
        "children_per_job": sorted({len(life.children) for life in lives.values()}),
        "create_to_children": summary([life.applied - life.created for life in lives.values()]),
        "create_to_ready": summary(to_ready),
    }


class _Life:
    """When a job and each of its children were created."""

    def __init__(self) -> None:
        self.created = 0.0
        self.children: dict[tuple[str, str], float] = {}

    @property
    def applied(self) -> float:
        return max(self.children.values())


def _lives(requests: Iterable[Request]) -> dict[str, _Life]:
    lives: dict[str, _Life] = defaultdict(_Life)
    for request in requests:
        if request.status != 201 or request.resource == "events":
            continue
        life = lives[jobs.job_of(request.name)]
        if not request.operator:
            life.created = request.began
        elif not request.subresource:
            life.children[request.resource, request.name] = request.ended
    return lives


# ---------------------------------------------------------------------------------------------- change


async def change(
    world: World,
    operator: OperatorProcess,
    old: Sequence[int],
    new: Sequence[int],
    *,
    rate: float,
    every: float,
    say: Callable[[str], None],
) -> Measurements:
    """Change one old job after another, while new ones are created at `rate` a second."""
    stretch = Stretch(world, operator)
    tasks: list[asyncio.Task[Any]] = []

    async def spaced(numbers: Iterable[int], seconds: float, act: Callable[[int], Any]) -> None:
        at = time.monotonic()
        for number in numbers:
            tasks.append(asyncio.create_task(act(number)))
            at += seconds
            await asyncio.sleep(max(at - time.monotonic(), 0.0))

    def more_rewards(number: int) -> Any:
        ref = Ref("RLJob", jobs.NAMESPACE, jobs.name(number))
        return world.api.patch(ref, {"spec": {"reward": {"replicas": 2}}})

    changed = list(old)[: int(len(new) / rate / every)]
    say(f"creating {len(new)} jobs, {rate:.1f} a second, and changing {len(changed)} others")
    await asyncio.gather(
        spaced(new, 1.0 / rate, lambda number: world.api.create(jobs.manifest(number))),
        spaced(changed, every, more_rewards),
    )
    await asyncio.gather(*tasks)
    figures, requests = stretch.end()
    await until_at_rest(world, operator, [jobs.name(number) for number in (*changed, *new)], say=say)
    requests += world.audit.read()
    times = [_answered(requests, jobs.name(number)) for number in changed]
    lives = _lives(requests)
    children = [lives[jobs.name(number)] for number in new]
    return {
        **figures,
        "rate": round(rate, 2),
        "created_per_second": round(len(new) / figures["seconds"], 2),
        "change_to_reconciled": summary(times),
        "create_to_children": summary([life.applied - life.created for life in children]),
    }


def _answered(requests: Iterable[Request], job: str) -> float:
    """Seconds from the change of a job's reward replicas until the operator changed its Deployment."""
    asked = next(r for r in requests if not r.operator and r.verb == "patch" and r.name == job)
    return min(
        request.ended - asked.began
        for request in requests
        if request.operator
        and (request.resource, request.name) == ("deployments", f"{job}-reward")
        and request.began >= asked.began
    )


# ---------------------------------------------------------------------------------------------- idle and restart


async def idle(
    world: World, operator: OperatorProcess, *, seconds: float, say: Callable[[str], None]
) -> Measurements:
    """Requests, CPU and memory while nothing changes."""
    await _quiet(world)
    say(f"idle for {seconds:.0f} s")
    stretch = Stretch(world, operator)
    await asyncio.sleep(seconds)
    figures, _ = stretch.end()
    minutes = figures["seconds"] / 60
    return {
        **figures,
        "requests_per_minute": round(figures["requests"] / minutes, 1),
        "writes_per_minute": round(figures["writes"] / minutes, 1),
        "operator_cpu_percent": round(100 * figures["operator_cpu_seconds"] / figures["seconds"], 2),
    }


async def _quiet(world: World, *, seconds: float = 15.0) -> None:
    """Wait until the operator has written nothing for a while."""
    last = time.monotonic()
    while time.monotonic() - last < seconds:
        await asyncio.sleep(1.0)
        if any(request.operator and request.write for request in world.audit.read()):
            last = time.monotonic()


async def restart(world: World, operator: OperatorProcess, count: int) -> Measurements:
    """Restart the operator beside `count` jobs that need no change."""
    operator.stop()
    world.audit.read()
    began = time.time()
    operator.start()
    ready = time.time() - began
    while operator.reconciles() < count:
        _alive(operator, time.time() - began)
        await asyncio.sleep(0.2)
    seconds = time.time() - began
    await asyncio.sleep(2.0)
    requests = [request for request in world.audit.read() if request.operator]
    return {
        "jobs": count,
        "ready_seconds": round(ready, 2),
        "all_reconciled_seconds": round(seconds, 2),
        "operator_cpu_seconds": round(operator.cpu_seconds(), 2),
        "operator_megabytes_highest": round(operator.megabytes()[1]),
        "requests": len(requests),
        "writes": sum(request.write for request in requests),
    }


# ---------------------------------------------------------------------------------------------- waiting


async def until_at_rest(
    world: World, operator: OperatorProcess, wanted: Sequence[str], *, say: Callable[[str], None]
) -> list[Manifest]:
    """Wait until all jobs of these names are at rest; returns them."""
    names = set(wanted)
    began = said = moved = time.monotonic()
    listed: list[Manifest] = []
    states: dict[str, str] = {}
    while True:
        with suppress(ApiError):  # a loaded API server may ask to come again
            listed = await world.api.list("RLJob", jobs.NAMESPACE, "")
        done = [job for job in listed if job["metadata"]["name"] in names and jobs.at_rest(job)]
        now = time.monotonic()
        if len(done) == len(names):
            return done
        if (newest := {j["metadata"]["name"]: j["metadata"]["resourceVersion"] for j in listed}) != states:
            states, moved = newest, now
        _alive(operator, now - moved)
        if now - said >= _SAY_SECONDS:
            said = now
            say(f"{len(done):,} of {len(names):,} jobs are at rest after {now - began:.0f} s")
        # A list costs the API server time for every job, and the measured times are read from their statuses.
        await asyncio.sleep(percentile([0.3, len(listed) / 50, 10.0], 0.5))


def _alive(operator: OperatorProcess, silent: float) -> None:
    if not operator.running:
        raise Stuck(f"the operator ended:\n{operator.last_words()}")
    if silent > _STUCK_SECONDS:
        raise Stuck(f"nothing has moved for {silent:.0f} s:\n{operator.last_words()}")
