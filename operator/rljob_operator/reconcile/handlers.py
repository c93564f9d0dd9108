"""Registers the operator's handlers with kopf: login, start, end, and the watch of RLJobs.

The watch's handler passes each event to the controller and does nothing else. It is an event handler (`kopf.on.event`),
of which kopf stores no progress, because what an RLJob needs follows from the stored objects and not from the event
that arrived. So kopf writes no annotation and no finalizer; if it ever did, they would carry the name of our group.
kopf sees no more of an RLJob than its identity (`kopf_sessions`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import kopf

from rljob_core.spec import GROUP
from rljob_operator.cluster.kube.kinds import KINDS
from rljob_operator.reconcile.controller import Controller

_SERVER_TIMEOUT = 300  # an integer: it goes into the query
_INACTIVITY_TIMEOUT = 330.0  # a watch ends earlier by the server's own timeout, if it lives
_REQUEST_TIMEOUT = 15.0
_CONNECT_TIMEOUT = 5.0
_RETRIES = (0.5, 1.0, 2.0, *60 * (5.0,))  # seconds between them: an API server may be away for minutes


def configure(settings: kopf.OperatorSettings) -> None:
    """Set what an operator needs that runs for months: names of its own, time limits, retries, no peers."""
    settings.persistence.finalizer = f"{GROUP}/kopf"
    settings.persistence.progress_storage = kopf.AnnotationsProgressStorage(prefix=f"kopf.{GROUP}")
    settings.persistence.diffbase_storage = kopf.AnnotationsDiffBaseStorage(prefix=f"kopf.{GROUP}")
    settings.posting.enabled = False  # our events are the controller's
    settings.peering.standalone = True
    settings.scanning.disabled = True
    settings.watching.server_timeout = _SERVER_TIMEOUT
    settings.watching.client_timeout = _SERVER_TIMEOUT + 10.0
    settings.watching.inactivity_timeout = _INACTIVITY_TIMEOUT
    settings.watching.connect_timeout = _CONNECT_TIMEOUT
    settings.networking.request_timeout = _REQUEST_TIMEOUT
    settings.networking.connect_timeout = _CONNECT_TIMEOUT
    settings.networking.error_backoffs = _RETRIES
    settings.queueing.idle_timeout = 1.0


def resource(kind: str) -> tuple[str, str, str]:
    """API group, version and plural of a kind, as kopf selects resources."""
    version, plural = KINDS[kind]
    group, _slash, number = version.rpartition("/")
    return group, number, plural


def registry(
    controller: Controller,
    *,
    started: Callable[[], Awaitable[None]],
    ended: Callable[[], Awaitable[None]],
    log_in: Callable[[], Awaitable[kopf.AiohttpSession]],
) -> kopf.OperatorRegistry:
    """All handlers.

    Args:
        controller: receives the events of RLJobs.
        started: called when the operator starts, before kopf logs in.
        ended: called when it ends.
        log_in: gives kopf its credentials; called again when they expire or are rejected.
    """
    handlers = kopf.OperatorRegistry()

    @kopf.on.login(registry=handlers)
    async def login(**_: Any) -> kopf.AiohttpSession:
        return await log_in()

    @kopf.on.startup(registry=handlers)
    async def startup(settings: kopf.OperatorSettings, **_: Any) -> None:
        configure(settings)
        await started()

    @kopf.on.cleanup(registry=handlers)
    async def cleanup(**_: Any) -> None:
        await ended()

    async def seen(*, event: kopf.RawEvent, **_: Any) -> None:
        controller.seen_job(event["type"], dict(event["object"]))

    kopf.on.event(*resource("RLJob"), id="seen-RLJob", registry=handlers)(seen)
    return handlers
