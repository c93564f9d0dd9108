"""The real roles of one job in one event loop, over the in-memory store: start, kill, wait."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

from tests.memory.store import MemoryServer, MemoryStore

from rljob_core.config import JobConfig
from rljob_core.messages import STEP_METRICS, StepMetrics
from rljob_core.ports import WORK_QUEUES, Channel, Engine, Message, TrainerBackend, WeightStore
from rljob_core.spec import PipelineSpec, RLJobSpec
from rljob_runtime.data.prompts import open_prompts
from rljob_runtime.engines.registry import create_engine
from rljob_runtime.model.settings import model_settings
from rljob_runtime.model.tokenizer import Tokenizer
from rljob_runtime.roles.coordinator import Coordinator
from rljob_runtime.roles.coordinator.prompt_texts import PromptTexts, Render
from rljob_runtime.roles.reward import run_reward
from rljob_runtime.roles.rollout import Rollout
from rljob_runtime.roles.trainer import Trainer
from rljob_runtime.roles.trainer.consumed_log import open_consumed_log
from rljob_runtime.training.checkpoints import CheckpointStore
from rljob_runtime.training.registry import create_backend
from rljob_runtime.weights.create import open_store


class Repeating(MemoryStore):
    """A store on which every message of work and every event comes twice."""

    async def publish(self, channel: Channel, suffix: str, data: bytes, **options: Any) -> int:
        if channel in WORK_QUEUES:
            await super().publish(channel, suffix, data, **options)
        return await super().publish(channel, suffix, data, **options)


class Forgetful(MemoryStore):
    """A store that does not find one payload of the second micro-batch."""

    reads = 0

    async def get(self, channel: Channel, sequences: Sequence[int]) -> list[Message | None]:
        found = await super().get(channel, sequences)
        Forgetful.reads += 1
        return [None, *found[1:]] if Forgetful.reads == 2 else found


class Corrupting(MemoryStore):
    """A store that alters the bytes of one message of payloads, the third."""

    puts = 0

    async def publish(self, channel: Channel, suffix: str, data: bytes, **options: Any) -> int:
        if channel is Channel.TRAJECTORIES:
            Corrupting.puts += 1
            if Corrupting.puts == 3:
                data = data[:-5] + bytes([data[-5] ^ 1]) + data[-4:]
        return await super().publish(channel, suffix, data, **options)


class Slow(CheckpointStore):
    """A checkpoint store whose first writer of a version never comes to an end.

    Attributes:
        killed: set by the test once that writer's trainer is gone; its thread, which cannot be killed, ends then.
    """

    def __init__(self, config: JobConfig, model: Path, *, version: int, begun: Callable[[], None]) -> None:
        super().__init__(config.checkpoint_uri, model_path=model)
        self._slow, self._begun = version, begun
        self.killed = threading.Event()

    def write(self, *, version: int, **arguments: Any) -> str:
        if (version, arguments["attempt"]) == (self._slow, 1):
            self._begun()
            self.killed.wait(60)
            raise SystemExit
        return super().write(version=version, **arguments)


class Roles:
    """Starts and kills roles of one job on one in-memory server.

    Args:
        kind: of the store that coordinator, engines and trainer use.
        trainer_kind: of the trainer's, if it is another one.
        checkpoints: the trainer's, if they are special.
        weights: gives an engine's weight store by its pod, if they are special.
        around: what stands between an engine and its rollout, if anything.
        around_backend: the same of the trainer.
        prompts: makes the texts of prompts by what renders one, if they are special.
    """

    def __init__(
        self,
        config: JobConfig,
        model: Path,
        *,
        kind: type[MemoryStore] = MemoryStore,
        trainer_kind: type[MemoryStore] | None = None,
        checkpoints: CheckpointStore | None = None,
        weights: Callable[[str], WeightStore] | None = None,
        around: Callable[[Engine], Engine] = lambda engine: engine,
        around_backend: Callable[[TrainerBackend], TrainerBackend] = lambda backend: backend,
        prompts: Callable[[Render], PromptTexts] = PromptTexts,
    ) -> None:
        self.config, self.model = config, model
        self.kind, self.trainer_kind = kind, trainer_kind or kind
        self.checkpoints = checkpoints or CheckpointStore(config.checkpoint_uri, model_path=model)
        self.weights = weights or (lambda pod: open_store("Files", uri=config.weights_uri))
        self.around, self.around_backend = around, around_backend
        self.prompts = prompts
        self.server = MemoryServer()
        self.stop = asyncio.Event()
        self.tasks: dict[str, asyncio.Task[None]] = {}
        self.attempt = 0
        self._changes_of_roles: list[asyncio.Queue[PipelineSpec]] = []
        self.store = MemoryStore(self.server, subject=self.config.subject)

    def connect(self) -> MemoryStore:
        return self.kind(self.server, subject=self.config.subject)

    def coordinator(self, instance: str) -> None:
        training, held_out = open_prompts(self.config)
        role = Coordinator(
            self.config,
            self.connect(),
            open_store("Files", uri=self.config.weights_uri),
            self.prompts(
                lambda prompt, evaluation: held_out.text(prompt) if evaluation else training.text(prompt)
            ),
            instance=instance,
            changes=self._specs(),
        )
        self.tasks["coordinator"] = asyncio.create_task(role.run())

    async def _specs(self) -> AsyncIterator[RLJobSpec]:
        async for pipeline in self._changes():
            yield self.config.spec.model_copy(update={"pipeline": pipeline})

    def change(self, pipeline: PipelineSpec) -> None:
        """Change `spec.pipeline` in the configuration of all running roles."""
        for changes in self._changes_of_roles:
            changes.put_nowait(pipeline)

    async def _changes(self) -> AsyncIterator[PipelineSpec]:
        changes: asyncio.Queue[PipelineSpec] = asyncio.Queue()
        self._changes_of_roles.append(changes)
        while True:
            yield await changes.get()

    def rollout(self, pod: str, *, ready: Callable[[], None] = lambda: None) -> None:
        name = self.config.spec.rollout.engine.name
        engine = create_engine(name, model_path=self.model, options=self.config.engine_options("a"))
        role = Rollout(
            self.config,
            self.connect(),
            self.weights(pod),
            self.around(engine),
            Tokenizer(self.model),
            vocabulary=model_settings(self.model).vocabulary,
            pod=pod,
            pool="a",
            changes=self._changes(),
        )
        self.tasks[pod] = asyncio.create_task(role.run(self.stop, ready))

    def reward(self) -> None:
        self.tasks["reward"] = asyncio.create_task(
            run_reward(self.config, self.connect(), stop=self.stop, ready=lambda: None, workers=1)
        )

    def trainer(self) -> None:
        self.attempt += 1
        role = Trainer(
            self.config,
            self.trainer_kind(self.server, subject=self.config.subject),
            open_store("Files", uri=self.config.weights_uri),
            self.checkpoints,
            self.around_backend(create_backend(self.config, rank=0, world_size=1, model_path=self.model)),
            attempt=self.attempt,
            consumed_log=open_consumed_log(self.config.trainer_log_uri, attempt=self.attempt),
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
