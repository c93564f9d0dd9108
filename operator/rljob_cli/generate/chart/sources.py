"""What the chart is made of: the files of `manifests/base`, as they are before kustomize changes them."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

Object = dict[str, Any]


@dataclass(frozen=True, slots=True)
class ChartSources:
    """Objects by the file that has them, and the release of the operator's image.

    Attributes:
        base: of `manifests/base`, by the file's name.
        crds: of `crds`.
        monitoring: of `manifests/components/monitoring`, its generated ConfigMap included.
        kueue: of `manifests/components/kueue`.
        nodes: of `manifests/components/node-notices`.
        sites: of `manifests/components/sites`.
        available: of `manifests/components/high-availability`.
        several: by which that changes the operator's Deployment: `strategy`, and `spread` of its pods.
        taints: that node-notices watches for.
        version: the tag of the operator's image.
    """

    base: dict[str, list[Object]]
    crds: list[Object]
    monitoring: list[Object]
    kueue: list[Object]
    nodes: list[Object]
    sites: list[Object]
    available: list[Object]
    several: Object
    taints: list[str]
    version: str
    page: str = field(repr=False)

    def one(self, file: str, kind: str, name: str) -> Object:
        """An object of the base."""
        (found,) = [o for o in self.base[file] if (o["kind"], o["metadata"]["name"]) == (kind, name)]
        return found


def read_sources(checkout: Path) -> ChartSources:
    """Read them.

    Raises:
        OSError: a file is missing.
    """
    manifests = checkout / "manifests"
    kustomization = _one(manifests / "base/kustomization.yaml")
    files = [name for name in kustomization["resources"] if not name.startswith("..")]
    monitoring = manifests / "components/monitoring"
    (generator,) = _one(monitoring / "kustomization.yaml")["configMapGenerator"]
    notices = manifests / "components/node-notices"
    (patch,) = _one(notices / "kustomization.yaml")["patches"]
    (container,) = YAML(typ="safe").load(patch["patch"])["spec"]["template"]["spec"]["containers"]
    available = manifests / "components/high-availability"
    (change,) = _one(available / "kustomization.yaml")["patches"]
    changed = YAML(typ="safe").load(change["patch"])["spec"]
    spread = changed["template"]["spec"]["topologySpreadConstraints"]
    dashboard = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": generator["name"], "labels": generator["options"]["labels"]},
        "data": {name: (monitoring / name).read_text(encoding="utf-8") for name in generator["files"]},
    }
    return ChartSources(
        base={name: _all(manifests / "base" / name) for name in files},
        crds=[
            o
            for name in _one(checkout / "crds/kustomization.yaml")["resources"]
            for o in _all(checkout / "crds" / name)
        ],
        monitoring=[
            *(
                o
                for name in _one(monitoring / "kustomization.yaml")["resources"]
                for o in _all(monitoring / name)
            ),
            dashboard,
        ],
        kueue=_all(manifests / "components/kueue/kueue-rbac.yaml"),
        nodes=_all(notices / "nodes-rbac.yaml"),
        sites=_all(manifests / "components/sites/leafnodes.yaml"),
        available=_all(available / "disruption-budget.yaml"),
        several={"strategy": changed["strategy"], "spread": spread},
        taints=container["env"][0]["value"].split(","),
        version=str(kustomization["images"][0]["newTag"]),
        page=(checkout / "docs/operator.md").read_text(encoding="utf-8"),
    )


def _all(file: Path) -> list[Object]:
    return [dict(found) for found in YAML(typ="safe").load_all(file.read_text(encoding="utf-8")) if found]


def _one(file: Path) -> Object:
    (found,) = _all(file)
    return found
