"""Translates a pod template to a local process: its command, its environment variables, its folders.

A local process has no mounts. Instead, every mount path in the command, the arguments or the environment is replaced by
the folder that holds the volume. Only the first container (the worker's) is run; resources, probes and security
settings are ignored.
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
from rljob_operator.cluster.local.replace_text import replace_text
from rljob_operator.cluster.port import Manifest
from rljob_operator.names import TERMINATION_LOG

_SHARED_FOLDERS = {"/dev/shm", "/tmp"}  # noqa: S108 a pod has its own; local processes share the machine's
COMPLETION_INDEX = "JOB_COMPLETION_INDEX"
"""The variable with the index of an indexed Job's pod, as Kubernetes names it."""
_REFERENCE = re.compile(r"\$\(([A-Za-z_][A-Za-z0-9_]*)\)")


@dataclass(frozen=True, slots=True)
class Launch:
    """How to start a pod's process.

    Attributes:
        command: the program and its arguments.
        environment: all environment variables.
        log: file to which stdout and stderr are appended.
        termination_log: file to which the process may write its termination message.
        ready_file: file whose existence means that the process is ready; None if it is ready once it runs.
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
    """The place of a pod in a local cluster.

    Attributes:
        name: name of the pod.
        folder: folder of the cluster.
        environment: environment variables that every process of the cluster gets.
        config_maps: data of the ConfigMaps, by name.
        addresses: local host names and ports that replace those of a gang in the values of variables.
    """

    name: str
    folder: Path
    environment: Mapping[str, str]
    config_maps: Mapping[str, Mapping[str, str]]
    addresses: Mapping[str, str]


def prepare(template: Manifest, place: PodPlace, *, is_first: bool) -> Launch:
    """Write the pod's volumes, and determine how to start its process.

    Args:
        is_first: whether this is the pod's first process: an `emptyDir` lives as long as its pod.

    Raises:
        SpecError: the template needs something that only a real cluster has.
    """
    spec = template["spec"]
    container = spec["containers"][0]
    home = place.folder / "pods" / place.name
    home.mkdir(parents=True, exist_ok=True)
    mounts = _mount(spec, container, place, is_first=is_first)
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
    log = log_file(place.folder, place.name)
    log.parent.mkdir(parents=True, exist_ok=True)
    return Launch(
        command=tuple(command),
        environment=environment,
        log=log,
        termination_log=termination_log,
        ready_file=Path(ready) if ready else None,
        grace=float(spec.get("terminationGracePeriodSeconds", 30)),
    )


def log_file(folder: Path, pod: str) -> Path:
    """The file with the output of all starts of a pod of the local cluster in that folder."""
    return folder / "logs" / f"{pod}.log"


def check(template: Manifest, environment: Mapping[str, str]) -> None:
    """Check that a pod could be started here; writes nothing.

    Args:
        template: the pod template.
        environment: environment variables that the process would get.

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


def _mount(spec: Manifest, container: Manifest, place: PodPlace, *, is_first: bool) -> dict[str, Path]:
    """Create the volumes; returns their folders by mount path."""
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
            if mount["mountPath"] in _SHARED_FOLDERS:
                continue
            if is_first:
                # A process of an earlier pod of this name that was just killed may still be writing.
                shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True, exist_ok=True)
        mounts[mount["mountPath"].rstrip("/")] = folder
    return mounts


def write_config_maps(spec: Manifest, place: PodPlace) -> None:
    """Write the ConfigMaps that a pod mounts; each file is replaced atomically, because the pod may be reading it."""
    for volume in spec.get("volumes", []):
        data = place.config_maps.get(volume.get("configMap", {}).get("name", ""), {})
        for key, text in data.items():
            file = _volume(place, volume) / key
            file.parent.mkdir(parents=True, exist_ok=True)
            replace_text(
                file, text, durable=True
            )  # the audit reads what a pod was given, also after a power cut


def _volume(place: PodPlace, volume: Mapping[str, Any]) -> Path:
    return place.folder / "pods" / place.name / "volumes" / str(volume["name"])


def _value(variable: Mapping[str, Any], place: PodPlace) -> str:
    """A variable's value; a value that a cluster takes from a Secret is taken from the user's environment instead."""
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
    """Replace references of the form `$(NAME)`, as Kubernetes does; unknown names stay."""
    return _REFERENCE.sub(lambda match: environment.get(match[1], match[0]), text)


def _localize(text: str, mounts: Mapping[str, Path]) -> str:
    for path, folder in mounts.items():
        # A whole path or the beginning of one: not the end of /my/run/rljob, not /run/rljob-2.
        pieces = re.split(rf"(?<![\w./-]){re.escape(path)}(?=/|$|[^\w.-])", text)
        text = str(folder).join(pieces)
    return text
