"""A job over two sites whose link is cut while it runs: real processes and servers; only computing is emulated.

`rljob run` connects its servers by a leafnode. The configuration of the site's server is changed so that it connects
over a link of 100 Mbit/s and 66 ms, and the server is killed, so that the run starts it again. Then the link is cut.

| figure | of | asked |
|---|---|---|
| steps | committed while the link is cut, of versions that the site cannot see | > 0 in each cut |
| known | from the cut to the first step that says so | |
| back | from the mending of the link to the first step that says so | ≤ 15 s |
| again | trajectories that others have generated once more because the site was away, of all | ≤ 3 % |
| audit | what `rljob audit` says | nothing |
"""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from e2e.harness.link import Link

from bench.results import print_beside

TESTS = Path(__file__).parent.parent / "tests"
# Runs that are watched are the tests' own.
sys.path += [str(TESTS / name) for name in ("runs", "runtime") if str(TESTS / name) not in sys.path]

from runs import LiveRun, write_job  # noqa: E402

SITE = "west"
SERVER = f"nats-server-{SITE}-0"
POOLS = [{"name": "near", "replicas": 2}, {"name": "far", "replicas": 2, "site": SITE}]
BITS_PER_SECOND, DELAY = 1e8, 0.033
STEP_SECONDS, TOKEN_SECONDS, LENGTHS = 1.0, 0.02, {"median": 40, "min": 10, "max": 120}
_REMOTE = re.compile(r"@127\.0\.0\.1:(\d+)")


@dataclass(frozen=True, slots=True)
class Sizes:
    """For how many seconds the link is cut, one time after the other, and how many steps are between."""

    cuts: tuple[float, ...] = (8.0, 30.0, 90.0)
    between: int = 10


FULL = Sizes()
QUICK = Sizes(cuts=(8.0, 20.0), between=5)


class _Cut:
    """The job while its link is cut."""

    def __init__(self, run: LiveRun) -> None:
        self._run = run

    def lines(self) -> list[dict[str, Any]]:
        """The metrics of all steps so far."""
        file = self._run.output / "metrics.jsonl"
        lines = file.read_bytes().splitlines(keepends=True) if file.exists() else []
        return [json.loads(line) for line in lines if line.endswith(b"\n")]

    def is_away(self) -> bool:
        """Whether the newest step says that the site is away."""
        return "sites_away" in self.lines()[-1]

    def steps_later(self, count: int) -> None:
        """Wait for so many more steps."""
        later = self._run.steps() + count
        self._run.until(f"step {later}", lambda: self._run.steps() >= later)

    def reconnect(self, link: Callable[[int], Link]) -> Link:
        """Let the site's server connect over a link: from here on, nothing passes but over it."""
        config = self._run.output / "nats" / "sites" / SITE / "nats-server.conf"
        text = config.read_text()
        found = _REMOTE.search(text)
        if found is None:
            raise RuntimeError(f"{config} names no server to connect to")
        between = link(int(found[1])).__enter__()
        port = between.url.rpartition(":")[2]
        config.write_text(_REMOTE.sub(f"@127.0.0.1:{port}", text))
        pid = self._run.kill(SERVER)
        self._run.until("the site's server again", lambda: self._run.pids().get(SERVER, {}).get("pid") != pid)
        return between

    def cut(self, link: Link, seconds: float) -> dict[str, Any]:
        """Cut the link once."""
        begun, before = time.monotonic(), self._run.steps()
        link.cut()
        known = None
        while time.monotonic() < begun + seconds:
            if known is None and self.is_away():
                known = time.monotonic() - begun
            time.sleep(0.1)
        steps = self._run.steps() - before
        mended = time.monotonic()
        link.mend()
        self._run.until("the site again", lambda: not self.is_away())
        return {"seconds": seconds, "steps": steps, "known": known, "back": time.monotonic() - mended}


def measure(folder: Path, model: Path, sizes: Sizes) -> dict[str, Any]:
    """Run the job through the cuts, and audit it."""
    engine = {
        "name": "Emulated",
        "options": {"slots": 16, "stepSeconds": TOKEN_SECONDS, "lengths": LENGTHS},
    }
    rollout = {"engine": engine, "pools": POOLS, "sampling": {"maxTokens": LENGTHS["max"]}}
    trainer = {"backend": "Emulated", "options": {"stepSeconds": STEP_SECONDS}}
    manifest = write_job(
        folder,
        model,
        steps=100_000,
        rollout=rollout,
        trainer=trainer,
        pipeline={"maxStaleness": 2},
        weights={"transport": "Nats"},
    )
    run = LiveRun(manifest, folder / "run")
    job, link = _Cut(run), None
    try:
        job.steps_later(2)
        link = job.reconnect(
            lambda port: Link(f"nats-leaf://127.0.0.1:{port}", bits_per_second=BITS_PER_SECOND, delay=DELAY)
        )
        job.steps_later(sizes.between)
        before = job.lines()[-1]
        cuts = []
        for seconds in sizes.cuts:
            cuts.append(job.cut(link, seconds))
            job.steps_later(sizes.between)
        after = job.lines()[-1]
        run.process.send_signal(signal.SIGINT)
        run.wait()
        run.check_audit()
        carried = {"up": link.carried_up, "down": link.carried}
    finally:
        run.stop()
        if link is not None:
            link.__exit__(None, None, None)
    failed = {
        name: count - before["attempts_failed"].get(name, 0)
        for name, count in after["attempts_failed"].items()
    }
    made = sum(after["trajectories"].values()) - sum(before["trajectories"].values())
    return {"cuts": cuts, "failed": failed, "again": failed.get("SiteAway", 0) / made, "carried": carried}


def main(sizes: Sizes = FULL) -> dict[str, Any]:
    """Measure, and print each figure beside what is asked."""
    model = Path(__file__).parent.parent / "manifests" / "examples" / "models" / "chain-sum"
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory(prefix="rljob-sites-job-") as folder:
        found = measure(Path(folder), model, sizes)
    for cut in found["cuts"]:
        name = f"cut of {cut['seconds']:.0f} s"
        known = "not seen" if cut["known"] is None else f"known after {cut['known']:.1f} s"
        print(f"{name}: {cut['steps']} steps meanwhile, {known}")
        print_beside(f"{name}, until the site is back", cut["back"], 15.0)
    print_beside("generated once more, of all", found["again"], 0.03)
    print(f"audit clean; attempts that failed: {found['failed'] or 'none'}; load average {load:.1f} before")
    return found
