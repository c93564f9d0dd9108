"""The weight store that a job's specification asks for."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from rljob_core.config import JobConfig
from rljob_core.ports import MessageStore
from rljob_runtime.locations import model_folder
from rljob_runtime.messaging.connect import message_store
from rljob_runtime.weights.files import files_transport
from rljob_runtime.weights.merged import MergedWeights
from rljob_runtime.weights.nats import MessageTransport
from rljob_runtime.weights.store import StoredWeights
from rljob_runtime.weights.transport import Transport

#: Until a message is asked for, or sent, again: what is in flight (15 MB) may have to pass a link of 4 Mbit/s.
_ATTEMPT_SECONDS = 30.0


def weights_transport(transport: str, uri: str, connect: Callable[[], MessageStore]) -> Transport:
    """What carries the weights of a job.

    Args:
        transport: `spec.weights.transport`.
        uri: where `Files` are.
        connect: makes a message store, not yet open, on the job's streams; for `Nats`.

    Raises:
        SpecError: the URI has a scheme that is not supported, or whose package is not installed.
    """
    return MessageTransport(connect) if transport == "Nats" else files_transport(uri)


def create_weights(config: JobConfig, role: str) -> StoredWeights:
    """A role's weight store, to be closed by the role. Where adapters are trained, engines read whole weights from it.

    Raises:
        SpecError: see `weights_transport`.
    """
    weights = config.spec.weights
    connect = partial(message_store, config, role, attempt=_ATTEMPT_SECONDS)
    transport = weights_transport(weights.transport, config.weights_uri, connect)
    lora = config.spec.model.lora
    if role == "rollout" and lora is not None:
        folder = model_folder(config)
        return MergedWeights(transport, base=folder, alpha=lora.alpha, anchor_every=weights.anchor_every)
    return StoredWeights(transport, anchor_every=weights.anchor_every)
