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
from rljob_core.ports import MessageStore, TrainerBackend
from rljob_runtime.locations import model_folder
from rljob_runtime.process.ready import mark_ready
from rljob_runtime.roles.trainer.consumed_log import open_consumed_log
from rljob_runtime.roles.trainer.trainer import Trainer
from rljob_runtime.storage.object_access import check_usable
from rljob_runtime.storage.objects import is_object_store
from rljob_runtime.telemetry.catalogue import TrainerMetrics
from rljob_runtime.telemetry.recorder import Recorder
from rljob_runtime.training.checkpoint_base import FIELD
from rljob_runtime.training.checkpoints import open_checkpoints
from rljob_runtime.training.object_state import ObjectStateBackend
from rljob_runtime.training.registry import check_backend, create_backend, device_of
from rljob_runtime.weights.create import create_weights


async def run_rank_zero(
    config: JobConfig,
    store: MessageStore,
    stop: asyncio.Event,
    ready: Callable[[], None],
    recorder: Recorder,
) -> None:
    """The rank that talks to the coordinator."""
    recorder.enter(TrainerMetrics.SECONDS, "starting")
    if is_object_store(config.checkpoint_uri):  # before anything is computed that could not be stored
        await asyncio.to_thread(check_usable, config.checkpoint_uri, field=FIELD)
    size = int(os.environ.get("WORLD_SIZE", "1"))
    folder = model_folder(config)
    if size > 1:
        from rljob_runtime.training.gang import join

        await asyncio.to_thread(join, device_of(check_backend(config.spec)))
    backend = await asyncio.to_thread(_backend, config, rank=0, size=size, model_path=folder)
    gang = None
    if size > 1:
        from rljob_runtime.training.gang import GangBackend

        backend = gang = GangBackend(backend)
    attempt = int(os.environ[worker_protocol.ATTEMPT])
    consumed_log = await asyncio.to_thread(open_consumed_log, config.trainer_log_uri, attempt=attempt)
    weights = create_weights(config, "trainer")
    role = Trainer(
        config,
        store,
        weights,
        open_checkpoints(config.checkpoint_uri, model_path=folder),
        backend,
        attempt=attempt,
        consumed_log=consumed_log,
        recorder=recorder,
    )
    with closing(weights):
        await role.run(stop, ready)
    if gang is not None:
        await asyncio.to_thread(gang.close)


def _backend(config: JobConfig, *, rank: int, size: int, model_path: Path) -> TrainerBackend:
    """This rank's backend, which saves to where the job's checkpoints are."""
    own = create_backend(config, rank=rank, world_size=size, model_path=model_path)
    if not is_object_store(config.checkpoint_uri):
        return own
    if size == 1:
        return ObjectStateBackend(own, rank=rank)
    from rljob_runtime.training.gang import barrier

    return ObjectStateBackend(own, rank=rank, barrier=barrier)


def run_follower(config: JobConfig) -> None:
    """Any other rank. SIGTERM is rank 0's to answer: it still needs this one until it has saved its checkpoint."""
    from rljob_runtime.training.gang import follow, join, world

    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    rank, size = world()
    join(device_of(check_backend(config.spec)))
    backend = _backend(config, rank=rank, size=size, model_path=model_folder(config))
    mark_ready()
    follow(backend)
