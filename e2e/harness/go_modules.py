"""The Go modules that the harness builds from, and how their versions are pinned.

The folders `e2e/go/*` hold a go.mod that names the version and a go.sum that names every checksum. They are the one
place where versions stand; `python -m e2e.harness pin` writes them again.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

GO_FOLDER = Path(__file__).resolve().parent.parent / "go"


@dataclass(frozen=True, slots=True)
class Program:
    """A command and the package that it is built from. `nodes`: only real nodes need it."""

    name: str
    package: str
    nodes: bool = False


@dataclass(frozen=True, slots=True)
class GoModule:
    """A folder of `e2e/go`: programs whose version is that of the module `of`, or 1 where all of it is ours.

    `data` is a folder of the module `of` whose files are kept beside the programs.
    """

    name: str
    programs: tuple[Program, ...]
    of: str = ""
    data: str = ""

    @property
    def folder(self) -> Path:
        return GO_FOLDER / self.name

    @property
    def version(self) -> str:
        """As go.mod requires it, `v1.2.3`."""
        return self.required(self.of) if self.of else "v1"

    def required(self, path: str) -> str:
        """The version of another module that go.mod requires, `v0.37.0`."""
        text = (self.folder / "go.mod").read_text()
        found = re.search(rf"^\s*(?:require )?{re.escape(path)} (v\S+)", text, re.MULTILINE)
        if found is None:
            raise ValueError(f"{self.folder}/go.mod requires no {path}; run python -m e2e.harness pin")
        return found[1]

    @property
    def go_version(self) -> tuple[int, int]:
        """The least Go that builds it."""
        found = re.search(r"^go (\d+)\.(\d+)", (self.folder / "go.mod").read_text(), re.MULTILINE)
        assert found is not None
        return int(found[1]), int(found[2])


# In the order in which they are wanted: the first three make an API server that tests can use.
KUBERNETES = GoModule(
    "kubernetes",
    (
        Program("etcd", "go.etcd.io/etcd/server/v3"),  # the version that Kubernetes itself is tested with
        Program("kube-apiserver", "k8s.io/kubernetes/cmd/kube-apiserver"),
        Program("kubectl", "k8s.io/kubernetes/cmd/kubectl"),
        Program("kube-controller-manager", "k8s.io/kubernetes/cmd/kube-controller-manager"),
        Program("kube-scheduler", "k8s.io/kubernetes/cmd/kube-scheduler"),
        Program("kubelet", "k8s.io/kubernetes/cmd/kubelet", nodes=True),
        Program("kube-proxy", "k8s.io/kubernetes/cmd/kube-proxy", nodes=True),
    ),
    of="k8s.io/kubernetes",
)
# Modules of their own, because their requirements are not Kubernetes'.
COREDNS = GoModule("coredns", (Program("coredns", ".", nodes=True),), of="github.com/coredns/coredns")
PAUSE = GoModule("pause", (Program("pause", ".", nodes=True),))  # what a pod's sandbox runs
MODULES = (KUBERNETES, COREDNS, PAUSE)
# Renders and installs charts/rljob: built only where that is tested.
HELM = GoModule("helm", (Program("helm", "helm.sh/helm/v3/cmd/helm"),), of="helm.sh/helm/v3")
# Pretend nodes and pods, for benchmarks with thousands of them: built only where one is run.
KWOK = GoModule("kwok", (Program("kwok", "sigs.k8s.io/kwok/cmd/kwok"),), of="sigs.k8s.io/kwok")
# A queue for whole jobs: built only where it is tested.
KUEUE = GoModule(
    "kueue",
    (Program("kueue", "sigs.k8s.io/kueue/cmd/kueue"),),
    of="sigs.k8s.io/kueue",
    data="config/components/crd/bases",
)


def pin(module: GoModule, version: str) -> None:
    """Write the module's go.mod and go.sum for a version. Needs the network, and takes a minute."""
    upstream = _upstream(module.of, version)
    folder = module.folder
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "go.sum").unlink(missing_ok=True)
    lines = [f"module rljob.dev/e2e/{module.name}", "", f"go {upstream['Go']}", ""]
    lines += [f"godebug {entry['Key']}={entry['Value']}" for entry in upstream.get("Godebug") or ()]
    lines += [f"tool {program.package}" for program in module.programs if program.package != "."]
    lines += [f"require {module.of} {version}"]
    lines += _published(upstream.get("Replace") or (), version)
    (folder / "go.mod").write_text("\n".join(lines) + "\n")
    _go("mod", "tidy", folder=folder)


def _upstream(path: str, version: str) -> Mapping[str, Any]:
    """That module's own go.mod."""
    listed = json.loads(_go("list", "-m", "-json", f"{path}@{version}", folder=GO_FOLDER))
    upstream: Mapping[str, Any] = json.loads(_go("mod", "edit", "-json", listed["GoMod"], folder=GO_FOLDER))
    return upstream


def _published(replaced: Sequence[Mapping[str, Any]], version: str) -> list[str]:
    """Kubernetes v1.x.y replaces its parts by folders beside it; each is published as v0.x.y too."""
    parts = "v0." + version.removeprefix("v1.")
    return [
        f"replace {entry['Old']['Path']} => {entry['Old']['Path']} {parts}"
        for entry in replaced
        if entry["New"]["Path"].startswith("./")
    ]


def _go(*arguments: str, folder: Path) -> str:
    program = shutil.which("go")
    if program is None:
        raise FileNotFoundError("pinning needs a Go toolchain on PATH")
    return subprocess.run(
        [program, *arguments], cwd=folder, check=True, text=True, stdout=subprocess.PIPE
    ).stdout
