"""Time from the end of an optimizer step until an engine generates with the new weights.

A trainer of the backend Torch takes a real step. Its weights are published with the transport `Files`, read and
verified, and the engine swaps them in (`inflight: Update`) while all its slots generate. The time ends with the first
token of the new weights. `bench.weights` measures what a network between machines adds. Figures are medians.

On a GPU (`--gpu`) trainer and engine share it, in bfloat16: the engine `Torch`, once recomputing the cache of what it
generates under the new weights, once keeping it.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bench import rollout
from bench.models import GPU_MILLIONS, for_gpu
from bench.rollout import CONTEXT, options, unending
from rljob_contract.samples import job_config, random_samples
from rljob_contract.tiny_models import tiny_model
from rljob_core.ports import Engine, Request, TrainerBackend, WeightManifest
from rljob_runtime.engines.registry import create_engine
from rljob_runtime.training.registry import create_backend
from rljob_runtime.weights.create import open_store


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is measured.

    Attributes:
        load: what the engines generate meanwhile.
        swaps: of each engine; figures are medians over them.
        gpu: whether a GPU computes; of the engines, only `Torch` takes part then.
    """

    load: rollout.Sizes = rollout.FULL
    swaps: int = 7
    gpu: bool = False


FULL = Sizes()
SMOKE = Sizes(rollout.SMOKE, swaps=1)
GPU = Sizes(gpu=True)
SIZES = {"full": FULL, "quick": FULL, "smoke": SMOKE, "gpu": GPU}
#: Options of trainer and engine on a GPU.
GPU_OPTIONS = {"device": "cuda", "dtype": "bfloat16"}


@contextmanager
def engines(model: Path, sizes: Sizes, folder: Path) -> Iterator[dict[str, Engine]]:
    """The engines that are compared; they are not started yet."""
    if sizes.gpu:
        yield {
            name: create_engine(
                "Torch",
                model_path=model,
                options={
                    "slots": sizes.load.slots,
                    "maxLength": CONTEXT,
                    "recomputeCache": again,
                    **GPU_OPTIONS,
                },
            )
            for name, again in (("cache recomputed", True), ("cache kept", False))
        }
        return
    from tests.engines.vllm_processes import vllm_server

    slots = sizes.load.slots
    with vllm_server(model, folder / "server.log", slots=slots) as url:
        yield {
            "Torch": create_engine(
                "Torch", model_path=model, options={"slots": slots, "threads": 1, "device": "cpu"}
            ),
            "vLLM": create_engine("vLLM", model_path=model, options=options(sizes.load)),
            "HTTP": create_engine("HTTP", model_path=model, options={"slots": slots, "url": url}),
        }


class Trainer:
    """A trainer that takes steps on random samples and publishes its weights."""

    def __init__(self, model: Path, folder: Path, *, gpu: bool) -> None:
        config = job_config(model, trainer={"options": GPU_OPTIONS if gpu else {"threads": 1}})
        self._backend: TrainerBackend = create_backend(config, rank=0, world_size=1, model_path=model)
        self._root = folder.as_uri()
        self._version = 0

    def step(self) -> None:
        """Take one optimizer step."""
        self._backend.begin_step(self._version)
        self._backend.accumulate(random_samples(8, seed=self._version))
        self._backend.finish_step()
        self._version += 1

    def publish(self) -> WeightManifest:
        """Publish the weights of the last step."""
        with closing(open_store("Files", uri=self._root)) as store:
            return store.write(
                version=self._version,
                parent="",
                proposal=None,
                key=f"v{self._version}",
                tensors=self._backend.tensors(),
            )

    def read(self, manifest: WeightManifest) -> list[tuple[str, Any]]:
        """Read the weights back; every digest is verified."""
        with closing(open_store("Files", uri=self._root)) as store:
            return list(store.read(store.manifest(manifest.key)))


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds from the end of the optimizer step until the weights are published, read, and have generated a token."""

    published: float
    read: float
    token: float


async def measure(engine: Engine, trainer: Trainer, *, slots: int, swaps: int) -> Times:
    """Median times of an engine over some swaps."""
    await engine.start()
    await engine.swap(0, None, "Update")
    tokens = np.arange(1, 17, dtype=np.int32)
    found: list[Times] = []
    for version in range(1, swaps + 1):
        names = [f"{version}-{slot}" for slot in range(slots)]
        engine.submit(
            [
                Request(name, tokens, 1.0, 1.0, CONTEXT - 100, frozenset(), (), n)
                for n, name in enumerate(names)
            ]
        )
        await asyncio.to_thread(trainer.step)
        await more_tokens(engine, 4 * slots)
        begun = time.perf_counter()
        manifest = await asyncio.to_thread(trainer.publish)
        published = time.perf_counter()
        weights = await asyncio.to_thread(trainer.read, manifest)
        read = time.perf_counter()
        await engine.swap(version, weights, "Update")
        await more_tokens(engine, 1)
        found.append(Times(published - begun, read - begun, time.perf_counter() - begun))
        engine.cancel(names)
    await engine.close()
    return Times(*(statistics.median(getattr(t, n) for t in found) for n in ("published", "read", "token")))


async def more_tokens(engine: Engine, count: int) -> None:
    """Wait until the engine has generated so many more tokens."""
    before = engine.load().tokens
    while engine.load().tokens < before + count:  # noqa: ASYNC110
        await asyncio.sleep(0.0005)


async def compare(model: Path, sizes: Sizes, folder: Path) -> dict[str, Times]:
    """The times of every engine."""
    with ExitStack() as stack:
        kinds = await asyncio.to_thread(stack.enter_context, engines(model, sizes, folder))
        found = {}
        for name, engine in kinds.items():
            trainer = Trainer(model, folder / f"weights-{name}", gpu=sizes.gpu)
            found[name] = await measure(engine, trainer, slots=sizes.load.slots, swaps=sizes.swaps)
        await asyncio.to_thread(stack.close)
    return found


def main(sizes: Sizes = FULL) -> dict[str, Any]:
    """Print the table."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        if sizes.gpu:
            model = for_gpu(folder / "model")
        else:
            model = unending(tiny_model(folder / "model", hidden=256, layers=8, context=CONTEXT))
        found = asyncio.run(compare(model, sizes, folder))
    print(
        f"{sizes.load.slots} trajectories generating, Qwen2 of {GPU_MILLIONS if sizes.gpu else 4.7} M parameters; "
        "milliseconds from the end of the optimizer's step"
    )
    print(f"{'engine':>16} {'published':>10} {'read':>10} {'first token':>12}")
    for name, times in found.items():
        published, read, token = (1000 * t for t in (times.published, times.read, times.token))
        print(f"{name:>16} {published:>10,.1f} {read:>10,.1f} {token:>12,.1f}")
    return {name: {"published": t.published, "read": t.read, "token": t.token} for name, t in found.items()}
