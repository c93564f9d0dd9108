"""Gangs of real processes that train, for tests; and the same jobs in this process for comparison."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gang_rank import do
from safetensors.torch import load_file
from torch import Tensor
from training_samples import job_config

from rljob_runtime.backends import create_backend

#: On a machine that other work shares, DeepSpeed alone may take minutes to import.
_SECONDS = 1200.0
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


def run_gang(folder: Path, jobs: list[dict[str, Any]], *, ranks: int) -> Results:
    """Run a gang of so many ranks to its end.

    Args:
        folder: a new one; made.
        jobs: see `gang_rank.py`.
        ranks: how many processes.
    """
    folder.mkdir()
    (folder / "jobs.json").write_text(json.dumps(jobs))
    paths = [str(_HERE), str(_HERE.parent / "runtime"), *sys.path]
    environment = {
        **os.environ,
        "GLOO_SOCKET_IFNAME": "lo",
        "PYTHONPATH": os.pathsep.join(paths),
        "OMP_NUM_THREADS": "1",
    }
    processes: list[subprocess.Popen[bytes]] = []
    try:
        for rank in range(ranks):
            with (folder / f"rank-{rank}.log").open("wb") as log:
                command = [sys.executable, str(_HERE / "gang_rank.py"), str(rank), str(ranks), str(folder)]
                processes.append(
                    subprocess.Popen(command, env=environment, stdout=log, stderr=subprocess.STDOUT)
                )
        codes = [process.wait(_SECONDS) for process in processes]
    finally:
        for process in processes:
            if process.poll() is None:
                process.kill()
                process.wait()
    logs = [(folder / f"rank-{rank}.log").read_text() for rank in range(ranks)]
    assert codes == [0] * ranks, "\n".join(log[-4000:] for log in logs)
    return Results(folder)


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
