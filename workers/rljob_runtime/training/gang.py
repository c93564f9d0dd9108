"""Runs a trainer backend on all ranks of a gang: the trainer calls rank 0, and the other ranks repeat its calls.

Rank 0 sends commands as bytes over `torch.distributed` (gloo): a JSON line, then the payload in the wire format. It
sends weights one tensor at a time. Nothing is pickled.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from pydantic import TypeAdapter

from rljob_core.errors import StorageRefused
from rljob_core.messages import StepStats, TrainingItem
from rljob_core.ports import TrainerBackend, TrainingSample
from rljob_runtime.messaging.wire import decode, encode
from rljob_runtime.model.tensor_files import TensorStream
from rljob_runtime.training.broadcast import broadcast_tensors, receive_bytes, send_bytes

ITEMS: TypeAdapter[list[TrainingItem]] = TypeAdapter(list[TrainingItem])
IDLE = timedelta(
    days=7
)  # ranks may wait long for rollouts; a dead rank needs no timeout: it breaks the connection


def world() -> tuple[int, int]:
    """Return this process's rank and the number of ranks, from torchrun's environment variables."""
    return int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))


def join(device: str) -> None:
    """Join the process group; blocks until all ranks have joined.

    Args:
        device: `cpu`, or `cuda`: each rank of a pod then uses the GPU with its local rank.
    """
    dist.init_process_group(_collectives(device), timeout=IDLE)


def join_alone(device: str) -> None:
    """Create a process group of one rank if there is no group: some libraries require a group even for one rank."""
    if not dist.is_initialized():
        store = dist.HashStore()
        dist.init_process_group(_collectives(device), store=store, rank=0, world_size=1, timeout=IDLE)


def barrier() -> None:
    """Return once all ranks have called this."""
    dist.all_reduce(torch.zeros(1, dtype=torch.int64))


def _collectives(device: str) -> str:
    if device != "cuda":
        return "gloo"
    torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    return "cpu:gloo,cuda:nccl"


def _send(command: str, payload: bytes = b"") -> None:
    send_bytes(json.dumps(command).encode() + b"\n" + payload)


def _receive() -> tuple[str, bytes]:
    head, _, payload = receive_bytes().partition(b"\n")
    return json.loads(head), payload


class GangBackend:
    """The backend of rank 0, which sends every call to the other ranks as well."""

    def __init__(self, own: TrainerBackend) -> None:
        self._own = own

    def load(self, tensors: Iterable[tuple[str, Any]] | None) -> None:
        """Load the same weights on all ranks, one tensor at a time."""
        if tensors is None:
            _send("load_initial")
            self._own.load(None)
            return
        _send("load")
        self._own.load(broadcast_tensors(tensors))

    def load_state(self, folder: str | None) -> None:
        """Load the same optimizer state on all ranks (they share the checkpoint's folder, or each pod has a copy)."""
        _send("load_state", json.dumps(folder).encode())
        self._own.load_state(folder)

    def begin_step(self, step: int) -> None:
        """Start a step on all ranks."""
        _send("begin_step", str(step).encode())
        self._own.begin_step(step)

    def accumulate(self, samples: Sequence[TrainingSample]) -> None:
        """Send the micro-batch to every rank; each rank computes its own share."""
        items = ITEMS.dump_json([s.item for s in samples])
        _send("accumulate", items + b"\n" + encode([s.trajectory for s in samples]))
        self._own.accumulate(samples)

    def finish_step(self) -> StepStats:
        """Take the optimizer step on all ranks."""
        _send("finish_step")
        return self._own.finish_step()

    def tensors(self) -> Iterator[tuple[str, Any]]:
        """Yield the weights; the caller must read all of them, because all ranks take part in gathering each tensor."""
        own = self._own.tensors()
        return TensorStream(own.layouts, _together(own)) if isinstance(own, TensorStream) else _together(own)

    def random_state(self) -> str:
        """Return a digest of rank 0's random state."""
        return self._own.random_state()

    def save(self, folder: str) -> None:
        """Write every rank's part of the checkpoint; returns once all ranks have written theirs.

        Raises:
            OSError, StorageRefused: a rank could not write its part.
        """
        _send("save", folder.encode())
        _save_part(self._own, folder)

    def close(self) -> None:
        """End `follow` on the other ranks."""
        _send("close")


def follow(own: TrainerBackend) -> None:
    """Execute rank 0's commands on another rank until rank 0 closes the gang."""
    while True:
        command, payload = _receive()
        match command:
            case "load_initial":
                own.load(None)
            case "load":
                own.load(broadcast_tensors(None))
            case "load_state":
                own.load_state(json.loads(payload))
            case "begin_step":
                own.begin_step(int(payload))
            case "accumulate":
                items, _, data = payload.partition(b"\n")
                pairs = zip(ITEMS.validate_json(items), decode(data), strict=True)
                own.accumulate([TrainingSample(i, t) for i, t in pairs])
            case "finish_step":
                own.finish_step()
            case "tensors":
                for _ in own.tensors():
                    pass
            case "save":
                _save_part(own, payload.decode())
            case "close":
                return


def _together(own: Iterator[tuple[str, Any]]) -> Iterator[tuple[str, Any]]:
    _send("tensors")
    yield from own


def _save_part(own: TrainerBackend, folder: str) -> None:
    """Write this rank's part of a checkpoint, and raise an error on every rank if any rank failed."""
    refusal: OSError | StorageRefused | None = None
    try:
        own.save(folder)
    except (OSError, StorageRefused) as error:
        refusal = error
    refused = torch.tensor([refusal is not None], dtype=torch.int64)
    dist.all_reduce(refused)
    if refusal is not None:
        raise refusal
    if int(refused):
        raise OSError(f"{int(refused)} other ranks could not write their parts")
