"""kopf: login, start and end, the watch of RLJobs. All that a handler does is tell the controller what it saw.

No handler of ours is of the kind whose progress kopf has to store: what an RLJob needs follows from what is there, not
from which event came. So kopf writes no annotation and no finalizer; where it ever should, they are under our name.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Any

import kopf

from rljob_core.spec import GROUP
from rljob_operator.cluster.kube.api import KINDS, Credentials
from rljob_operator.reconcile.controller import Controller

_SERVER_TIMEOUT = 300  # an integer: it goes into the query
_INACTIVITY_TIMEOUT = 330.0  # a watch ends earlier by the server's own timeout, if it lives
_REQUEST_TIMEOUT = 15.0
_CONNECT_TIMEOUT = 5.0
_RETRIES = (0.5, 1.0, 2.0, *60 * (5.0,))  # seconds between them: an API server may be away for minutes


def credentials(settings: kopf.OperatorSettings) -> kopf.ConnectionInfo:
    """The service account's token in a pod, else the kubeconfig.

    Raises:
        kopf.LoginError: there is neither.
    """
    logger = logging.getLogger(__name__)
    found = kopf.login_with_service_account(settings=settings, logger=logger) or kopf.login_with_kubeconfig(
        settings=settings, logger=logger
    )
    if found is None:
        raise kopf.LoginError("no service account and no kubeconfig: set KUBECONFIG")
    return found


def plain(info: kopf.ConnectionInfo) -> Credentials:
    """kopf's credentials as ours."""
    return Credentials(
        server=info.server,
        ca_path=_text(info.ca_path),
        ca_data=_text(info.ca_data),
        insecure=bool(info.insecure),
        token=info.token,
        certificate_path=_text(info.certificate_path),
        certificate_data=_text(info.certificate_data),
        key_path=_text(info.private_key_path),
        key_data=_text(info.private_key_data),
    )


def _text(value: Any) -> str | None:
    return value.decode() if isinstance(value, bytes) else None if value is None else str(value)


def configure(settings: kopf.OperatorSettings) -> None:
    """The settings that a long-lived operator needs."""
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
    """Group, version and plural of a kind."""
    version, plural = KINDS[kind]
    group, _slash, number = version.rpartition("/")
    return group, number, plural


def registry(
    controller: Controller,
    *,
    started: Callable[[], Awaitable[None]],
    ended: Callable[[], Awaitable[None]],
    log_in: Callable[[kopf.OperatorSettings], kopf.ConnectionInfo] = credentials,
) -> kopf.OperatorRegistry:
    """All handlers, telling `controller`."""
    handlers = kopf.OperatorRegistry()

    @kopf.on.login(registry=handlers)
    def login(settings: kopf.OperatorSettings, **_: Any) -> kopf.ConnectionInfo:
        return log_in(settings)

    @kopf.on.startup(registry=handlers)
    async def startup(settings: kopf.OperatorSettings, **_: Any) -> None:
        configure(settings)
        await started()

    @kopf.on.cleanup(registry=handlers)
    async def cleanup(**_: Any) -> None:
        await ended()

    async def seen(*, event: kopf.RawEvent, **_: Any) -> None:
        controller.seen(event["type"], dict(event["object"]))

    kopf.on.event(*resource("RLJob"), id="seen-RLJob", registry=handlers)(seen)
    return handlers
