"""A pod template as this machine can run it: one command, its environment, its folders.

What a kubelet does with mounts, a process on this machine gets by name: every mount path that stands in the
command, the arguments or the environment becomes the folder that holds the volume. Of the containers only the
first (ours) is run, and resources, probes and security are not looked at.
"""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rljob_core import worker_protocol
from rljob_core.errors import SpecError
from rljob_operator.cluster.port import Manifest
from rljob_operator.names import TERMINATION_LOG

_MACHINE_S_OWN = {"/dev/shm", "/tmp"}  # noqa: S108 what a pod gets its own of, processes share
_REFERENCE = re.compile(r"\$\(([A-Za-z_][A-Za-z0-9_]*)\)")


@dataclass(frozen=True, slots=True)
class Launch:
    """How to start a pod's process.

    Attributes:
        command: arguments, the program first.
        environment: all of it.
        log: file that stdout and stderr are appended to.
        termination_log: file in which the process may leave its last words.
        ready_file: file whose presence makes it Ready; None if running is enough.
        grace: seconds between SIGTERM and SIGKILL.
    """

    command: tuple[str, ...]
    environment: Mapping[str, str]
    log: Path
    termination_log: Path
    ready_file: Path | None
    grace: float


@dataclass(frozen=True, slots=True)
class PodPlace:
    """Where and as what a pod runs.

    Attributes:
        name: the pod's.
        folder: of the cluster.
        environment: what the process starts from.
        config_maps: data of the ConfigMaps by name.
        addresses: what a variable's value is replaced by if it is a host name or port of a gang.
    """

    name: str
    folder: Path
    environment: Mapping[str, str]
    config_maps: Mapping[str, Mapping[str, str]]
    addresses: Mapping[str, str]


def prepare(template: Manifest, place: PodPlace) -> Launch:
    """Write the pod's volumes and work out how to start it.

    Raises:
        SpecError: the template needs something that only a real cluster has.
    """
    spec = template["spec"]
    container = spec["containers"][0]
    home = place.folder / "pods" / place.name
    home.mkdir(parents=True, exist_ok=True)
    mounts = _mount(spec, container, place)
    termination_log = home / "termination-log"
    mounts[TERMINATION_LOG] = termination_log
    environment = dict(place.environment)
    for variable in container.get("env", []):
        value = _value(variable, place)
        value = _localize(_expand(value, environment), mounts)
        environment[variable["name"]] = place.addresses.get(value, value)
    arguments = [*container["command"], *container.get("args", [])]
    command = [_localize(_expand(a, environment), mounts) for a in arguments]
    if command[0] == "python":
        command[0] = sys.executable
    ready = environment.get(worker_protocol.READY_FILE)
    logs = place.folder / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    return Launch(
        command=tuple(command),
        environment=environment,
        log=logs / f"{place.name}.log",
        termination_log=termination_log,
        ready_file=Path(ready) if ready else None,
        grace=float(spec.get("terminationGracePeriodSeconds", 30)),
    )


def check(template: Manifest, environment: Mapping[str, str]) -> None:
    """Look whether a pod could be started, without doing anything.

    Args:
        environment: that it would start from.

    Raises:
        SpecError: the template needs something that only a real cluster has.
    """
    spec = template["spec"]
    container = spec["containers"][0]
    _check_volumes(spec, container)
    for variable in container.get("env", []):
        _value(variable, PodPlace("", Path(), environment, {}, {}))


def _check_volumes(spec: Manifest, container: Manifest) -> None:
    volumes = {volume["name"]: volume for volume in spec.get("volumes", [])}
    for mount in container.get("volumeMounts", []):
        if not {"configMap", "emptyDir"} & volumes[mount["name"]].keys():
            raise SpecError(
                f"volumes[{mount['name']}]",
                "only configMap and emptyDir volumes exist in `rljob run`: use a path",
            )


def _mount(spec: Manifest, container: Manifest, place: PodPlace) -> dict[str, Path]:
    """Materialise the volumes; mount path → folder."""
    volumes = {volume["name"]: volume for volume in spec.get("volumes", [])}
    _check_volumes(spec, container)
    write_config_maps(spec, place)
    mounts: dict[str, Path] = {}
    for mount in container.get("volumeMounts", []):
        volume = volumes[mount["name"]]
        folder = _volume(place, volume)
        if "configMap" in volume:
            folder.mkdir(parents=True, exist_ok=True)
        elif "emptyDir" in volume:
            if mount["mountPath"] in _MACHINE_S_OWN:
                continue
            # What was killed with the last start may still be at its last write.
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True, exist_ok=True)
        mounts[mount["mountPath"].rstrip("/")] = folder
    return mounts


def write_config_maps(spec: Manifest, place: PodPlace) -> None:
    """Put the ConfigMaps that a pod mounts into its folder, each file at once: what runs may read it any time."""
    for volume in spec.get("volumes", []):
        data = place.config_maps.get(volume.get("configMap", {}).get("name", ""), {})
        for key, text in data.items():
            file = _volume(place, volume) / key
            file.parent.mkdir(parents=True, exist_ok=True)
            aside = file.with_name(f".{key}")
            aside.write_text(text, encoding="utf-8")
            aside.replace(file)


def _volume(place: PodPlace, volume: Mapping[str, Any]) -> Path:
    return place.folder / "pods" / place.name / "volumes" / str(volume["name"])


def _value(variable: Mapping[str, Any], place: PodPlace) -> str:
    """A variable's value; what would come from a Secret comes from the user's own environment."""
    source = variable.get("valueFrom")
    if source is None:
        return str(variable.get("value", ""))
    if source.get("fieldRef", {}).get("fieldPath") == "metadata.name":
        return place.name
    name = variable["name"]
    if name in place.environment:
        return place.environment[name]
    raise SpecError(f"env[{name}]", "its source exists only in a cluster: set this variable in your shell")


def _expand(text: str, environment: Mapping[str, str]) -> str:
    """Kubernetes' `$(NAME)`; unknown names stay as they are."""
    return _REFERENCE.sub(lambda match: environment.get(match[1], match[0]), text)


def _localize(text: str, mounts: Mapping[str, Path]) -> str:
    for path, folder in mounts.items():
        # A whole path or the beginning of one: not the end of /my/run/rljob, not /run/rljob-2.
        pieces = re.split(rf"(?<![\w./-]){re.escape(path)}(?=/|$|[^\w.-])", text)
        text = str(folder).join(pieces)
    return text
