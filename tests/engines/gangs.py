"""Gangs of real processes that train, for tests; and the same jobs in this process for comparison."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gang_rank import do
from safetensors.torch import load_file
from torch import Tensor

from rljob_contract.samples import job_config
from rljob_runtime.training.registry import create_backend

_HERE = Path(__file__).parent


@dataclass(frozen=True)
class Results:
    """What jobs left in a folder."""

    folder: Path

    def figures(self, name: str) -> list[dict[str, float]]:
        """Of every step of a job."""
        found: list[dict[str, float]] = json.loads((self.folder / f"{name}.json").read_text())
        return found

    def weights(self, name: str) -> dict[str, Tensor]:
        """A job's last."""
        found: dict[str, Tensor] = load_file(self.folder / f"{name}.safetensors")
        return found


class Gangs:
    """Starts gangs of processes that have loaded torch and DeepSpeed already."""

    def __init__(self, log: Path) -> None:
        environment = {
            **os.environ,
            "GLOO_SOCKET_IFNAME": "lo",
            "PYTHONPATH": os.pathsep.join([str(_HERE), *sys.path]),
            "OMP_NUM_THREADS": "1",
            "DS_ACCELERATOR": "cpu",
        }
        with log.open("wb") as file:
            self._fork_server = subprocess.Popen(
                [sys.executable, str(_HERE / "fork_server.py")],
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=file,
                text=True,
                start_new_session=True,
            )
        self._log = log

    def run(self, folder: Path, jobs: list[dict[str, Any]], *, ranks: int) -> Results:
        """Run a gang of so many ranks to its end.

        Args:
            folder: a new one; made.
            jobs: see `gang_rank.py`.
            ranks: how many processes.
        """
        folder.mkdir()
        (folder / "jobs.json").write_text(json.dumps(jobs))
        codes = self._started({"gang": str(folder), "ranks": ranks})
        logs = [(folder / f"rank-{rank}.log").read_text() for rank in range(ranks)]
        assert codes == [0] * ranks, "\n".join(log[-4000:] for log in logs)
        return Results(folder)

    def rljob(self, log: Path, *arguments: str) -> int:
        """The exit code of such a command, whose output goes to a file."""
        (code,) = self._started({"rljob": arguments, "log": str(log)})
        return code

    def _started(self, asked: dict[str, Any]) -> list[int]:
        """Exit codes."""
        assert self._fork_server.stdin is not None
        assert self._fork_server.stdout is not None
        print(json.dumps(asked), file=self._fork_server.stdin, flush=True)
        answer = self._fork_server.stdout.readline()
        assert answer, self._log.read_text()[-4000:]
        codes: list[int] = json.loads(answer)
        return codes

    def close(self) -> None:
        """End all of them."""
        os.killpg(self._fork_server.pid, signal.SIGKILL)
        self._fork_server.communicate()


def run_here(folder: Path, jobs: list[dict[str, Any]]) -> Results:
    """Run jobs of the backend Torch in this process."""
    folder.mkdir()
    for job in jobs:
        model = Path(job["model"])
        config = job_config(
            model, trainer=job["trainer"], algorithm=job.get("algorithm"), lora=job.get("lora")
        )
        do(create_backend(config, rank=0, world_size=1, model_path=model), job, folder)
    return Results(folder)


def distance(found: dict[str, Tensor], expected: dict[str, Tensor]) -> float:
    """The largest ‖Δ‖/‖w‖ over all tensors (a tensor that is zero counts with its own difference)."""
    assert found.keys() == expected.keys()
    apart = 0.0
    for name, tensor in expected.items():
        length = float(tensor.double().norm())
        apart = max(apart, float((found[name].double() - tensor.double()).norm()) / (length or 1.0))
    return apart
