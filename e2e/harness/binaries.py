"""Where Kubernetes' programs are on this machine: in a folder that the user named, or built by us in the cache."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from e2e.harness.cache import cache_folder
from e2e.harness.errors import NotAvailableError
from e2e.harness.go_modules import HELM, KUEUE, KWOK, MODULES, GoModule

CONTROL_PLANE = ("etcd", "kube-apiserver", "kubectl")
"""Without these there is no API server, or no way to talk to it."""
CONTROLLERS = ("kube-controller-manager", "kube-scheduler")
NODE = ("kubelet", "kube-proxy", "coredns", "pause")


@dataclass(frozen=True, slots=True)
class Binaries:
    """Programs by name, all of one origin, so that their versions fit."""

    origin: str
    programs: Mapping[str, Path]

    def __getitem__(self, name: str) -> Path:
        """The program, or a `NotAvailableError` that says how to get it."""
        self.require([name])
        return self.programs[name]

    def __contains__(self, name: str) -> bool:
        return name in self.programs

    def missing(self, names: Iterable[str]) -> list[str]:
        return [name for name in names if name not in self.programs]

    def require(self, names: Iterable[str]) -> None:
        """Raise `NotAvailableError` unless all of them are there."""
        if missing := self.missing(names):
            raise NotAvailableError(
                f"no {', '.join(missing)} in {self.origin}: run `make kube` (once, about 15 minutes), "
                "or set KUBEBUILDER_ASSETS to a folder with etcd, kube-apiserver and kubectl"
            )


def bin_folder(module: GoModule) -> Path:
    """Where that module's programs go."""
    return cache_folder() / f"{module.name}-{module.version}" / "bin"


def data_folder(module: GoModule) -> Path:
    """Where that module's files go."""
    return bin_folder(module).with_name("data")


def built() -> Binaries:
    """What has been built so far."""
    programs = {
        program.name: bin_folder(module) / program.name
        for module in (*MODULES, KWOK, KUEUE, HELM)
        for program in module.programs
    }
    present = {name: path for name, path in programs.items() if path.exists()}
    return Binaries(origin=str(cache_folder()), programs=present)


def find(environment: Mapping[str, str] = os.environ) -> Binaries:
    """The user's own API server where `KUBEBUILDER_ASSETS` names one, as with Kubebuilder's tests; else ours.

    The user's folder may lack the controllers and the programs of nodes. Then there are none: another version's
    would be no substitute.
    """
    if not (assets := environment.get("KUBEBUILDER_ASSETS")):
        return built()
    folder = Path(assets).expanduser().absolute()
    names = [*CONTROL_PLANE, *CONTROLLERS, *NODE]
    found = Binaries(
        origin=f"{folder} (KUBEBUILDER_ASSETS)",
        programs={name: folder / name for name in names if os.access(folder / name, os.X_OK)},
    )
    found.require(CONTROL_PLANE)
    return found
