"""How a table says which fields of an object name something: a tree of nodes, one for each field."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class MentionKind(StrEnum):
    """What is named; the value is the key of the rules that lists what may be."""

    IMAGES = "images"
    SECRETS = "secrets"
    CONFIG_MAPS = "configMaps"
    CLAIMS = "persistentVolumeClaims"
    SERVICE_ACCOUNTS = "serviceAccounts"
    PRIORITY_CLASSES = "priorityClasses"
    RUNTIME_CLASSES = "runtimeClasses"
    DEVICE_CLAIMS = "deviceClaims"
    """ResourceClaims and ResourceClaimTemplates, of dynamic resource allocation."""
    NODE_LABELS = "nodeLabels"
    TAINTS = "taints"
    SERVERS = "servers"
    """Places outside of the pods: URLs of NATS servers, engines and object stores, ranges of addresses, namespaces."""
    POD_METADATA = "podMetadata"
    """Keys of pods' labels and annotations."""
    POD_TEMPLATE_FIELDS = "podTemplateFields"


@dataclass(frozen=True, slots=True)
class Free:
    """A value that names nothing, or only what is inside the job's own pods."""


@dataclass(frozen=True, slots=True)
class Named:
    """A string that is a name.

    Attributes:
        separator: between several names in one string; empty if there is only one.
        absent: what it means that the field is missing; empty if that names nothing.
    """

    kind: MentionKind
    separator: str = ""
    absent: str = ""


@dataclass(frozen=True, slots=True)
class StorageUri:
    """A URI: of a claim (`pvc://claim/folder`), of a server, or a path or name that names nothing."""


@dataclass(frozen=True, slots=True)
class Urls:
    """Free-form options, of which strings that begin with http:// or https:// name servers.

    Attributes:
        depth: how many lists and maps are looked into; what is deeper counts as a server of the name `TOO_DEEP`, and
            as such a claim where there are `claims`.
        claims: whether strings that begin with pvc:// name claims.
    """

    depth: int = 3
    claims: bool = False


TOO_DEEP = "(nested too deep)"


@dataclass(frozen=True, slots=True)
class Keys:
    """A map whose keys are names."""

    kind: MentionKind


@dataclass(frozen=True, slots=True)
class Only:
    """A field of a pod template that may have these values."""

    values: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Items:
    """A list."""

    item: Node


@dataclass(frozen=True, slots=True)
class Fields:
    """An object with these fields.

    Attributes:
        template: whether it is of a pod template, where the API server checks nothing: all other fields, nulls and
            values of another type count as `MentionKind.POD_TEMPLATE_FIELDS`.
    """

    fields: Mapping[str, Node]
    template: bool = False


Node = Free | Named | StorageUri | Urls | Keys | Only | Items | Fields

FREE = Free()


def template(*free: str, **fields: Node) -> Fields:
    """An object of a pod template with fields that name nothing, and others."""
    return Fields({**dict.fromkeys(free, FREE), **fields}, template=True)


def fields(*free: str, **fields: Node) -> Fields:
    """An object of the API with fields that name nothing, and others."""
    return Fields({**dict.fromkeys(free, FREE), **fields})
