"""Sends tensors between ranks one at a time, so that no rank has more than one whole tensor besides its own weights."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from rljob_runtime.model.tensor_bytes import bytes_of, size_of, tensor_of
from rljob_runtime.model.tensor_files import layout_of


def send_bytes(payload: bytes) -> None:
    """Rank 0: broadcast bytes, for `receive_bytes` of the other ranks."""
    dist.broadcast(torch.tensor([len(payload)]), src=0)
    if payload:
        dist.broadcast(torch.from_numpy(np.frombuffer(payload, np.uint8).copy()), src=0)


def receive_bytes() -> bytes:
    """Any other rank: what rank 0 broadcasts."""
    size = torch.zeros(1, dtype=torch.int64)
    dist.broadcast(size, src=0)
    payload = torch.empty(int(size), dtype=torch.uint8)
    if len(payload):
        dist.broadcast(payload, src=0)
    received: bytes = payload.numpy().tobytes()
    return received


def broadcast_tensors(tensors: Iterable[tuple[str, Any]] | None) -> Iterator[tuple[str, Any]]:
    """Rank 0's tensors, on every rank; CPU tensors that are not to be changed. All ranks exhaust it.

    Args:
        tensors: on rank 0, what to broadcast; None on the others.
    """
    if tensors is None:
        yield from _received()
        return
    alone = not dist.is_initialized() or dist.get_world_size() == 1
    for name, tensor in tensors:
        if not alone:
            layout = layout_of(name, tensor)
            send_bytes(json.dumps([name, layout.dtype, layout.shape]).encode())
            if layout.size:
                dist.broadcast(torch.from_numpy(bytes_of(tensor)), src=0)
        yield name, tensor
    if not alone:
        send_bytes(b"")


def _received() -> Iterator[tuple[str, Any]]:
    while head := receive_bytes():
        name, dtype, shape = json.loads(head)
        data = torch.empty(size_of(dtype, tuple(shape)), dtype=torch.uint8)
        if len(data):
            dist.broadcast(data, src=0)
        yield name, tensor_of(data.numpy(), dtype=dtype, shape=tuple(shape))


def gathered(own: Tensor, *, part: int, size: int) -> Tensor:
    """The whole of a tensor that is divided between the ranks, on every rank; all call it.

    Every part is received where it belongs, so that a rank holds its part and the whole, and nothing besides.

    Args:
        own: [at most `part`], this rank's elements; contiguous.
        part: elements that each rank has, the last ones fewer or none.
        size: elements in all.

    Returns:
        [size], on the device of `own`.
    """
    whole = torch.empty(size, dtype=own.dtype, device=own.device)
    for rank in range(dist.get_world_size()):
        place = whole[rank * part : (rank + 1) * part]
        if rank == dist.get_rank():
            place.copy_(own)
        if len(place):
            # As bytes: not every backend has every dtype.
            dist.broadcast(place.view(torch.uint8), src=rank)
    return whole
