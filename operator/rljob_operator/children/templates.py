"""Applying a pod template patch to a pod template, as the strategic merge of `kubectl` does.

Maps are merged; lists of named elements (containers, variables, volumes, …) are merged by the elements' key; other
lists are replaced; null removes a field. Also here is what all of our templates have.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rljob_core.errors import SpecError
from rljob_operator.cluster.port import Manifest

_LOST_NODE_SECONDS = 30
"""For which a pod stays on a node that is lost."""
_GROUP = 1000

# The list-map keys of a pod template (Kubernetes API reference, PodSpec: "patch merge key").
MERGE_KEYS = {
    "containers": "name",
    "initContainers": "name",
    "ephemeralContainers": "name",
    "env": "name",
    "volumes": "name",
    "imagePullSecrets": "name",
    "resourceClaims": "name",
    "volumeMounts": "mountPath",
    "volumeDevices": "devicePath",
    "ports": "containerPort",
    "hostAliases": "ip",
    "topologySpreadConstraints": "topologyKey",
}

_NEEDED = {"spec", "containers", "volumes", "env", "volumeMounts"}
"""Fields of ours that a patch adds to: without them no worker starts."""


def merge(base: dict[str, Any], patch: dict[str, Any], path: str) -> dict[str, Any]:
    """`base` with `patch` applied; neither is changed.

    Args:
        path: path of the patch in the user's manifest, for error messages.

    Raises:
        SpecError: a value of the patch has another type than the value in `base`, a list element lacks its key, or what
            the worker needs is to be removed.
    """
    merged = dict(base)
    for field, value in patch.items():
        where = f"{path}.{field}"
        if value is None:
            if field in _NEEDED and field in merged:
                raise SpecError(where, "must not be null: the worker needs what is in it; remove this line")
            merged.pop(field, None)
        elif field == "tolerations" and not (
            isinstance(value, list) and all(isinstance(one, dict) for one in value)
        ):
            raise SpecError(where, "must be a list of maps")
        elif field in MERGE_KEYS and isinstance(merged.get(field, []), list):
            merged[field] = _merge_list(merged.get(field, []), value, MERGE_KEYS[field], where)
        elif isinstance(merged.get(field), dict):
            if not isinstance(value, dict):
                raise SpecError(where, f"must be a map, not {type(value).__name__}")
            merged[field] = merge(merged[field], value, where)
        else:
            merged[field] = value
    return merged


def _merge_list(base: list[Any], patch: Any, key: str, path: str) -> list[Any]:
    if not isinstance(patch, list):
        raise SpecError(path, f"must be a list of elements with a {key}, not {type(patch).__name__}")
    merged = {element[key]: element for element in base}
    for index, element in enumerate(patch):
        if not isinstance(element, dict) or not isinstance(element.get(key), str | int):
            raise SpecError(f"{path}[{index}]", f"needs a {key}: elements of this list are merged by it")
        name = element[key]
        merged[name] = merge(merged.get(name, {}), element, f"{path}[{name}]")
    return list(merged.values())


def container_security() -> Manifest:
    """The security context of a container; in a pod of `pod_security`, it satisfies the level Restricted."""
    return {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": True,
    }


def pod_security() -> Manifest:
    """The security context of a pod: any user of its image can read Secrets, and write to claims."""
    return {
        "runAsNonRoot": True,
        "fsGroup": _GROUP,
        "fsGroupChangePolicy": "OnRootMismatch",
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def tolerations_for_lost_nodes(given: Sequence[Manifest]) -> list[Manifest]:
    """The given tolerations, and ours for every key that they do not mention: a patch replaces the whole list."""
    ours = [
        {"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": _LOST_NODE_SECONDS}
        for key in ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
    ]
    keys = [toleration.get("key") for toleration in given]
    return [*given, *(toleration for toleration in ours if toleration["key"] not in keys)]
