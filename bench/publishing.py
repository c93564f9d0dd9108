"""Memory that a trainer needs to publish its weights, for each backend, on two ranks that communicate over gloo.

Each rank trains a step, so that weights, gradients and the optimizer's state exist. Then rank 0 stores the weights with
the transport `Files` while the other rank hands over its shards. The figure is the growth of a rank's peak of resident
memory, in units of the model's largest tensor: 1 is one tensor at a time, 10 would be a second copy of the model.

The C library is configured to return freed memory at once: by default it keeps up to 64 MiB, whatever the model's size.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from contextlib import closing
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from bench.models import qwen2
from bench.trainer import peak_of

RANKS = 2
BACKENDS: dict[str, dict[str, Any]] = {
    "Torch": {"backend": "Torch"},
    "FSDP": {"backend": "FSDP"},
    "ZeRO-2": {"backend": "DeepSpeed", "options": {"zeroStage": 2}},
    "ZeRO-3": {"backend": "DeepSpeed", "options": {"zeroStage": 3}},
}


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is measured.

    Attributes:
        backends: names in `BACKENDS`.
        hidden: of the model; its largest tensor has 12 · hidden² elements.
    """

    backends: tuple[str, ...] = tuple(BACKENDS)
    hidden: int = 512


FULL = Sizes()
SMOKE = Sizes(("FSDP", "ZeRO-3"))
SIZES = {"full": FULL, "quick": FULL, "smoke": SMOKE}
#: So long may a rank take on a machine that has much to do.
SECONDS = 1200


def make_model(folder: Path, *, hidden: int) -> Path:
    """Write a model whose largest tensor, the embeddings, is a tenth of it."""
    return qwen2(
        folder,
        vocabulary=12 * hidden,
        hidden=hidden,
        intermediate=4 * hidden,
        heads=8,
        key_heads=8,
        layers=7,
    )


def measure(trainer: dict[str, Any], model: Path, folder: Path) -> dict[str, int]:
    """Bytes of the model, of its largest tensor, and of the peak of the rank with the highest one."""
    folder.mkdir()
    environment = {
        **os.environ,
        "GLOO_SOCKET_IFNAME": "lo",
        "MALLOC_MMAP_THRESHOLD_": "65536",
        "OMP_NUM_THREADS": "1",
    }
    processes = []
    try:
        for rank in range(RANKS):
            arguments = [json.dumps(trainer), str(model), str(rank), str(folder)]
            with (folder / f"{rank}.log").open("wb") as log:
                processes.append(
                    subprocess.Popen(
                        [sys.executable, "-m", "bench.publishing", *arguments],
                        env={**environment, "LOCAL_RANK": str(rank)},
                        stdout=subprocess.PIPE,
                        stderr=log,
                    )
                )
        outputs = [process.communicate(timeout=SECONDS)[0] for process in processes]
    finally:
        for process in processes:
            if process.poll() is None:
                process.kill()
                process.wait()
    for rank, process in enumerate(processes):
        if process.returncode:
            raise RuntimeError((folder / f"{rank}.log").read_text()[-4000:])
    reports: list[dict[str, int]] = [json.loads(output.splitlines()[-1]) for output in outputs]
    return max(reports, key=lambda one: one["peak"])


def rank(trainer: dict[str, Any], model: Path, number: int, folder: Path) -> dict[str, int]:
    """Measure on one rank; runs in that rank's process."""
    import torch
    import torch.distributed as dist

    from rljob_contract.samples import job_config, random_samples
    from rljob_runtime.training.registry import create_backend
    from rljob_runtime.weights.create import open_store

    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder / 'rendezvous'}",
        rank=number,
        world_size=RANKS,
        timeout=timedelta(seconds=SECONDS),
    )
    backend: Any = create_backend(
        job_config(model, trainer=trainer), rank=number, world_size=RANKS, model_path=model
    )
    backend.begin_step(0)
    backend.accumulate(random_samples(8))
    backend.finish_step()

    def publish() -> None:
        if number:
            for _ in backend.tensors():
                pass
            return
        with closing(open_store("Files", uri=(folder / "weights").as_uri())) as store:
            store.write(version=1, parent="", proposal=None, key="v1", tensors=backend.tensors())

    sizes = [layout.size for layout in backend.layout()]
    dist.barrier()
    peak = peak_of(publish)
    dist.barrier()
    dist.destroy_process_group()
    return {"model": sum(sizes), "largest": max(sizes), "peak": peak}


def main(sizes: Sizes = FULL) -> dict[str, Any]:
    """Print the table."""
    found = {}
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        model = make_model(folder / "model", hidden=sizes.hidden)
        for name in sizes.backends:
            one = found[name] = measure(BACKENDS[name], model, folder / name)
            if len(found) == 1:
                print(
                    f"{RANKS} ranks; weights {one['model'] >> 20} MiB in float32, the largest tensor "
                    f"{one['largest'] >> 20} MiB\n{'backend':>8} {'peak MiB':>9} {'in tensors':>11}"
                )
            tensors = one["peak"] / one["largest"]
            print(f"{name:>8} {one['peak'] / 2**20:>9.1f} {tensors:>11.2f}", flush=True)
    return found


if __name__ == "__main__":
    print(json.dumps(rank(json.loads(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4]))))
