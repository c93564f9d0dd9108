"""Time from `kill -9` of each role until the next useful work: real processes, a real model, a real nats-server.

| killed | the time ends with | read from |
|---|---|---|
| an engine: others | (the longest gap between payloads of *other* engines, until the successor stores one) | stream |
| an engine: itself | the successor's first payload | trajectory stream |
| the coordinator | the successor's first records after its claim of the epoch | times in the ledger |
| the trainer | the first micro-batch that the next attempt trains on; includes loading the model | trainer's log |
| nats-server | the first records in the ledger, counted from when the server is ready again | server's log, ledger |

Each run kills each role twice, so that the back-off of repeated deaths (0.5 s, 1 s, then 2, 4, … 30 s) does not matter.
"""

from __future__ import annotations

import os
import re
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

TESTS = Path(__file__).parent.parent / "tests"
# Runs that are watched and killed are the fault tests' own.
sys.path += [str(TESTS / name) for name in ("faults", "runs", "runtime") if str(TESTS / name) not in sys.path]

from faulty_run import FaultyRun  # noqa: E402
from kill_locations import Written, read_ledger  # noqa: E402
from observed_messages import Sighting  # noqa: E402
from watcher import names_of  # noqa: E402

from rljob_core.records import EpochClaimed, FedMicroBatch  # noqa: E402
from rljob_runtime.messaging.summaries import PayloadSummary  # noqa: E402

PER_RUN = 2
"""Kills of each role in one run."""
SIZES = {"full": 20, "quick": 4, "smoke": 1}
"""Kills of each role in all runs together."""
LIMITS = {"rollout: others": 3.0, "coordinator": 5.0, "trainer": 10.0, "nats-server": 5.0}
CALM_SECONDS = 2.0
_READY = re.compile(r"^\[\d+\] (\d{4}/\d\d/\d\d \d\d:\d\d:\d\d\.\d+) \[INF\] Server is ready", re.MULTILINE)

Seconds = dict[str, list[float]]


def after_coordinator(killed: int, ledger: Sequence[Written]) -> float:
    """Seconds from the kill (nanoseconds since 1970) to the first records of a writer that claimed after it."""
    claimed: set[str] = set()
    for message in (m for m in ledger if m.at > killed):
        if any(isinstance(record, EpochClaimed) for record in message.records):
            claimed.add(message.writer.instance)
        elif message.writer.instance in claimed:
            return (message.at - killed) / 1e9
    raise LookupError("no coordinator took over")


def after_server(killed: int, log: str, ledger: Sequence[Written]) -> float:
    """Seconds from the server's being ready again, after the kill, to the first message that the ledger took."""
    ready = min(at for at in _ready_times(log) if at > killed)
    return (min(m.at for m in ledger if m.at > ready) - ready) / 1e9


def _ready_times(log: str) -> list[int]:
    found = []
    for text in _READY.findall(log):
        time = datetime.strptime(text, "%Y/%m/%d %H:%M:%S.%f").astimezone()
        found.append(int(time.timestamp()) * 1_000_000_000 + time.microsecond * 1000)
    return found


def longest_gap(start: int, times: Sequence[int], end: int) -> float:
    """The longest time (seconds) between moments (nanoseconds), the start and the end among them."""
    moments = [start, *sorted(t for t in times if start < t < end), end]
    return max(later - earlier for earlier, later in pairwise(moments)) / 1e9


class Payloads:
    """Records when each engine stored a payload, in nanoseconds since 1970."""

    def __init__(self, run: FaultyRun) -> None:
        self.stored: list[tuple[int, str]] = []
        run.seen.wait_for(self._take)

    def _take(self, said: Sighting) -> bool:
        if isinstance(said, PayloadSummary):
            self.stored.append((time.time_ns(), said.engine))
        return False


def kill_each(run: FaultyRun, seconds: Seconds, *, times: int) -> list[tuple[str, int]]:
    """Kill every role that many times; returns (role, time) of kills whose recovery the ledger tells later."""
    payloads = Payloads(run)
    left = []
    for _ in range(times):
        for role in ("rollout", "coordinator", "trainer", "nats-server"):
            time.sleep(CALM_SECONDS)
            name, pid = run.victim(role)
            attempt = int(name.split("-")[2]) if role == "trainer" else 0
            fed = run.seen.wait_for(
                lambda said, attempt=attempt: isinstance(said, FedMicroBatch) and said.attempt > attempt
            )
            os.kill(pid, signal.SIGKILL)
            killed = time.time_ns()
            run.say(f"step {run.seen.seen.committed}: killed {name}")
            match role:
                case "trainer":
                    run.until("the next attempt's first micro-batch", fed.done)
                    seconds["trainer"].append((time.time_ns() - killed) / 1e9)
                case "rollout":
                    _rollout(run, payloads, name, killed, seconds)
                case _:
                    left.append((role, killed))
            run.until_back({name: pid})
    return left


def _rollout(run: FaultyRun, payloads: Payloads, pod: str, killed: int, seconds: Seconds) -> None:
    dead = {engine for _, engine in payloads.stored if engine.startswith(f"{pod}.")}

    def first() -> int | None:
        return next((at for at, e in payloads.stored if e.startswith(f"{pod}.") and e not in dead), None)

    run.until("a payload of its successor", lambda: first() is not None)
    end = first() or 0
    others = [at for at, engine in payloads.stored if not engine.startswith(f"{pod}.")]
    seconds["rollout: others"].append(longest_gap(killed, others, end))
    seconds["rollout: itself"].append((end - killed) / 1e9)


def _go_on(run: FaultyRun) -> None:
    """Wait for two steps: what was killed last is ready again, and the ledger has gone on."""
    later = run.steps() + 2
    run.until(f"step {later}", lambda: run.steps() >= later)


def measure(folder: Path, model: Path, *, kills: int, per_run: int, **changes: Any) -> Seconds:
    """Seconds until recovery of every kill, by role."""
    names = ("rollout: others", "rollout: itself", "coordinator", "trainer", "nats-server")
    seconds: Seconds = {name: [] for name in names}
    for number in range(0, kills, per_run):
        times = min(per_run, kills - number)
        run = FaultyRun(
            "recovery",
            folder / f"run-{number}",
            model,
            lambda text: print(text, flush=True),
            steps=100_000,
            **changes,
        )
        try:
            run.watch(3)
            left = kill_each(run, seconds, times=times)
            _go_on(run)
            log = (run.output / "logs" / "nats-server-0.log").read_text(errors="replace")
            run.crash()
            ledger = read_ledger(run.output / "nats", names_of(run.output))
            for role, killed in left:
                if role == "coordinator":
                    seconds[role].append(after_coordinator(killed, ledger))
                else:
                    seconds[role].append(after_server(killed, log, ledger))
            run.check_audit()
        finally:
            run.stop()
        run.say(
            "; ".join(f"{name}: {' '.join(f'{s:.2f}' for s in found)}" for name, found in seconds.items())
        )
    return seconds


def main(kills: int = SIZES["full"]) -> dict[str, Any]:
    """Print the table; median and maximum of each role, in seconds."""
    model = Path(__file__).parent.parent / "manifests" / "examples" / "models" / "chain-sum"
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as temporary:
        seconds = measure(
            Path(temporary),
            model,
            kills=kills,
            per_run=PER_RUN,
            data={"promptTemplate": "{{ metadata.expression | replace(' ', '') }}="},
            pipeline={"maxStaleness": 2},
            trainer={"options": {"threads": 1}, "checkpoint": {"everySteps": 5}},
        )
    rows = []
    print(f"{'killed':<18} {'kills':>5} {'median':>8} {'maximum':>8} {'limit':>6}")
    for name, found in seconds.items():
        limit = LIMITS.get(name)
        row = {"role": name, "kills": len(found), "median": statistics.median(found), "max": max(found)}
        rows.append({**row, "limit": limit})
        shown = "" if limit is None else f"{limit:.0f} s"
        print(f"{name:<18} {len(found):>5} {row['median']:>6.2f} s {row['max']:>6.2f} s {shown:>6}")
    print(f"load average {load:.1f} at the start, {os.getloadavg()[0]:.1f} at the end, {os.cpu_count()} CPUs")
    return {"rows": rows, "load_before": load, "load_after": os.getloadavg()[0]}
