"""A trainer backend over all ranks of a gang: rank 0 is called, the others follow the same calls in the same order.

Commands travel as bytes over `torch.distributed` (gloo): a JSON line, then the payload in the wire format or as
safetensors; nothing is pickled.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from datetime import timedelta
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from pydantic import TypeAdapter
from safetensors.torch import load as tensors_from_bytes
from safetensors.torch import save as tensors_to_bytes

from rljob_core.messages import StepStats, TrainingItem
from rljob_core.ports import TrainerBackend, TrainingSample
from rljob_runtime.wire import decode, encode

ITEMS: TypeAdapter[list[TrainingItem]] = TypeAdapter(list[TrainingItem])
IDLE = timedelta(days=7)  # a gang waits for work as long as rollouts need; a dead rank breaks the connection


def world() -> tuple[int, int]:
    """This process's rank and the number of ranks, as torchrun says."""
    return int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))


def join() -> None:
    """Meet the other ranks; blocks until all are there."""
    dist.init_process_group("gloo", timeout=IDLE)


def _send(command: str, payload: bytes = b"") -> None:
    frame = json.dumps([command, len(payload)]).encode() + b"\n" + payload
    size = torch.tensor([len(frame)])
    dist.broadcast(size, src=0)
    dist.broadcast(torch.from_numpy(np.frombuffer(frame, np.uint8).copy()), src=0)


def _receive() -> tuple[str, bytes]:
    size = torch.zeros(1, dtype=torch.int64)
    dist.broadcast(size, src=0)
    frame = torch.empty(int(size), dtype=torch.uint8)
    dist.broadcast(frame, src=0)
    head, _, payload = frame.numpy().tobytes().partition(b"\n")
    return json.loads(head)[0], payload


class GangBackend:
    """Rank 0's backend: repeats every call on the other ranks."""

    def __init__(self, own: TrainerBackend) -> None:
        self._own = own

    def load(self, tensors: Iterable[tuple[str, Any]] | None) -> None:
        """Load the same weights on all ranks."""
        if tensors is None:
            _send("load_initial")
            self._own.load(None)
            return
        held = dict(tensors)
        _send("load", tensors_to_bytes({k: v.contiguous().clone() for k, v in held.items()}))
        self._own.load(held.items())

    def load_state(self, folder: str | None) -> None:
        """Load the same optimizer state on all ranks (they share the checkpoint folder)."""
        _send("load_state", json.dumps(folder).encode())
        self._own.load_state(folder)

    def begin_step(self, step: int) -> None:
        """Start a step on all ranks."""
        _send("begin_step", str(step).encode())
        self._own.begin_step(step)

    def accumulate(self, samples: Sequence[TrainingSample]) -> None:
        """Give every rank the whole micro-batch; each takes its share."""
        items = ITEMS.dump_json([s.item for s in samples])
        _send("accumulate", items + b"\n" + encode([s.trajectory for s in samples]))
        self._own.accumulate(samples)

    def finish_step(self) -> StepStats:
        """Take the optimizer step on all ranks."""
        _send("finish_step")
        return self._own.finish_step()

    def tensors(self) -> Iterator[tuple[str, Any]]:
        """Rank 0's weights (all ranks hold the same)."""
        return self._own.tensors()

    def random_state(self) -> str:
        """Digest of rank 0's random state."""
        return self._own.random_state()

    def save(self, folder: str) -> None:
        """Write rank 0's checkpoint."""
        self._own.save(folder)

    def close(self) -> None:
        """Let the other ranks go."""
        _send("close")


def follow(own: TrainerBackend) -> None:
    """A rank above 0: do what rank 0 says until it closes."""
    while True:
        command, payload = _receive()
        match command:
            case "load_initial":
                own.load(None)
            case "load":
                own.load(tensors_from_bytes(payload).items())
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
            case "close":
                return
