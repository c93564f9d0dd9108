"""`python -m bench [--full | --smoke | --gpu] [NAME …]`: run benchmarks, print tables, write JSON to bench/out.

Names: store, replicas, tls, sites, protocol, weights, engine, rollout, swap, trainer, publishing, recovery, bound,
overlap, dispatch, episodes, two_sites, cost, simulator, learning, peer; all of them by default. Without a flag the long
ones (sites, trainer, recovery, bound, overlap, dispatch, episodes, two_sites, simulator, learning, peer) measure fewer
cases. The documented figures are those of `--full`, which takes hours for all. `--smoke` takes seconds each and only
shows that a benchmark works; its figures mean nothing. `--gpu` runs swap and trainer on a GPU. The operator has a
command of its own, `make bench-operator`.
"""

from __future__ import annotations

import argparse
import importlib
import os
import platform
import sys
import traceback

from bench import results
from rljob_runtime.messaging.nats.server import SYNC_INTERVAL

NAMES = (
    "store",
    "replicas",
    "tls",
    "sites",
    "protocol",
    "weights",
    "engine",
    "rollout",
    "swap",
    "trainer",
    "publishing",
    "recovery",
    "bound",
    "overlap",
    "dispatch",
    "episodes",
    "two_sites",
    "cost",
    "simulator",
    "learning",
    "peer",
)
ON_GPU = ("swap", "trainer")


def main() -> None:
    """Run the named benchmarks; results of other benchmarks from earlier runs are kept."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"one of {', '.join(NAMES)}")
    sizes = parser.add_mutually_exclusive_group()
    for size, text in (
        ("full", "every case, as in the documentation"),
        ("smoke", "seconds each; shows only that it works"),
        ("gpu", f"on a GPU, with a model of its size: {', '.join(ON_GPU)}"),
    ):
        sizes.add_argument(
            f"--{size}", dest="size", action="store_const", const=size, default="quick", help=text
        )
    arguments = parser.parse_args()
    for name in arguments.names:
        if name not in NAMES:
            parser.error(f"no benchmark is called {name!r}: choose from {', '.join(NAMES)}")
    names = arguments.names or (ON_GPU if arguments.size == "gpu" else NAMES)
    if arguments.size == "gpu" and (other := set(names) - set(ON_GPU)):
        parser.error(f"{', '.join(sorted(other))}: not for a GPU; choose from {', '.join(ON_GPU)}")
    print(
        f"{os.cpu_count()} CPUs, {platform.machine()}, Python {platform.python_version()}, "
        f"nats-server file storage, sync_interval {SYNC_INTERVAL}, size {arguments.size}"
    )
    failed = [name for name in names if not measured(name, arguments.size)]
    if failed:
        sys.exit(f'\nfailed: {", ".join(failed)}; to repeat them: make bench ARGS="{" ".join(failed)}"')


def measured(name: str, size: str) -> bool:
    """Run one benchmark and keep what it found; False, and the reason printed, if it failed: the others continue."""
    print(f"\n== {name}", flush=True)
    module = importlib.import_module(f"bench.{name}")
    try:
        found = module.main(module.SIZES[size])
    except Exception:
        traceback.print_exc()
        return False
    print(f"\nwritten to {results.keep(name, found, size=size)}")
    return True


if __name__ == "__main__":
    main()
