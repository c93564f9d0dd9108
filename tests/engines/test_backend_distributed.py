"""Two real ranks over gloo against one."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from rljob_contract.samples import job_config, random_samples
from rljob_contract.tiny_models import tiny_model
from rljob_runtime.training.backends.torch import TorchBackend
from rljob_runtime.training.registry import create_backend

RANK = """
import sys
from datetime import timedelta
from pathlib import Path
import torch.distributed as dist
from safetensors.torch import save_file
from rljob_contract.samples import job_config, random_samples
from rljob_runtime.training.registry import create_backend
rank, size, model, out, store = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]), Path(sys.argv[4]), sys.argv[5]
trainer = {"options": {"threads": 1, "dtype": "float64"}}
backend = create_backend(job_config(model, trainer=trainer), rank=rank, world_size=size, model_path=model)
dist.init_process_group(
    "gloo", init_method=f"file://{store}", rank=rank, world_size=size, timeout=timedelta(seconds=200)
)
for step, counts in enumerate(eval(sys.argv[6])):
    backend.begin_step(step)
    for number, count in enumerate(counts):
        backend.accumulate(random_samples(count, seed=10 * step + number))
    backend.normalise()
    save_file({k: v.clone() for k, v in backend.gradients().items()}, out / f"gradient-{step}-{rank}")
    stats = backend.finish_step()
    print(stats.loss, stats.clip_fraction, stats.importance_mean, stats.grad_norm, stats.tokens, stats.staleness_max)
save_file({k: v.clone() for k, v in backend.tensors()}, out / f"weights-{rank}")
dist.destroy_process_group()
"""

STEPS = ((7, 0, 9), (1,), (6, 6))
"""Trajectories per micro-batch and step: an empty micro-batch, and one that leaves a rank without work."""


def ranks(model: Path, out: Path, *, size: int) -> list[list[float]]:
    """Run the ranks to their end; the figures that each printed, all steps in a row."""
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo"}
    processes: list[subprocess.Popen[str]] = []
    try:
        for rank in range(size):
            arguments = [str(rank), str(size), str(model), str(out)]
            processes.append(
                subprocess.Popen(
                    [sys.executable, "-c", RANK, *arguments, str(out / "rendezvous"), repr(STEPS)],
                    env=environment,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                )
            )
        outputs = [process.communicate(timeout=600) for process in processes]
        assert [p.returncode for p in processes] == [0] * size, "\n".join(errors for _, errors in outputs)
    finally:
        for process in processes:
            if process.poll() is None:
                process.kill()
            process.communicate()
    return [[float(x) for x in output.split()] for output, _ in outputs]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("model"))


def one_rank(
    model: Path, steps: Sequence[Sequence[int]]
) -> tuple[list[dict[str, torch.Tensor]], TorchBackend]:
    config = job_config(model, trainer={"options": {"threads": 1, "dtype": "float64"}})
    backend = create_backend(config, rank=0, world_size=1, model_path=model)
    assert isinstance(backend, TorchBackend)
    gradients = []
    for step, counts in enumerate(steps):
        backend.begin_step(step)
        for number, count in enumerate(counts):
            backend.accumulate(random_samples(count, seed=10 * step + number))
        backend.normalise()
        gradients.append({name: g.clone() for name, g in backend.gradients().items()})
        backend.finish_step()
    return gradients, backend


def test_two_ranks_take_the_steps_of_one(model: Path, tmp_path: Path) -> None:
    figures = ranks(model, tmp_path, size=2)
    gradients, backend = one_rank(model, STEPS)
    for step, expected in enumerate(gradients):
        for rank in range(2):
            found = load_file(tmp_path / f"gradient-{step}-{rank}")
            assert found.keys() == expected.keys()
            for name, gradient in expected.items():
                assert float((found[name] - gradient).norm()) <= 1e-8 * float(gradient.norm()), (step, name)
    first, second = (load_file(tmp_path / f"weights-{rank}") for rank in range(2))
    for name, weight in backend.tensors():
        assert torch.equal(first[name], second[name])  # bit by bit, or ranks would drift apart
        torch.testing.assert_close(first[name], weight, rtol=1e-6, atol=1e-9)
    assert figures[0] == figures[1]
    assert len(figures[0]) == 6 * len(STEPS)
