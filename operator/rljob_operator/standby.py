"""A process of the operator stands by until no other one works, and then works until it loses the Lease."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from uuid import uuid4

from rljob_operator.cluster.kube.api import FIELD_MANAGER, KubeApi
from rljob_operator.cluster.kube.login import KubeLogin
from rljob_operator.cluster.port import Ref
from rljob_operator.decisions.leadership import LeaseHolder
from rljob_operator.reconcile.leader_election import REQUEST_SECONDS, LeaderElection
from rljob_operator.settings import Settings
from rljob_operator.telemetry import OperatorMetrics, Probes

log = logging.getLogger(__name__)


class Standby:
    """Whether this process may work: always, where its settings name no Lease.

    Args:
        settings: of the operator.
        login: to the API server.
        telemetry: of the process.
    """

    def __init__(self, settings: Settings, login: KubeLogin, telemetry: OperatorMetrics) -> None:
        self._settings = settings
        self._telemetry = telemetry
        self._election: LeaderElection | None = None
        self.agent = f"{FIELD_MANAGER}/{settings.pod}" if settings.pod else FIELD_MANAGER
        # Connections of its own: renewals do not wait behind other requests.
        self._api = KubeApi(login, counted=telemetry.count_request, agent=self.agent, timeout=REQUEST_SECONDS)
        if settings.lease:
            self._election = LeaderElection(
                self._api,
                Ref("Lease", settings.pod_namespace, settings.lease),
                LeaseHolder(settings.pod, uuid4().hex[:8]),
                changed=telemetry.leader.set,
            )
        telemetry.leader.set(not settings.lease)

    @property
    def write_seconds(self) -> Callable[[], float] | None:
        """See `KubeApi`."""
        return None if self._election is None else self._election.write_seconds

    def leads(self) -> bool:
        """Whether this process may work now."""
        return self._election is None or self._election.leads()

    async def ends(self, stop: asyncio.Event) -> bool:
        """Wait until this process may work, and answer probes meanwhile; False if `stop` was set before."""
        if self._election is None:
            return True
        probes = Probes(self._telemetry, stalled=lambda: "", ready=lambda: True, refresh=lambda: None)
        port = await probes.start(self._settings.probe_host, self._settings.probe_port)
        log.info("probes and metrics on port %d", port)
        try:
            return await self._election.won(stop)
        finally:
            await probes.stop()

    async def renew(self) -> None:
        """Keep the Lease until cancelled.

        Raises:
            LeadershipLost: this process may no longer work.
        """
        if self._election is None:
            await asyncio.Event().wait()
        else:
            await self._election.run()

    async def close(self) -> None:
        """Give the Lease back, if this process has it: after its last write."""
        if self._election is not None:
            await self._election.release()
        await self._api.close()
