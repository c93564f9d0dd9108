"""`python -m rljob_operator.main` runs the operator, with `--site=NAME` that of a site.

`settings.py` lists its environment variables.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import json
import logging
import os
import signal
import sys
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any, cast

import kopf

from rljob_core.errors import SpecError
from rljob_operator.cluster.kube.api import FIELD_MANAGER, KubeApi
from rljob_operator.cluster.kube.login import KubeLogin
from rljob_operator.decisions.leadership import LeadershipLost
from rljob_operator.reconcile.controller import Controller
from rljob_operator.reconcile.handlers import registry
from rljob_operator.reconcile.hub_borders import HubBorders
from rljob_operator.reconcile.job_rules_folder import JobRulesFolder
from rljob_operator.reconcile.job_streams import JobStreams
from rljob_operator.reconcile.kopf_sessions import KopfLogin, KopfSessions
from rljob_operator.reconcile.metrics import MetricsFeed
from rljob_operator.reconcile.nats_connection import NatsConnection
from rljob_operator.reconcile.site_controller import SiteController
from rljob_operator.settings import Settings
from rljob_operator.standby import Standby
from rljob_operator.telemetry import OperatorMetrics, Probes

log = logging.getLogger(__name__)

_CANCEL_AGAIN_SECONDS = 5.0
_COLLECT_AFTER = 10_000
"""Objects that are made before garbage is looked for: each reconcile makes thousands, of which hardly any stay."""


async def operate(settings: Settings, *, stop: asyncio.Event, ready: asyncio.Event | None = None) -> None:
    """Run the operator until `stop` is set.

    Args:
        settings: of this operator.
        stop: set by the caller to end it, and by the operator itself when a part of it has failed.
        ready: set by the operator once it watches RLJobs.
    """
    telemetry = OperatorMetrics()
    running = ready or asyncio.Event()
    login = KubeLogin()
    standby = Standby(settings, login, telemetry)
    if not await standby.ends(stop):
        await standby.close()
        return
    api = _api(login, telemetry, standby)
    connection = _nats(settings, standby)
    issuer = settings.defaults.issuer
    borders = None if issuer is None else HubBorders(connection, issuer)
    controller = Controller(
        api,
        settings.defaults,
        connection=connection,
        metrics=MetricsFeed(connection, issuer),
        streams=JobStreams(
            connection,
            issuer,
            borders=borders,
            most=settings.nats_job_bytes,
            most_of_namespace=settings.nats_namespace_bytes,
        ),
        telemetry=telemetry,
        rules=JobRulesFolder(settings.job_rules),
        notice_taints=settings.notice_taints,
        namespaces=settings.namespaces,
        workers=settings.workers,
    )
    probes = Probes(
        telemetry, stalled=controller.stalled, ready=running.is_set, refresh=controller.refresh_metrics
    )
    tasks: list[asyncio.Task[None]] = []

    async def started() -> None:
        tasks.extend(asyncio.create_task(work()) for work in (connection.run, controller.run, standby.renew))
        port = await probes.start(settings.probe_host, settings.probe_port)
        log.info("probes and metrics on port %d", port)

    async def ended() -> None:
        await _cancelled(tasks)
        await probes.stop()
        await api.close()
        await standby.close()

    handlers = registry(controller, started=started, ended=ended, log_in=KopfSessions(KopfLogin(login)))
    work = asyncio.create_task(
        kopf.operator(
            registry=handlers,
            # Nobody reads it, as there are no peers. Without it, kopf looks for a user name, and the user of a
            # container may have none. It is a string; kopf does not export the name of its type.
            identity=cast("Any", FIELD_MANAGER),
            standalone=True,
            clusterwide=not settings.namespaces,
            namespaces=settings.namespaces,
            stop_flag=stop,
            ready_flag=running,
        )
    )
    asked = asyncio.create_task(stop.wait())
    # If one task ends, the whole process ends, so that the kubelet restarts it with all tasks.
    while not asked.done() and not work.done() and not any(task.done() for task in tasks):
        await asyncio.wait({asked, work, *tasks}, return_when=asyncio.FIRST_COMPLETED, timeout=1.0)
    stop.set()
    await work
    asked.cancel()
    for task in tasks:
        if not task.cancelled():
            task.result()


async def operate_site(settings: Settings, *, stop: asyncio.Event) -> None:
    """Run the operator of a site until `stop` is set.

    Args:
        settings: of this operator, with the name of the site.
        stop: set by the caller to end it.
    """
    telemetry = OperatorMetrics()
    login = KubeLogin()
    standby = Standby(settings, login, telemetry)
    if not await standby.ends(stop):
        await standby.close()
        return
    api = _api(login, telemetry, standby)
    connection = _nats(settings, standby)
    controller = SiteController(
        api,
        settings.defaults,
        site=settings.site,
        connection=connection,
        telemetry=telemetry,
        notice_taints=settings.notice_taints,
        namespaces=settings.namespaces,
        workers=settings.workers,
    )
    probes = Probes(
        telemetry,
        stalled=controller.stalled,
        ready=lambda: controller.ready,
        refresh=controller.refresh_metrics,
    )
    tasks = [asyncio.create_task(work()) for work in (connection.run, controller.run, standby.renew)]
    port = await probes.start(settings.probe_host, settings.probe_port)
    log.info("operator of Site %s; probes and metrics on port %d", settings.site, port)
    asked = asyncio.create_task(stop.wait())
    # If one task ends, the whole process ends, so that the kubelet restarts it with all tasks.
    await asyncio.wait({asked, *tasks}, return_when=asyncio.FIRST_COMPLETED)
    ended = [task for task in tasks if task.done()]
    await _cancelled([asked, *tasks])
    await probes.stop()
    await api.close()
    await standby.close()
    for task in ended:
        task.result()


def _api(login: KubeLogin, telemetry: OperatorMetrics, standby: Standby) -> KubeApi:
    """The requests of a process that works, which writes nothing once it may no longer work."""
    return KubeApi(
        login, counted=telemetry.count_request, write_seconds=standby.write_seconds, agent=standby.agent
    )


def _nats(settings: Settings, standby: Standby) -> NatsConnection:
    return NatsConnection(
        settings.defaults.nats_url,
        credentials=settings.nats_credentials,
        authority=settings.nats_authority,
        allowed=standby.leads,
    )


async def _cancelled(tasks: Iterable[asyncio.Task[Any]]) -> None:
    pending = {task for task in tasks if not task.done()}
    while pending:  # again: nats-py waits by `asyncio.wait_for`, which may swallow one before Python 3.12
        for task in pending:
            task.cancel()
        _, pending = await asyncio.wait(pending, timeout=_CANCEL_AGAIN_SECONDS)


class _JsonFormatter(logging.Formatter):
    """Formats each log record as one line of JSON."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line)


def _log(settings: Settings) -> None:
    handler = logging.StreamHandler()
    if settings.log_format == "json":
        handler.setFormatter(_JsonFormatter())
    else:
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=settings.log_level, handlers=[handler], force=True)
    logging.getLogger("kopf").setLevel(logging.WARNING)


def _settings(arguments: Sequence[str]) -> Settings:
    """The settings, by the environment and the command line.

    Raises:
        SpecError: one of them is missing or wrong.
    """
    parser = argparse.ArgumentParser(prog="rljob-operator")
    parser.add_argument("--site", help="run the pools of this Site, in its own cluster, instead of RLJobs")
    given = parser.parse_args(arguments)
    site = {} if given.site is None else {"RLJOB_SITE": given.site}
    return Settings.read({**os.environ, **site})


def main() -> int:
    """Run the operator until a signal ends it; returns the exit code."""
    try:
        settings = _settings(sys.argv[1:])
    except SpecError as error:
        print(f"error: {error}", file=sys.stderr)  # noqa: T201
        return 2
    _log(settings)
    gc.set_threshold(_COLLECT_AFTER)
    gc.freeze()  # what the imports have made stays, and is most of all objects: no collection has to look at it

    async def run() -> None:
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop.set)
        await (operate_site if settings.site else operate)(settings, stop=stop)

    try:
        with contextlib.suppress(KeyboardInterrupt):
            asyncio.run(run())
    except LeadershipLost as error:
        log.critical("ends, so that its container begins as one that stands by: %s", error)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
