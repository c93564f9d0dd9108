"""Logs kopf in to the API server with the same credentials that `KubeApi` uses.

kopf watches RLJobs over connections of its own. It asks its login handler for credentials when it starts, when those
that it has expire, and when the API server rejects them (401). It gives up, and the operator's process ends, when the
handler answers a rejection with equal credentials.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import kopf

from rljob_operator.cluster.kube.login import KubeLogin, LoginError

_RETRY_SECONDS = 5.0


class KopfLogin:
    """The login handler: a `KubeLogin` as kopf's `ConnectionInfo`.

    Args:
        login: shared with `KubeApi`, so that a plug-in runs once for both.
    """

    def __init__(self, login: KubeLogin) -> None:
        self._login = login
        self._given: kopf.ConnectionInfo | None = None

    async def __call__(self) -> kopf.ConnectionInfo:
        """Give kopf credentials, new ones if it was given some before that have not expired.

        Raises:
            kopf.TemporaryError: there are none; kopf calls again.
            kopf.PermanentError: kopf cannot connect as the kubeconfig says.
        """
        given = self._given
        try:
            info = await self._connection_info()
            if given is not None and _is_valid(given) and _same(info, given):
                # kopf would not ask, had the API server not rejected them.
                await self._login.renew(await self._login.configuration())
                info = await self._connection_info()
                if _same(info, given):
                    return given
        except LoginError as error:
            raise kopf.TemporaryError(str(error), delay=_RETRY_SECONDS) from error
        self._given = info
        return info

    async def _connection_info(self) -> kopf.ConnectionInfo:
        authorization = await self._login.authorization()
        configuration = await self._login.configuration()
        if configuration.tls_server_name:
            raise kopf.PermanentError("the kubeconfig has tls-server-name, which kopf does not support")
        scheme, _, token = (authorization or "").partition(" ")
        return kopf.ConnectionInfo(
            server=configuration.host,
            ca_path=configuration.ssl_ca_cert,
            insecure=not configuration.verify_ssl,
            scheme=scheme or None,
            token=token or None,
            certificate_path=configuration.cert_file,
            private_key_path=configuration.key_file,
            proxy_url=configuration.proxy,
            expiration=self._login.check_at(),
        )


def _is_valid(info: kopf.ConnectionInfo) -> bool:
    return info.expiration is None or datetime.now(UTC) < info.expiration


def _same(one: kopf.ConnectionInfo, other: kopf.ConnectionInfo) -> bool:
    return replace(one, expiration=None) == replace(other, expiration=None)
