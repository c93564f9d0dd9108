"""The real roles of one job in one event loop, over the in-memory store: start, kill, wait."""

from __future__ import annotations

import asyncio
from pathlib import Path

from rljob_core.config import JobConfig
from rljob_core.messages import STEP_METRICS, StepMetrics
from rljob_core.ports import Channel
from rljob_runtime.backends import create_backend
from rljob_runtime.checkpoint import CheckpointStore
from rljob_runtime.coordinator import Coordinator
from rljob_runtime.data import open_prompts
from rljob_runtime.engines import create_engine
from rljob_runtime.memory_store import MemoryServer, MemoryStore
from rljob_runtime.reward import run_reward
from rljob_runtime.rollout import Rollout
from rljob_runtime.tokenizer import Tokenizer
from rljob_runtime.trainer import Trainer
from rljob_runtime.weights_files import FilesWeightStore


class Roles:
    """Starts and kills roles of one job on one in-memory server."""

    def __init__(self, config: JobConfig, model: Path) -> None:
        self.config, self.model = config, model
        self.server = MemoryServer()
        self.stop = asyncio.Event()
        self.tasks: dict[str, asyncio.Task[None]] = {}
        self.attempt = 0
        self.store = self.connect()

    def connect(self) -> MemoryStore:
        return MemoryStore(self.server, subject=self.config.subject)

    def coordinator(self, instance: str) -> None:
        training, held_out = open_prompts(self.config)
        role = Coordinator(
            self.config,
            self.connect(),
            lambda prompt, evaluation: (held_out if evaluation else training).text(prompt),
            instance=instance,
        )
        self.tasks["coordinator"] = asyncio.create_task(role.run())

    def rollout(self, pod: str) -> None:
        name = self.config.spec.rollout.engine.name
        engine = create_engine(name, model_path=self.model, options=self.config.engine_options("a"))
        role = Rollout(
            self.config,
            self.connect(),
            FilesWeightStore(self.config.weights_uri),
            engine,
            Tokenizer(self.model),
            pod=pod,
            pool="a",
        )
        self.tasks[pod] = asyncio.create_task(role.run(self.stop))

    def reward(self) -> None:
        self.tasks["reward"] = asyncio.create_task(
            run_reward(self.config, self.connect(), stop=self.stop, ready=lambda: None, workers=1)
        )

    def trainer(self) -> None:
        self.attempt += 1
        role = Trainer(
            self.config,
            self.connect(),
            FilesWeightStore(self.config.weights_uri),
            CheckpointStore(self.config.checkpoint_uri, model_path=self.model),
            create_backend(self.config, rank=0, world_size=1, model_path=self.model),
            attempt=self.attempt,
            log_folder=Path(self.config.trainer_log_uri),
        )
        self.tasks["trainer"] = asyncio.create_task(role.run(self.stop))

    async def kill(self, name: str) -> None:
        task = self.tasks.pop(name)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    async def until(self, done) -> StepMetrics:
        async for messages in self.store.read(Channel.METRICS):
            for message in messages:
                line = STEP_METRICS.validate_json(message.data)
                if done(line):
                    return line
        raise AssertionError

    async def __aenter__(self) -> Roles:
        await self.store.open()
        self.coordinator("c1")
        for pod in ("a-0", "a-1"):
            self.rollout(pod)
        self.reward()
        self.trainer()
        return self

    async def __aexit__(self, *_: object) -> None:
        self.stop.set()
        await self.kill("coordinator")
        await asyncio.gather(*self.tasks.values(), return_exceptions=True)
