"""What one rank of a gang does: a list of jobs one after the other, each with a backend of its own.

The folder holds `jobs.json`; a job's rank 0 writes `<name>.json` (figures of every step) and `<name>.safetensors` (its
last weights) there.
"""

from __future__ import annotations

import gc
import json
import os
from collections.abc import Iterable
from contextlib import nullcontext
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from full_disk import files_of_at_most
from safetensors.torch import load_file, save_file

from rljob_contract.samples import job_config, random_samples
from rljob_core.ports import TrainerBackend
from rljob_runtime.training.gang import GangBackend, follow
from rljob_runtime.training.registry import create_backend


def train(trainer: TrainerBackend, steps: Iterable[tuple[int, list[int]]]) -> list[dict[str, float]]:
    """Take steps; the figures of each.

    Args:
        trainer: the backend.
        steps: their numbers, and the sizes of their micro-batches, which say what is in them.
    """
    figures = []
    for step, counts in steps:
        trainer.begin_step(step)
        for number, count in enumerate(counts):
            trainer.accumulate(random_samples(count, seed=10 * step + number))
        stats = trainer.finish_step()
        names = ("loss", "kl", "clip_fraction", "importance_mean", "grad_norm", "tokens")
        figures.append({name: getattr(stats, name) for name in names})
    return figures


def do(trainer: TrainerBackend, job: dict[str, Any], folder: Path) -> None:
    """What rank 0 does with a job: weights and state in, steps, weights and state out.

    Args:
        trainer: the backend.
        job: `weights` and `state` to begin with, `abandoned` sizes of micro-batches of a step that is begun again,
            `steps` as `train` takes them, and where to `save`, how large a file that `disk` takes, and what to do
            `then`, a list of steps.
        folder: for what comes out.
    """
    if "weights" in job:
        trainer.load(load_file(job["weights"]).items())
        trainer.load_state(job["state"])
    if "abandoned" in job:
        trainer.begin_step(0)
        for count in job["abandoned"]:
            trainer.accumulate(random_samples(count, seed=99))
    figures = train(trainer, job["steps"])
    if "save" in job:
        Path(job["save"]).mkdir()
        with files_of_at_most(job["disk"]) if "disk" in job else nullcontext():
            trainer.save(job["save"])
        publish(trainer, Path(job["save"] + ".safetensors"))
    figures += train(trainer, job.get("then", []))
    publish(trainer, folder / f"{job['name']}.safetensors")
    (folder / f"{job['name']}.json").write_text(json.dumps(figures))


def publish(trainer: TrainerBackend, path: Path) -> None:
    """Write a backend's weights."""
    save_file({name: tensor.clone() for name, tensor in trainer.tensors()}, path)


def run_rank(rank: int, ranks: int, folder: Path) -> None:
    """Do all jobs."""
    torch.set_num_threads(1)
    os.environ["LOCAL_RANK"] = str(rank)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder / 'rendezvous'}",
        rank=rank,
        world_size=ranks,
        timeout=timedelta(seconds=1200),
    )
    for job in json.loads((folder / "jobs.json").read_text()):
        model = Path(job["model"])
        config = job_config(
            model, trainer=job["trainer"], algorithm=job.get("algorithm"), lora=job.get("lora")
        )
        backend = create_backend(config, rank=rank, world_size=ranks, model_path=model)
        if rank:
            follow(backend)
        else:
            gang = GangBackend(backend)
            do(gang, job, folder)
            gang.close()
        del backend
        gc.collect()
    dist.barrier()
    dist.destroy_process_group()
