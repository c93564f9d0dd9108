"""Prints which suites a change touches, beyond the gate: `make affected`, or `make affected BASE=HEAD~3`.

A change is what differs from BASE (else from `origin/main`, or `main` where there is no such branch), committed or not.
"""

from __future__ import annotations

import os
import subprocess
import sys

SUITES = {
    "workers/rljob_core/planner/": "search faults",
    "workers/rljob_core/job_state/": "search faults",
    "workers/rljob_core/records/": "search runs",
    "workers/rljob_core/site": "search runs e2e",
    "workers/rljob_core/spec/": "operator e2e",
    "workers/rljob_core/lengths/": "search",
    "workers/rljob_core/": "search",
    "workers/rljob_runtime/messaging/": "runs faults",
    "workers/rljob_runtime/roles/": "runs faults search",
    "workers/rljob_runtime/engines/": "engines",
    "workers/rljob_runtime/training/": "engines runs",
    "workers/rljob_runtime/model/": "engines",
    "workers/rljob_runtime/weights/": "runs engines",
    "workers/rljob_runtime/environments/": "runs faults e2e",
    "workers/rljob_runtime/": "runs",
    "workers/rljob_contract/": "engines",
    "operator/rljob_operator/nats/": "operator runs e2e",
    "operator/rljob_operator/": "operator e2e",
    "operator/rljob_cli/audit/": "runs",
    "operator/rljob_cli/kubectl/": "operator e2e",
    "operator/rljob_cli/": "runs",
    "manifests/examples/": "runs",
    "manifests/": "operator e2e",
    "charts/": "operator",
    "crds/": "operator",
    "images/": "operator e2e",
    "e2e/": "e2e operator",
    "bench/": "bench-smoke",
    "requirements/": "engines runs operator e2e bench-smoke",
    "tests/sim/": "search",
    "tests/core/": "search",
    "tests/operator_/": "operator",
    "tests/bench/": "bench-smoke",
    **{f"tests/{suite}/": suite for suite in ("engines", "faults", "runs", "search")},
}
"""By beginnings of paths: the longest that fits counts. `make check`, `test` and `smoke` run for every change."""


def suites_of(path: str) -> list[str]:
    """The suites that a change of this file touches."""
    fitting = max((beginning for beginning in SUITES if path.startswith(beginning)), key=len, default="")
    return SUITES[fitting].split() if fitting else []


def changed() -> list[str]:
    """The files that differ from the base."""

    def git(*arguments: str) -> str:
        return subprocess.run(["git", *arguments], capture_output=True, text=True, check=True).stdout

    known = git(
        "for-each-ref", "--format=%(refname:short)", "refs/remotes/origin/main", "refs/heads/main"
    ).split()
    base = os.environ.get("BASE") or ("origin/main" if "origin/main" in known else "main")
    untracked = git("ls-files", "--others", "--exclude-standard")
    return [*git("diff", "--name-only", "--merge-base", base).splitlines(), *untracked.splitlines()]


def main() -> int:
    """Print a command for each suite, with the file for which it is there."""
    try:
        files = changed()
    except subprocess.CalledProcessError as error:
        print(
            f"{error.stderr.strip()}\nName the commit to compare with: make affected BASE=…", file=sys.stderr
        )
        return 2
    first: dict[str, str] = {}
    for path in files:
        for suite in suites_of(path):
            first.setdefault(suite, path)
    for suite, path in sorted(first.items()):
        print(f"make {suite:<12} # {path}")
    if not first:
        print("none but the gate: make check test smoke")
    return 0


if __name__ == "__main__":
    sys.exit(main())
