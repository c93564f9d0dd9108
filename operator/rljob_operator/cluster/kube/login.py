"""Finds the API server and logs in to it, with the configuration loader of the official Kubernetes client.

In a pod that has a service account, `KubeLogin` uses its token, which the kubelet rotates. Elsewhere it reads the
kubeconfig: client certificates, tokens and token files, OIDC, and `exec` plug-ins, as EKS and GKE write them. An HTTP
proxy comes from the kubeconfig (`proxy-url`) or from the environment (`HTTPS_PROXY`, `NO_PROXY`).

The Kubernetes client renews credentials before they expire; `renew` reloads credentials that the API server rejects.
Both of the operator's HTTP clients, `KubeApi` and kopf, use the credentials of one `KubeLogin`.

Of the client this module uses three things that its documentation does not promise: the paths in `incluster_config`,
`KubeConfigMerger`, and the attribute `exec_plugin_expiry` of a loader. `tests/operator_/test_kube_login.py` fails where
a release changes one, and pyproject.toml admits no release that it was not run with.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from kubernetes.aio.client import Configuration
from kubernetes.aio.config import incluster_config, load_incluster_config, load_kube_config
from kubernetes.aio.config.kube_config import KubeConfigLoader, KubeConfigMerger

log = logging.getLogger(__name__)

_TOKEN = "BearerToken"  # noqa: S105 the client's name of the Authorization header's entry
_CHECK_SECONDS = 60.0  # between two looks at a token that may have changed; the client's own period, too
_SHORTEST_CHECK_SECONDS = 1.0
_LOAD_SECONDS = 60.0  # of a plug-in or an OIDC provider
_RENEWALS_APART_SECONDS = 5.0  # a plug-in takes a second of CPU, and many requests may be rejected at once


class LoginError(Exception):
    """No credentials could be loaded. The message says what is missing or which part of the kubeconfig is wrong."""


class KubeLogin:
    """The connection settings and credentials of one API server, loaded when they are first needed.

    Args:
        kubeconfig: path of a kubeconfig, or several joined by `os.pathsep`. None for the service account of this pod,
            or, where there is none, the file that `KUBECONFIG` names or `~/.kube/config`.
    """

    def __init__(self, kubeconfig: Path | str | None = None) -> None:
        self._kubeconfig = kubeconfig
        self._loaded: Configuration | None = None
        self._loader: KubeConfigLoader | None = None
        self._loaded_at = 0.0
        self._check_at = 0.0
        self._lock = asyncio.Lock()

    async def configuration(self) -> Configuration:
        """The current configuration, which stays the same object until `renew` replaces it.

        Raises:
            LoginError: it could not be loaded.
        """
        if self._loaded is None:
            async with self._lock:
                if self._loaded is None:
                    self._loaded = await self._load()
        return self._loaded

    async def renew(self, rejected: Configuration) -> Configuration:
        """Replace a configuration whose credentials the API server rejected, and return the current one.

        That is the rejected one where it was loaded a moment ago: loading it again would change nothing.

        Raises:
            LoginError: no new one could be loaded; the rejected one stays the current one.
        """
        async with self._lock:
            old = self._loaded is rejected and time.monotonic() - self._loaded_at > _RENEWALS_APART_SECONDS
            if self._loaded is None or old:
                self._loaded = await self._load()
            return self._loaded

    async def authorization(self) -> str | None:
        """The value of the Authorization header, None where a client certificate or nothing identifies us.

        Raises:
            LoginError: there are no credentials, or their file became unreadable.
        """
        configuration = await self.configuration()
        try:
            header: str | None = await configuration.get_api_key_with_prefix(_TOKEN)
        except Exception as error:  # what a loader raises is not limited to its ConfigException
            raise LoginError(str(error)) from error
        return header

    def check_at(self) -> datetime | None:
        """When a client that keeps a copy of the token has to ask for it again; None without a token."""
        if self._loaded is None or _TOKEN not in self._loaded.api_key:
            return None
        left = _CHECK_SECONDS if self._loader is None else self._check_at - time.monotonic()
        return datetime.now(UTC) + timedelta(seconds=max(left, 0.0))

    async def _load(self) -> Configuration:
        configuration = Configuration()
        self._loaded_at = time.monotonic()
        try:
            if self._kubeconfig is None and _has_service_account():
                self._loader = None
                load_incluster_config(client_configuration=configuration)
            else:
                async with asyncio.timeout(_LOAD_SECONDS):
                    await self._load_kubeconfig(configuration)
        except LoginError:
            raise
        except TimeoutError as error:
            raise LoginError(f"loading the credentials took longer than {_LOAD_SECONDS:.0f} s") from error
        except Exception as error:  # what a loader raises is not limited to its ConfigException
            raise LoginError(str(error)) from error
        # The pool is not limited: each watch keeps a connection, and there are a dozen for each namespace.
        configuration.connection_pool_maxsize = 0
        # With `trust_env`, aiohttp would look for proxies and passwords (.netrc) in two threads at each request.
        configuration.client_session_kwargs = {"trust_env": False}
        configuration.proxy = configuration.proxy or _proxy_of_environment(configuration.host)
        return configuration

    async def _load_kubeconfig(self, configuration: Configuration) -> None:
        files = str(self._kubeconfig or os.environ.get("KUBECONFIG") or "~/.kube/config")
        if not _any_exists(files):
            raise LoginError("no service account and no kubeconfig: set KUBECONFIG")
        loader = await load_kube_config(
            config_file=files, client_configuration=configuration, persist_config=False
        )
        if _TOKEN not in configuration.api_key and not configuration.cert_file and _has_plugin(files, loader):
            # The loader logs why, and would continue as an anonymous user.
            raise LoginError(
                "the exec plug-in of the kubeconfig gave no credentials: its error is in the log"
            )
        self._loader = loader
        self._plan_check()
        configuration.refresh_api_key_hook = self._refresh

    async def _refresh(self, configuration: Configuration) -> None:
        """Called by the client before each request that has a token: renew the token if it is about to expire.

        The loader decides: it runs a plug-in again, or asks the OIDC provider, shortly before the token expires, and
        reads a token file each time.
        """
        if time.monotonic() < self._check_at:
            return
        async with self._lock:
            if time.monotonic() < self._check_at or self._loader is None or configuration is not self._loaded:
                return
            try:
                async with asyncio.timeout(_LOAD_SECONDS):
                    await self._loader.load_and_set(configuration)
            except Exception as error:
                log.warning("the token was not renewed: %s", str(error) or type(error).__name__)
            self._plan_check()

    def _plan_check(self) -> None:
        """Set the time of the next look at the token: in half of its remaining lifetime, at most in a minute."""
        seconds = _CHECK_SECONDS
        expiry: datetime | None = getattr(self._loader, "exec_plugin_expiry", None)
        if expiry is not None:
            left = (expiry - datetime.now(UTC)).total_seconds()
            seconds = min(max(left / 2, _SHORTEST_CHECK_SECONDS), _CHECK_SECONDS)
        self._check_at = time.monotonic() + seconds


def _has_service_account() -> bool:
    return Path(incluster_config.SERVICE_TOKEN_FILENAME).exists()


def _any_exists(files: str) -> bool:
    return any(Path(file).expanduser().exists() for file in files.split(os.pathsep) if file)


def _has_plugin(files: str, loader: KubeConfigLoader) -> bool:
    """Whether the current context's user is an `exec` plug-in."""
    name = loader.current_context["context"].get("user")
    user = KubeConfigMerger(files).config["users"].get_with_name(name, safe=True)
    return user is not None and "exec" in user["user"]


def _proxy_of_environment(server: str) -> str | None:
    address = urlsplit(server)
    if proxy_bypass(address.hostname or ""):
        return None
    return getproxies().get(address.scheme)
