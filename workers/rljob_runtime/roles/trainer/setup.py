"""Puts a trainer together: the model, the backend over all ranks, the stores."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from rljob_core import worker_protocol
from rljob_core.config import JobConfig
from rljob_core.ports import MessageStore
from rljob_runtime.locations import local_path, model_folder
from rljob_runtime.roles.trainer.trainer import Trainer
from rljob_runtime.training.checkpoints import CheckpointStore
from rljob_runtime.training.registry import check_backend, create_backend, device_of
from rljob_runtime.weights.create import create_weights


async def run_rank_zero(
    config: JobConfig, store: MessageStore, stop: asyncio.Event, ready: Callable[[], None]
) -> None:
    """The rank that talks to the coordinator."""
    size = int(os.environ.get("WORLD_SIZE", "1"))
    folder = model_folder(config)
    if size > 1:
        from rljob_runtime.training.gang import join

        await asyncio.to_thread(join, device_of(check_backend(config.spec)))
    backend = await asyncio.to_thread(create_backend, config, rank=0, world_size=size, model_path=folder)
    gang = None
    if size > 1:
        from rljob_runtime.training.gang import GangBackend

        backend = gang = GangBackend(backend)
    weights = create_weights(config, "trainer")
    role = Trainer(
        config,
        store,
        weights,
        CheckpointStore(config.checkpoint_uri, model_path=folder),
        backend,
        attempt=int(os.environ[worker_protocol.ATTEMPT]),
        log_folder=local_path(config.trainer_log_uri),
    )
    with closing(weights):
        await role.run(stop, ready)
    if gang is not None:
        await asyncio.to_thread(gang.close)


def run_follower(config: JobConfig) -> None:
    """Any other rank. SIGTERM is rank 0's to answer: it still needs this one until it has saved its checkpoint."""
    from rljob_runtime.training.gang import follow, join, world

    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    rank, size = world()
    join(device_of(check_backend(config.spec)))
    backend = create_backend(config, rank=rank, world_size=size, model_path=model_folder(config))
    ready = os.environ.get(worker_protocol.READY_FILE)
    if ready:
        Path(ready).touch()
    follow(backend)
