"""A Kubernetes control plane of plain processes: etcd, kube-apiserver, controller manager, scheduler.

    with ControlPlane(folder) as control_plane:
        control_plane.kubectl("create", "namespace", "a")

It needs no root, listens on this machine's loopback on free ports, and is ready in a few seconds. It is a real one:
RBAC and the node authorizer decide, every component has its own certificate, service accounts get signed tokens.
Nothing is kept between two starts, so etcd does not wait for the disk.
"""

from __future__ import annotations

import ipaddress
import json
import shutil
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from e2e.harness.binaries import CONTROL_PLANE, CONTROLLERS, Binaries, find
from e2e.harness.certificates import Authority
from e2e.harness.daemon import Daemon
from e2e.harness.errors import ClusterError
from e2e.harness.kubectl import Kubectl
from e2e.harness.ports import free_ports, http_ok, listens
from e2e.harness.started import Started

_READY_SECONDS = 180.0  # a cold disk, and other tests on the same two cores
_TRIES = 3  # a port that was free may be another's a moment later
_ADMINISTRATORS = "system:masters"


class ControlPlane(Started):
    """One control plane; `start` and `stop` it, or use it as a context manager.

    Args:
        folder: for its files and logs; made if missing, must hold no other control plane.
        binaries: the programs; without controllers among them there is only the API server.
        address: of this machine, that the API server listens on; nodes must be able to reach it.
        service_range: the addresses of Services.
        audit: record every request's metadata in `audit_log`.
        flags: more flags by program, such as `{"kube-apiserver": ["--max-requests-inflight=50"]}`.
    """

    def __init__(
        self,
        folder: Path,
        *,
        binaries: Binaries | None = None,
        address: str = "127.0.0.1",
        service_range: str = "10.96.0.0/16",
        audit: bool = False,
        flags: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        self.binaries = binaries or find()
        self.binaries.require(CONTROL_PLANE)
        self.folder = folder.absolute()
        self.address = address
        self.service_range = service_range
        self.audit_log = self.folder / "audit.log" if audit else None
        self.kubeconfig = self.folder / "kubeconfig"
        self.authority = Authority(self.folder / "certificates")
        self.kubectl = Kubectl(self.binaries["kubectl"], self.kubeconfig)
        self._flags = flags or {}
        self._service_accounts = self.authority.service_account_key()
        hosts = ["localhost", "127.0.0.1", address, "kubernetes.default.svc", "kubernetes.default"]
        hosts.append(
            str(ipaddress.ip_network(service_range)[1])
        )  # the Service `kubernetes` gets the first one
        self._serving = self.authority.issue("kube-apiserver", user="kube-apiserver", hosts=hosts)
        self._to_kubelets = self.authority.issue(
            "kube-apiserver-to-kubelets", user="kube-apiserver", groups=[_ADMINISTRATORS]
        )
        self._etcd: Daemon | None = None
        self._api_server: Daemon | None = None
        self._controllers: list[Daemon] = []
        self._port = 0
        self.url = ""
        """Of the API server, while it runs."""

    def start(self) -> None:
        """Start all and wait until the API server says that it is ready. On an error nothing keeps running."""
        try:
            etcd = self._start_etcd()
            self._start_api_server(etcd)
            self._start_controllers()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """End all processes, at once: there is no data to be saved. The folder stays, with logs and certificates."""
        for daemon in self.daemons.values():
            daemon.stop(kill=True)
        self._api_server = self._etcd = None
        self._controllers = []
        shutil.rmtree(self.folder / "etcd", ignore_errors=True)

    @property
    def daemons(self) -> Mapping[str, Daemon]:
        """What runs, by program: for faults, `daemons["kube-scheduler"].stop(kill=True)`, then `start()`."""
        running = [self._etcd, self._api_server, *self._controllers]
        return {daemon.name: daemon for daemon in running if daemon is not None}

    def restart_api_server(self, *, kill: bool = False, down_seconds: float = 0.0) -> None:
        """Restart it on the same port; its clients see refused connections for `down_seconds` and the start.

        The controllers begin anew: a scheduler whose cache differs from what it reads again ends itself.
        """
        if self._api_server is None:
            raise ClusterError("the API server is not running")
        self._api_server.stop(kill=kill)
        time.sleep(down_seconds)
        self._api_server.start()
        self._await_api_server(self._api_server)
        for controller in self._controllers:
            controller.stop(kill=True)
            controller.start()

    def user_kubeconfig(self, user: str, groups: Sequence[str] = ()) -> Path:
        """Credentials of a user who may do only what RBAC grants to that name or those groups."""
        name = user.removeprefix("system:").replace(":", "-")
        return self.authority.kubeconfig(name, server=self.url, user=user, groups=groups)

    # ---- parts

    def _daemon(self, name: str, *flags: str) -> Daemon:
        command = [str(self.binaries[name]), *flags, *self._flags.get(name, ())]
        return Daemon(name, command, log=self.folder / "logs" / f"{name}.log")

    def _start_etcd(self) -> str:
        """Returns its URL."""
        for left in reversed(range(_TRIES)):
            port, peer_port = free_ports(2)
            client, peer = f"http://127.0.0.1:{port}", f"http://127.0.0.1:{peer_port}"
            etcd = self._etcd = self._daemon(
                "etcd",
                f"--data-dir={self.folder / 'etcd'}",
                f"--listen-client-urls={client}",
                f"--advertise-client-urls={client}",
                f"--listen-peer-urls={peer}",
                f"--initial-advertise-peer-urls={peer}",
                f"--initial-cluster=default={peer}",
                "--unsafe-no-fsync",
                "--log-level=warn",
            )
            etcd.start()
            try:
                etcd.wait_until(partial(http_ok, "127.0.0.1", port, "/health"), seconds=_READY_SECONDS)
            except ClusterError:
                etcd.stop()
                if not left or "address already in use" not in etcd.last_words():
                    raise
            else:
                return client
        raise AssertionError("unreachable")

    def _start_api_server(self, etcd: str) -> None:
        flags = [
            f"--etcd-servers={etcd}",
            f"--bind-address={self.address}",
            f"--advertise-address={self.address}",
            f"--service-cluster-ip-range={self.service_range}",
            f"--tls-cert-file={self._serving.certificate}",
            f"--tls-private-key-file={self._serving.key}",
            f"--client-ca-file={self.authority.certificate}",
            f"--kubelet-certificate-authority={self.authority.certificate}",
            f"--kubelet-client-certificate={self._to_kubelets.certificate}",
            f"--kubelet-client-key={self._to_kubelets.key}",
            "--kubelet-preferred-address-types=InternalIP",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={self._service_accounts.certificate}",
            f"--service-account-signing-key-file={self._service_accounts.key}",
            "--authorization-mode=Node,RBAC",
            "--enable-admission-plugins=NodeRestriction",
            "--allow-privileged=true",
            *self._audit_flags(),
        ]
        for left in reversed(range(_TRIES)):
            (self._port,) = free_ports(1, self.address)
            self.url = f"https://{self.address}:{self._port}"
            administrator = self.authority.kubeconfig(
                "admin", server=self.url, user="admin", groups=[_ADMINISTRATORS]
            )
            administrator.replace(self.kubeconfig)
            server = self._api_server = self._daemon("kube-apiserver", f"--secure-port={self._port}", *flags)
            server.start()
            try:
                self._await_api_server(server)
            except ClusterError:
                server.stop()
                if not left or "address already in use" not in server.last_words():
                    raise
            else:
                return

    def _await_api_server(self, server: Daemon) -> None:
        server.wait_until(
            lambda: listens(self.address, self._port) and self.kubectl.succeeds("get", "--raw=/readyz"),
            seconds=_READY_SECONDS,
        )

    def _start_controllers(self) -> None:
        """They come up by themselves; whoever needs a pod scheduled waits for the pod."""
        certificate, key = self.authority.certificate, self._service_accounts.key
        flags = {
            "kube-controller-manager": [
                "--use-service-account-credentials=true",
                f"--service-account-private-key-file={key}",
                f"--root-ca-file={certificate}",
            ]
        }
        for name in CONTROLLERS:
            if name in self.binaries:
                kubeconfig = self.user_kubeconfig(f"system:{name}")
                # Nobody asks them anything: without a port they cannot find it taken.
                common = [f"--kubeconfig={kubeconfig}", "--leader-elect=false", "--secure-port=0"]
                daemon = self._daemon(name, *common, *flags.get(name, ()))
                self._controllers.append(daemon)
                daemon.start()

    def _audit_flags(self) -> list[str]:
        if self.audit_log is None:
            return []
        policy = self.folder / "audit-policy.json"
        rules = [{"level": "Metadata", "omitStages": ["RequestReceived"]}]
        policy.write_text(json.dumps({"apiVersion": "audit.k8s.io/v1", "kind": "Policy", "rules": rules}))
        return [f"--audit-policy-file={policy}", f"--audit-log-path={self.audit_log}"]
