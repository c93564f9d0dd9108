"""Opens the weight store that a job's specification asks for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

from rljob_core.config import JobConfig
from rljob_core.ports import MessageStore, WeightManifest
from rljob_core.weight_transports import WEIGHT_TRANSPORTS, WeightTransportName
from rljob_runtime.locations import model_folder
from rljob_runtime.messaging.connect import role_store
from rljob_runtime.model.tensor_files import read_model
from rljob_runtime.weights.store import StoredWeights
from rljob_runtime.weights.transport import JobStorage, Transport

#: Seconds before a message is requested or sent again: the 7.5 MB in flight may have to pass a link of 4 Mbit/s.
_ATTEMPT_SECONDS = 30.0


def open_transport(
    name: WeightTransportName, *, uri: str = "", connect: Callable[[], MessageStore] | None = None
) -> Transport:
    """Open the transport of one job's weights. Nothing is read or connected before it is used.

    Args:
        name: `spec.weights.transport`.
        uri: the job's folder or bucket, for a transport that needs one.
        connect: makes a message store on the job's streams, not yet open; for a transport that keeps weights there.

    Raises:
        SpecError: the URI has a scheme that is not supported, or whose package is not installed.
    """
    opened: Transport = resolve_name(WEIGHT_TRANSPORTS[name].opened_by)(JobStorage(uri, connect))
    return opened


def open_store(
    name: WeightTransportName,
    *,
    uri: str = "",
    connect: Callable[[], MessageStore] | None = None,
    anchor_every: int | None = None,
) -> StoredWeights:
    """Open the store of one job's weights, to be closed by the caller.

    Args:
        name: see `open_transport`, as for `uri` and `connect`.
        uri: the job's folder or bucket.
        connect: makes a message store on the job's streams.
        anchor_every: see `StoredWeights`.

    Raises:
        SpecError: see `open_transport`.
    """
    return StoredWeights(open_transport(name, uri=uri, connect=connect), anchor_every=anchor_every)


def create_weights(config: JobConfig, role: str) -> StoredWeights:
    """Open a role's weight store, to be closed by the role.

    The engines of a job that trains LoRA adapters read whole weights from it: the base model's with the adapters added.

    Raises:
        SpecError: see `open_transport`.
    """
    weights, lora = config.spec.weights, config.spec.model.lora
    connect = partial(role_store, config, role, attempt=_ATTEMPT_SECONDS)
    transport = open_transport(weights.transport, uri=config.weights_uri, connect=connect)
    if role == "rollout" and lora is not None:
        folder = model_folder(config)
        return MergedWeights(transport, base=folder, alpha=lora.alpha, anchor_every=config.spec.anchor_every)
    return StoredWeights(transport, anchor_every=config.spec.anchor_every)


class MergedWeights(StoredWeights):
    """A weight store whose `read` adds a version's adapters to the base model's weights. It is never written to.

    Args:
        transport: where the adapters' bytes are kept.
        base: folder of the base model.
        alpha: spec.model.lora.alpha.
        anchor_every: see `StoredWeights`.
    """

    def __init__(
        self, transport: Transport, *, base: Path, alpha: float, anchor_every: int | None = None
    ) -> None:
        super().__init__(transport, anchor_every=anchor_every)
        self._base = base
        self._alpha = alpha

    def read(self, manifest: WeightManifest) -> Iterator[tuple[str, Any]]:
        """Yield the base model's tensors with a version's adapters added; all adapters are verified before the first.

        Raises:
            WeightsRejected: see `StoredWeights.read`, or the adapters belong to another model.
        """
        from rljob_runtime.model.lora_weights import merged  # the coordinator must not load torch

        adapters = dict(super().read(manifest))
        yield from merged(read_model(self._base), adapters, alpha=self._alpha)
