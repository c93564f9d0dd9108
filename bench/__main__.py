"""`python -m bench [NAME …]`: run benchmarks, print their tables, write bench/out/results.json.

Names: store, protocol, weights, engine, rollout, swap, trainer, publishing, recovery, bound, overlap, learning (all of
them by default; the last four take more than an hour).
"""

from __future__ import annotations

import argparse
import importlib
import os
import platform

from bench import results
from rljob_runtime.messaging.nats.server import SYNC_INTERVAL

NAMES = (
    "store",
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
    "learning",
)


def main() -> None:
    """Run what was asked for; a later run keeps the earlier results of the others."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"one of {', '.join(NAMES)}")
    names = parser.parse_args().names or NAMES
    for name in names:
        if name not in NAMES:
            parser.error(f"no benchmark is called {name!r}: choose from {', '.join(NAMES)}")
    print(
        f"{os.cpu_count()} CPUs, {platform.machine()}, Python {platform.python_version()}, "
        f"nats-server file storage, sync_interval {SYNC_INTERVAL}"
    )
    for name in names:
        print(f"\n== {name}", flush=True)
        results.keep(name, importlib.import_module(f"bench.{name}").main())
    print(f"\nwritten to {results.FILE}")


if __name__ == "__main__":
    main()
