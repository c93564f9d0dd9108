"""`make bench-operator`: measures all phases and writes a table, and JSON in bench/out.

`make bench-operator ARGS=--smoke` runs every phase with a few jobs: it shows only that the benchmark works.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import signal
import sys
import tempfile
from pathlib import Path

from e2e.harness.build import build
from e2e.harness.errors import HarnessError
from e2e.harness.go_modules import KUBERNETES, KWOK

from bench import results
from bench.control_plane import phases, table
from bench.control_plane.measure import Measurements
from bench.control_plane.process import OperatorProcess
from bench.control_plane.world import CONTROLLER_FLAGS, World, cores

#: How often an old job changes while others are created.
_CHANGE_SECONDS = 1.0
_TARGET_RATE = 5.0
_SMOKE = {"small": 2, "jobs": 3, "nodes": 2, "seconds": 3.0, "idle": 3.0}


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.control_plane", description=__doc__)
    parser.add_argument("--smoke", action="store_true", help="two minutes; shows only that it works")
    parser.add_argument("--small", type=int, default=100, help="jobs compared with KubeRay; 0: none")
    parser.add_argument("--jobs", type=int, default=1000, help="jobs at scale; 0: none")
    parser.add_argument("--nodes", type=int, default=20, help="pretend nodes")
    parser.add_argument("--rate", type=float, help="jobs created per second while others change")
    parser.add_argument("--seconds", type=float, default=60, help="for which jobs are created meanwhile")
    parser.add_argument("--idle", type=float, default=300, help="seconds for which nothing happens")
    parser.add_argument("--keep", action="store_true", help="leave logs and the audit log")
    parser.set_defaults(**(_SMOKE if "--smoke" in sys.argv[1:] else {}))
    return parser.parse_args()


def _say(line: str) -> None:
    print(f"  … {line}", flush=True)


class Bench:
    """One run of the phases; `results` has what was measured so far."""

    def __init__(self, arguments: argparse.Namespace, folder: Path) -> None:
        self._arguments = arguments
        self._folder = folder
        self.results: Measurements = {
            "cores": cores(),
            "load_before": os.getloadavg(),
            "controller_flags": CONTROLLER_FLAGS,
            "kubernetes": KUBERNETES.version,
            "kwok": KWOK.version,
        }

    async def run(self) -> None:
        """Run the phases that the arguments select."""
        flags = " ".join(CONTROLLER_FLAGS)
        print(
            f"{cores()} CPUs, load {os.getloadavg()[0]:.2f}; Kubernetes {KUBERNETES.version}, KWOK {KWOK.version}, "
            f"{self._arguments.nodes} pretend nodes; controller-manager and scheduler with {flags}"
        )
        async with self._world("start") as world:
            self._found("start", "the operator's start", await phases.start(world))
        if self._arguments.small:
            await self._small(self._arguments.small)
        if self._arguments.jobs:
            await self._scale(self._arguments.jobs)

    async def _small(self, count: int) -> None:
        async with self._world("small") as world:
            with OperatorProcess(world) as operator:
                found = await phases.create(world, operator, range(count), _say)
                seconds = min(self._arguments.idle, 60.0)
                found["idle"] = await phases.idle(world, operator, seconds=seconds, say=_say)
        self._found("small", f"{count:,} jobs, {found['pods']:,} pods", found)

    async def _scale(self, count: int) -> None:
        async with self._world("scale") as world:
            with OperatorProcess(world) as operator:
                found = await phases.create(world, operator, range(count), _say)
                self._found("scale", f"{count:,} jobs, {found['pods']:,} pods", found)
                rate = self._arguments.rate or min(_TARGET_RATE, found["jobs_per_second"])
                more = max(int(rate * self._arguments.seconds), 1)
                new = range(count, count + more)
                found = await phases.change(
                    world, operator, range(count), new, rate=rate, every=_CHANGE_SECONDS, say=_say
                )
                self._found("change", f"one job changes, beside {count:,} others", found)
                count += more
                found = await phases.idle(world, operator, seconds=self._arguments.idle, say=_say)
                self._found("idle", f"{count:,} jobs at rest", found)
                found = await phases.restart(world, operator, count)
                self._found("restart", f"a new operator finds {count:,} jobs", found)

    def _world(self, name: str) -> World:
        return World(self._folder / name, nodes=self._arguments.nodes)

    def _found(self, phase: str, title: str, found: Measurements) -> None:
        self.results[phase] = found
        table.show(title, table.rows(phase, found))


def main() -> None:
    """Run, print, write."""
    arguments = _arguments()
    # Either signal ends everything that this process started, also where a shell made it ignore Ctrl-C.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    folder = Path(tempfile.mkdtemp(prefix="bench-operator-"))
    bench = Bench(arguments, folder)
    try:
        build([KUBERNETES], nodes=False, say=_say)
        build([KWOK], say=_say)
        asyncio.run(bench.run())
    except (HarnessError, phases.Stuck) as error:
        raise SystemExit(f"error: {error}") from None
    except KeyboardInterrupt:
        raise SystemExit("stopped") from None
    finally:
        if arguments.keep:
            print(f"logs are in {folder}")
        else:
            shutil.rmtree(folder, ignore_errors=True)
    bench.results["load_after"] = os.getloadavg()
    file = results.keep("operator", bench.results, size="smoke" if arguments.smoke else "full")
    print(f"\nwritten to {file}")


if __name__ == "__main__":
    main()
