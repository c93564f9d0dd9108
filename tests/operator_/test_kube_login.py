"""Logging in to the API server: exec plug-ins, tokens that are rotated, expire or are revoked, and proxies.

Revoked tokens are real ones: the API server refuses a service account's token once the Secret that it was bound to is
deleted (and what it remembers of the token, for ten seconds, is over).
"""

from __future__ import annotations

import asyncio
import inspect
import json
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import kopf
import pytest
from e2e.harness.fixtures import SharedControlPlane
from e2e.harness.kubectl import Kubectl
from e2e.harness.nats_server import EmbeddedServer
from installation import installed
from kubeconfigs import cluster_of, write_kubeconfig
from kubernetes.aio.config import incluster_config
from operators import Namespace, Operator, children_of, manifest
from tests.waiting import until

from rljob_operator.cluster.kube import login as kube_login
from rljob_operator.cluster.kube.api import KubeApi
from rljob_operator.cluster.kube.errors import ApiError
from rljob_operator.cluster.kube.login import KubeLogin, LoginError
from rljob_operator.cluster.port import Ref
from rljob_operator.reconcile.kopf_sessions import KopfLogin

pytestmark = pytest.mark.xdist_group("operator")

_PLUGIN = """
import json, pathlib
folder = pathlib.Path({folder!r})
with (folder / "runs").open("a") as runs:
    runs.write("ran\\n")
status = json.loads((folder / "status").read_text())
print(json.dumps({{"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "status": status}}))
"""
KUBERNETES = Ref("Service", "default", "kubernetes")
"""A Service that every API server makes for itself."""


class Plugin:
    """A program that prints credentials, as `aws eks get-token` and `gke-gcloud-auth-plugin` do."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        (folder / "plugin.py").write_text(_PLUGIN.format(folder=str(folder)))
        (folder / "runs").touch()

    @property
    def runs(self) -> int:
        return len((self._folder / "runs").read_text().splitlines())

    def prints(self, token: str, *, expires_in: float) -> None:
        expiry = datetime.now(UTC) + timedelta(seconds=expires_in)
        status = {"token": token, "expirationTimestamp": expiry.strftime("%Y-%m-%dT%H:%M:%SZ")}
        (self._folder / "status").write_text(json.dumps(status))

    def kubeconfig(self, cluster: dict[str, str]) -> Path:
        """As `aws eks update-kubeconfig` writes it."""
        plugin = {
            "apiVersion": "client.authentication.k8s.io/v1",
            "command": sys.executable,
            "args": [str(self._folder / "plugin.py")],
            "env": [{"name": "PYTHONSAFEPATH", "value": "1"}],
            "interactiveMode": "IfAvailable",
            "provideClusterInfo": False,
        }
        return write_kubeconfig(self._folder / "kubeconfig", cluster, {"exec": plugin})


class Tokens:
    """Tokens of one service account, an administrator, each of which can be revoked."""

    def __init__(self, kubectl: Kubectl, namespace: str) -> None:
        self._kubectl = kubectl.within(namespace)
        self._name = f"admin-{namespace}"
        self._kubectl("create", "serviceaccount", "admin")
        account = f"--serviceaccount={namespace}:admin"
        kubectl("create", "clusterrolebinding", self._name, "--clusterrole=cluster-admin", account)

    def issue(self, name: str) -> str:
        self._kubectl("create", "secret", "generic", name)
        return self._kubectl(
            "create", "token", "admin", "--bound-object-kind=Secret", f"--bound-object-name={name}"
        ).strip()

    def revoke(self, name: str, token: str, folder: Path) -> None:
        """Return once the API server refuses the token."""
        self._kubectl("delete", "secret", name)
        file = write_kubeconfig(folder / "revoked", cluster_of(self._kubectl.kubeconfig), {"token": token})
        old = Kubectl(self._kubectl.program, file)
        until(lambda: not old.succeeds("get", "--raw=/api"))

    def close(self) -> None:
        self._kubectl("delete", "clusterrolebinding", self._name)


@pytest.fixture
def tokens(control_plane: SharedControlPlane, namespace: str) -> Iterator[Tokens]:
    tokens = Tokens(control_plane.kubectl, namespace)
    yield tokens
    tokens.close()


@pytest.fixture
def plugin(tmp_path: Path) -> Plugin:
    return Plugin(tmp_path)


@pytest.fixture
def nats(tmp_path: Path) -> Iterator[EmbeddedServer]:
    server = EmbeddedServer(tmp_path / "nats")
    asyncio.run(server.start())
    yield server
    asyncio.run(server.kill())


@pytest.mark.kube
def test_the_operator_starts_with_an_exec_plugin_and_outlives_its_tokens(
    tmp_path: Path, plugin: Plugin, nats: EmbeddedServer
) -> None:
    with installed(tmp_path / "control-plane") as control_plane:
        kubectl = control_plane.kubectl
        kubectl("create", "namespace", "team")
        tokens = Tokens(kubectl, "team")
        first = tokens.issue("first")
        plugin.prints(first, expires_in=3600)
        watched = Namespace(kubectl.within("team"))
        kubeconfig = plugin.kubeconfig(cluster_of(control_plane.kubeconfig))
        with Operator(kubeconfig, nats.url, "team", tmp_path / "operator.log") as operator:
            watched.apply(manifest())
            until(lambda: watched.children() == children_of("sums"))
            assert plugin.runs == 1  # for kopf's connections and for ours
            plugin.prints(tokens.issue("second"), expires_in=3600)
            tokens.revoke("first", first, tmp_path)
            # Streams that are open stay open, whatever becomes of their token: end them all.
            control_plane.restart_api_server()
            watched.apply({**manifest(), "metadata": {"name": "others"}})
            until(lambda: watched.children() == children_of("sums") | children_of("others"))  # kopf's watch
            watched("delete", "deployment", "sums-reward")
            until(lambda: watched.children() == children_of("sums") | children_of("others"))  # ours
            assert 2 <= plugin.runs <= 4
            assert operator.runs


async def test_a_token_is_renewed_before_it_expires(
    control_plane: SharedControlPlane, tokens: Tokens, plugin: Plugin, tmp_path: Path
) -> None:
    first = tokens.issue("first")
    plugin.prints(first, expires_in=8)
    statuses: list[int] = []
    login = KubeLogin(plugin.kubeconfig(cluster_of(control_plane.kubeconfig)))
    api = KubeApi(login, counted=lambda _verb, _kind, status: statuses.append(status))
    assert await api.get(KUBERNETES) is not None
    assert await api.get(KUBERNETES) is not None
    assert plugin.runs == 1
    due = login.check_at()
    assert due is not None
    assert due < datetime.now(UTC) + timedelta(seconds=5)
    plugin.prints(tokens.issue("second"), expires_in=3600)
    await asyncio.to_thread(tokens.revoke, "first", first, tmp_path)
    assert await api.get(KUBERNETES) is not None
    assert plugin.runs == 2
    assert statuses == [200, 200, 200]
    await api.close()


async def test_a_token_that_the_api_server_refuses_is_replaced(
    control_plane: SharedControlPlane, tokens: Tokens, plugin: Plugin, tmp_path: Path
) -> None:
    first = tokens.issue("first")
    plugin.prints(first, expires_in=3600)
    statuses: list[int] = []
    login = KubeLogin(plugin.kubeconfig(cluster_of(control_plane.kubeconfig)))
    api = KubeApi(login, counted=lambda _verb, _kind, status: statuses.append(status))
    log_in = KopfLogin(login)
    assert (await log_in()).token == first
    assert await api.get(KUBERNETES) is not None
    await asyncio.to_thread(tokens.revoke, "first", first, tmp_path)
    second = tokens.issue("second")
    plugin.prints(second, expires_in=3600)
    many = await asyncio.gather(*(api.get(KUBERNETES) for _ in range(5)))
    assert None not in many
    assert plugin.runs == 2
    assert (await log_in()).token == second
    assert plugin.runs == 2
    assert set(statuses) == {200, 401}
    await api.close()


async def test_the_token_of_a_pods_service_account_is_read_again(
    control_plane: SharedControlPlane, tokens: Tokens, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = cluster_of(control_plane.kubeconfig)
    host, _, port = cluster["server"].removeprefix("https://").rpartition(":")
    token, authority = tmp_path / "token", tmp_path / "ca.crt"
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", host)
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", port)
    monkeypatch.setattr(incluster_config, "SERVICE_TOKEN_FILENAME", str(token))
    monkeypatch.setattr(incluster_config, "SERVICE_CERT_FILENAME", str(authority))
    trusted = await KubeLogin(control_plane.kubeconfig).configuration()
    authority.write_text(Path(trusted.ssl_ca_cert).read_text())
    first = tokens.issue("first")
    token.write_text(first)
    login = KubeLogin()
    api = KubeApi(login)
    log_in = KopfLogin(login)
    assert await api.get(KUBERNETES) is not None
    assert (await log_in()).token == first
    second = tokens.issue("second")
    token.write_text(second)
    await asyncio.to_thread(tokens.revoke, "first", first, tmp_path)
    assert await api.get(KUBERNETES) is not None
    assert (await log_in()).token == second
    await api.close()


async def test_kopf_is_given_equal_credentials_only_where_there_are_no_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kube_login, "_RENEWALS_APART_SECONDS", 0.0)
    (tmp_path / "token").write_text("first")
    user = {"tokenFile": str(tmp_path / "token")}
    file = write_kubeconfig(tmp_path / "kubeconfig", {"server": "http://127.0.0.1:1"}, user)
    log_in = KopfLogin(KubeLogin(file))
    first = await log_in()
    assert (first.scheme, first.token) == ("Bearer", "first")
    assert first.expiration is not None
    assert datetime.now(UTC) < first.expiration < datetime.now(UTC) + timedelta(seconds=61)
    assert await log_in() is first  # kopf keeps what it has refused, and gives up
    (tmp_path / "token").write_text("second")
    assert (await log_in()).token == "second"


async def test_a_plugin_that_fails_and_a_kubeconfig_that_is_missing_are_named(
    tmp_path: Path, plugin: Plugin, monkeypatch: pytest.MonkeyPatch
) -> None:
    login = KubeLogin(
        plugin.kubeconfig({"server": "http://127.0.0.1:1"})
    )  # which finds no credentials to print
    with pytest.raises(LoginError, match="exec plug-in"):
        await login.configuration()
    with pytest.raises(kopf.TemporaryError, match="exec plug-in"):
        await KopfLogin(login)()
    with pytest.raises(ApiError, match="exec plug-in"):
        await KubeApi(login).get(KUBERNETES)
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "nothing"))
    with pytest.raises(LoginError, match="set KUBECONFIG"):
        await KubeLogin().configuration()


async def test_a_proxy_is_that_of_the_kubeconfig_or_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def proxy(**cluster: str) -> str | None:
        file = write_kubeconfig(tmp_path / "kubeconfig", cluster, {"token": "a"})
        login = KubeLogin(file)
        given = await KopfLogin(login)()
        assert given.proxy_url == (await login.configuration()).proxy
        return given.proxy_url

    monkeypatch.setenv("https_proxy", "http://environment:3128")
    monkeypatch.setenv("no_proxy", "inside.example.com")
    assert await proxy(server="https://outside.example.com") == "http://environment:3128"
    assert await proxy(server="https://inside.example.com") is None
    own = {"server": "https://outside.example.com", "proxy-url": "http://own:3128"}
    assert await proxy(**own) == "http://own:3128"


def test_kopf_is_used_by_its_public_names_alone() -> None:
    sources = Path(kube_login.__file__).parents[2].rglob("*.py")
    assert [str(file) for file in sources if "kopf._" in file.read_text()] == []
    # It is a NewType of str, which kopf does not export.
    assert "identity" in inspect.signature(kopf.operator).parameters
