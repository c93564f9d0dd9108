"""Generation through the real rollout worker against bare vLLM.

Both generate the same prompts and lengths in alternating rounds: `LLM.generate` in its own process, and a rollout
worker over the engine vLLM that takes assignments from a real nats-server and stores trajectories there. Both have one
thread, the same tiny Qwen2 in float32 and the same number of slots. The worker also computes log-probabilities, which
`generate` does not. Figures are medians over rounds.
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from e2e.harness.nats_server import EmbeddedServer

from rljob_contract.tiny_models import tiny_model
from rljob_core.config import JobConfig
from rljob_core.messages import (
    ENGINE_WORK,
    VERSION_ANNOUNCED,
    EngineWorkBatch,
    Generate,
    VersionAnnounced,
)
from rljob_core.ports import Channel
from rljob_core.spec import RLJobSpec
from rljob_runtime.engines.registry import create_engine
from rljob_runtime.engines.vllm.engine import environment
from rljob_runtime.messaging.nats.store import NatsStore
from rljob_runtime.messaging.trajectories import TrajectoryStore
from rljob_runtime.model.settings import model_settings
from rljob_runtime.model.tokenizer import Tokenizer
from rljob_runtime.roles.rollout import Rollout
from rljob_runtime.weights.create import open_store

CONTEXT = 1024


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is measured: engine slots, prompts in a round, tokens of a response, rounds after a warm-up round."""

    slots: int = 64
    prompts: int = 192
    tokens: int = 64
    rounds: int = 3


FULL = Sizes()
SMOKE = Sizes(slots=4, prompts=8, tokens=8, rounds=1)
SIZES = {"full": FULL, "quick": FULL, "smoke": SMOKE}


def options(sizes: Sizes) -> dict[str, Any]:
    """Options of the engine vLLM."""
    return {"slots": sizes.slots, "threads": 1, "kvCacheGiB": 0.5, "maxLength": CONTEXT}


# ------------------------------------------------------------------------------------------------ bare vLLM

BARE = """
import json, sys, time

def main() -> None:
    from vllm import LLM, SamplingParams

    given = json.loads(sys.argv[1])
    model = LLM(
        model=given["model"], dtype="float32", enforce_eager=True, max_num_seqs=given["slots"],
        max_model_len=given["context"], kv_cache_memory_bytes=1 << 29, skip_tokenizer_init=True,
    )
    params = SamplingParams(max_tokens=given["tokens"], temperature=1.0, ignore_eos=True, detokenize=False)
    prompts = [{"prompt_token_ids": tokens} for tokens in given["prompts"]]
    print("ready", flush=True)
    for _ in sys.stdin:
        begun = time.perf_counter()
        done = model.generate(prompts, params, use_tqdm=False)
        seconds = time.perf_counter() - begun
        print(json.dumps([seconds, sum(len(one.outputs[0].token_ids) for one in done)]), flush=True)

if __name__ == "__main__":
    main()
"""


class Bare:
    """`LLM.generate` in its own process."""

    def __init__(self, model: Path, prompts: Sequence[Sequence[int]], sizes: Sizes, folder: Path) -> None:
        script = folder / "bare.py"
        script.write_text(BARE)
        given = {
            "model": str(model),
            "slots": sizes.slots,
            "context": CONTEXT,
            "tokens": sizes.tokens,
            "prompts": [list(map(int, prompt)) for prompt in prompts],
        }
        with (folder / "bare.log").open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, str(script), json.dumps(given)],
                env=os.environ | environment(threads=1, workers=1, on_cpu=True),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        self._read("ready")

    def round(self) -> float:
        """Tokens a second."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        seconds, tokens = json.loads(self._read("["))
        return float(tokens / seconds)

    def _read(self, beginning: str) -> str:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith(beginning):
                return line
        raise RuntimeError("bare vLLM ended: see bare.log")

    def close(self) -> None:
        """Close its input, which ends the process."""
        self._process.communicate()


# ------------------------------------------------------------------------------------------------ the rollout worker


class Worker:
    """A rollout worker over vLLM, its nats-server, and assignments such as a coordinator sends."""

    def __init__(self, model: Path, texts: Sequence[str], sizes: Sizes, folder: Path) -> None:
        self._model, self._texts, self._sizes, self._folder = model, texts, sizes, folder
        self._numbers = iter(range(1_000_000))

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Worker]:
        """Start the server and the worker; both end with the context."""
        config = self._config()
        server = EmbeddedServer(self._folder / "nats")
        await server.start()
        self._store, own = (
            NatsStore(server.url, subject=config.subject, stream_prefix=config.stream_prefix)
            for _ in range(2)
        )
        for store in (self._store, own):
            await store.open()
        engine = create_engine("vLLM", model_path=self._model, options=options(self._sizes))
        weights = open_store("Files", uri=config.weights_uri)
        role = Rollout(
            config,
            own,
            weights,
            engine,
            Tokenizer(self._model),
            vocabulary=model_settings(self._model).vocabulary,
            pod="bench",
            pool="a",
        )
        self._engine = role.instance
        announced = VersionAnnounced(epoch=1, version=0, key=None, manifest="initial")
        await self._store.publish(Channel.VERSIONS, "announced", VERSION_ANNOUNCED.dump_json(announced))
        stop, ready = asyncio.Event(), asyncio.Event()
        task = asyncio.create_task(role.run(stop, ready.set))
        begun = asyncio.create_task(ready.wait())
        await asyncio.wait({task, begun}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            task.result()
        try:
            yield self
        finally:
            stop.set()
            await task
            for store in (self._store, own):
                await store.close()
            await server.stop()

    async def round(self) -> float:
        """Tokens per second, from the first assignment that is sent until the last trajectory is stored."""
        first = await self._store.last_sequence(Channel.TRAJECTORIES) + 1
        begun = time.perf_counter()
        number = next(self._numbers)
        for start in range(0, len(self._texts), 64):
            texts = {f"{number}-{at}": text for at, text in enumerate(self._texts[start : start + 64], start)}
            items = tuple(
                Generate(f"{group}.0", 1, at, 0, "sampled", at) for at, group in enumerate(texts, start)
            )
            batch = EngineWorkBatch(1, items, texts)
            await self._store.publish(Channel.WORK, f"engine.{self._engine}", ENGINE_WORK.dump_json(batch))
        found = tokens = 0
        async for summaries in TrajectoryStore(self._store).summaries(first):
            found += len(summaries)
            tokens += len(summaries) * self._sizes.tokens
            if found == len(self._texts):
                break
        return tokens / (time.perf_counter() - begun)

    def _config(self) -> JobConfig:
        spec = {
            "steps": 1,
            "model": {"uri": str(self._model)},
            "data": {"dataset": "chain_sum", "promptsPerStep": 4, "groupSize": 2},
            "rollout": {
                "engine": {"name": "vLLM", "options": options(self._sizes)},
                "sampling": {"maxTokens": self._sizes.tokens},
                "pools": [{"name": "a", "replicas": 1}],
            },
        }
        return JobConfig(
            namespace="default",
            job="rollout",
            uid="bench",
            spec=RLJobSpec.model_validate(spec),
            weights_uri=str(self._folder / "weights"),
            checkpoint_uri=str(self._folder / "checkpoints"),
            trainer_log_uri=str(self._folder / "trainer"),
        )


async def throughput(model: Path, sizes: Sizes, folder: Path) -> dict[str, Any]:
    """Tokens per second of both, and their ratio."""
    random = np.random.default_rng(0)
    letters = "abcdefghijklmnopqrstuvwxyz0123456789"
    texts = ["".join(random.choice(list(letters), size=16)) for _ in range(sizes.prompts)]
    tokenizer = Tokenizer(model)
    bare = await asyncio.to_thread(Bare, model, [tokenizer.encode(text) for text in texts], sizes, folder)
    found: dict[str, list[float]] = {"LLM.generate": [], "rollout worker": []}
    async with Worker(model, texts, sizes, folder).running() as worker:
        for number in range(sizes.rounds + 1):
            theirs = await asyncio.to_thread(bare.round)
            ours = await worker.round()
            if number:  # the first warms up
                found["LLM.generate"].append(theirs)
                found["rollout worker"].append(ours)
        await asyncio.to_thread(bare.close)
    medians = {name: statistics.median(rates) for name, rates in found.items()}
    return {**medians, "ratio": medians["rollout worker"] / medians["LLM.generate"], "rounds": found}


def unending(model: Path) -> Path:
    """Remove the end token from a model folder, so that every response has the greatest length."""
    for name, field in [
        ("config", "eos_token_id"),
        ("generation_config", "eos_token_id"),
        ("tokenizer_config", "eos_token"),
    ]:
        file = model / f"{name}.json"
        settings = json.loads(file.read_text())
        settings.pop(field, None)
        file.write_text(json.dumps(settings))
    return model


def main(sizes: Sizes = FULL) -> dict[str, Any]:
    """Print the table."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        model = unending(tiny_model(folder / "model", hidden=512, layers=8, context=CONTEXT))
        rates = asyncio.run(throughput(model, sizes, folder))
    print(
        f"{sizes.prompts} prompts of 16 tokens, {sizes.tokens} tokens each, {sizes.slots} slots, 1 thread, "
        "Qwen2 of 18.9 M parameters"
    )
    print(f"{'LLM.generate':>16} {'rollout worker':>16} {'ratio':>7}")
    print(f"{rates['LLM.generate']:>12,.0f} t/s {rates['rollout worker']:>12,.0f} t/s {rates['ratio']:>7.3f}")
    return rates
