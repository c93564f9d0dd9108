"""Whole runs by the `rljob` command, for tests: start, wait for a step, kill a role, audit."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
from ruamel.yaml import YAML
from tests.waiting import TookTooLong, patience, until

RLJOB = str(Path(sys.executable).parent / "rljob")
PATIENCE = 600.0  # seconds; a bound on a hang, nothing is timed


def write_job(folder: Path, model: Path, **changes: Any) -> Path:
    """A small job over real engines; `changes` are laid over the spec's sections."""
    spec: dict[str, Any] = {
        "steps": 8,
        "model": {"uri": str(model)},
        "data": {
            "dataset": "chain_sum",
            "options": {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 2},
            "promptsPerStep": 8,
            "groupSize": 4,
        },
        "pipeline": {"mode": "BoundedAsync", "maxStaleness": 1},
        "algorithm": {"learningRate": 1e-4},
        "rollout": {
            "engine": {"name": "Torch", "options": {"slots": 32, "threads": 1}},
            "sampling": {"maxTokens": 6},
            "pools": [{"name": "cpu", "replicas": 2}],
        },
        "trainer": {"options": {"threads": 1}, "checkpoint": {"everySteps": 2}},
    }
    for section, change in changes.items():
        spec[section] = {**spec.get(section, {}), **change} if isinstance(change, dict) else change
    manifest = {
        "apiVersion": "rljob.dev/v1alpha1",
        "kind": "RLJob",
        "metadata": {"name": "job"},
        "spec": spec,
    }
    path = folder / "job.yaml"
    with path.open("w") as file:
        YAML(typ="safe").dump(manifest, file)
    return path


class LiveRun:
    """`rljob run` in the background."""

    def __init__(self, manifest: Path, output: Path, *arguments: str) -> None:
        self.output = output
        self._log = output.parent / "run.log"
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(
                [RLJOB, "run", str(manifest), "--output", str(output), *arguments],
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def said(self) -> str:
        return self._log.read_text(errors="replace")

    def pids(self) -> dict[str, dict[str, Any]]:
        with suppress(OSError, ValueError):
            return json.loads((self.output / "pids.json").read_text())
        return {}

    def steps(self) -> int:
        """Committed steps that the output folder knows of."""
        with suppress(OSError):
            lines = (self.output / "metrics.jsonl").read_bytes().splitlines(keepends=True)
            # The last one may be seen while it is written.
            return max((json.loads(line)["version"] for line in lines if line.endswith(b"\n")), default=0)
        return 0

    def until(self, what: str, done: Callable[[], bool]) -> None:
        until(
            done,
            what,
            seconds=PATIENCE,
            alive=lambda: self.process.poll() is None,
            shown=lambda: f"{self.said[-3000:]}\n{self.logs()}",
        )

    def kill(self, pod: str) -> int:
        """`kill -9` the pod's process; its pid."""
        pid = self.pids()[pod]["pid"]
        os.kill(pid, signal.SIGKILL)
        return pid

    def wait(self, seconds: float = PATIENCE) -> int:
        try:
            return self.process.wait(patience(seconds))
        except subprocess.TimeoutExpired:
            raise TookTooLong(f"still running:\n{self.said[-3000:]}\n{self.logs()}") from None

    def logs(self) -> str:
        tails = [
            f"--- {p.name}\n{p.read_text(errors='replace')[-1500:]}"
            for p in sorted((self.output / "logs").glob("*"))
        ]
        return "\n".join(tails)

    def family(self) -> list[psutil.Process]:
        """The command and all its descendants."""
        with suppress(psutil.NoSuchProcess):
            parent = psutil.Process(self.process.pid)
            return [parent, *parent.children(recursive=True)]
        return []

    def summary(self) -> dict[str, Any]:
        return json.loads((self.output / "summary.json").read_text())

    def patch(self, *texts: str) -> str:
        """`rljob patch` of fields, each as `path=value`; what it says."""
        return self._rljob("patch", *(part for text in texts for part in ("--set", text)))

    def check_audit(self) -> None:
        """`rljob audit` finds nothing."""
        self._rljob("audit")

    def check_replay(self) -> None:
        """`rljob replay` decides as all coordinators of the run did."""
        self._rljob("replay")

    def _rljob(self, command: str, *flags: str) -> str:
        done = _about(self.output, command, *flags)
        assert done.returncode == 0, done.stdout + done.stderr + self.said[-3000:] + self.logs()
        return done.stdout

    def stop(self) -> None:
        """End what is left, whatever the test did."""
        family = self.family()
        for process in reversed(family):
            with suppress(psutil.NoSuchProcess):
                process.kill()
        self.process.wait()
        still_there(family)  # so that nothing uses its folder any more


def still_there(family: Sequence[psutil.Process]) -> list[psutil.Process]:
    """Those of the processes that do not end. One that was killed may take a moment, and be reaped by nobody."""

    def runs(process: psutil.Process) -> bool:
        with suppress(psutil.NoSuchProcess):
            return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
        return False

    with suppress(TookTooLong):
        until(lambda: not any(map(runs, family)))
    return list(filter(runs, family))


def audit(output: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    """`rljob audit`."""
    return _about(output, "audit", *flags)


def _about(output: Path, command: str, *flags: str) -> subprocess.CompletedProcess[str]:
    """A command about a run's folder."""
    words = [RLJOB, command, str(output), *flags]
    return subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE, check=False)
