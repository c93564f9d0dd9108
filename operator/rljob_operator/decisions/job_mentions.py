"""All that one RLJob names: its spec, read by the table of `job_names`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from rljob_operator.decisions.named_by_jobs import SPEC
from rljob_operator.decisions.named_fields import (
    TOO_DEEP,
    Fields,
    Free,
    Items,
    Keys,
    MentionKind,
    Named,
    Node,
    Only,
    StorageUri,
    Urls,
)


@dataclass(frozen=True, slots=True)
class Mention:
    """A name in an RLJob.

    Attributes:
        path: the field, lists left out: `spec.rollout.pools.template.spec.volumes.secret.secretName`.
        name: what it names; of `MentionKind.POD_TEMPLATE_FIELDS`, the field's path below the template.
    """

    kind: MentionKind
    path: str
    name: str

    def __str__(self) -> str:
        return self.path if self.kind is MentionKind.POD_TEMPLATE_FIELDS else f"{self.path} {self.name}"


def mentions(spec: Mapping[str, Any]) -> Iterator[Mention]:
    """All that the spec of an RLJob names.

    Args:
        spec: JSON values, with the field names of the API.
    """
    yield from _of_fields(SPEC, spec, "spec", "")


def _of(node: Node, value: Any, path: str, below: str) -> Iterator[Mention]:
    """What a value names; `below` is its path below the pod template, empty outside of one."""
    match node:
        case Named(kind=kind, separator=separator) if isinstance(value, str):
            for name in value.split(separator) if separator else [value]:
                yield Mention(kind, path, name)
        case StorageUri() if isinstance(value, str):
            yield from _of_place(value, path)
        case Urls():
            yield from _of_options(value, path, node.depth, claims=node.claims)
        case Keys(kind=kind) if isinstance(value, dict):
            for key in value:
                yield Mention(kind, path, key)
        case Only(values=values) if any(type(value) is type(one) and value == one for one in values):
            pass
        case Items(item=item) if isinstance(value, list):
            for part in value:
                yield from _of(item, part, path, below)
        case Fields() if isinstance(value, dict):
            yield from _of_fields(node, value, path, below)
        case Free():
            pass
        case _ if below:
            yield Mention(MentionKind.POD_TEMPLATE_FIELDS, path, below)


def _of_fields(node: Fields, value: Mapping[str, Any], path: str, below: str) -> Iterator[Mention]:
    for field, inner in node.fields.items():
        where = f"{path}.{field}"
        if field in value:
            yield from _of(inner, value[field], where, _joined(below, field) if node.template else "")
        elif isinstance(inner, Named) and inner.absent:
            yield Mention(inner.kind, where, inner.absent)
    if node.template:
        for field in value.keys() - node.fields.keys():
            yield Mention(MentionKind.POD_TEMPLATE_FIELDS, f"{path}.{field}", _joined(below, field))


def _joined(below: str, field: str) -> str:
    return f"{below}.{field}" if below else field


def _of_place(uri: str, path: str) -> Iterator[Mention]:
    scheme, found, rest = uri.partition("://")
    if found and scheme == "pvc":
        yield Mention(MentionKind.CLAIMS, path, rest.partition("/")[0])
    elif found and scheme != "file":
        yield Mention(MentionKind.SERVERS, path, uri)


def _of_options(value: Any, path: str, depth: int, *, claims: bool) -> Iterator[Mention]:
    if isinstance(value, str) and value.startswith(("http://", "https://")):
        yield Mention(MentionKind.SERVERS, path, value)
    elif claims and isinstance(value, str) and value.startswith("pvc://"):
        yield from _of_place(value, path)
    elif isinstance(value, dict | list):
        parts = value.values() if isinstance(value, dict) else value
        if depth == 0:
            yield Mention(MentionKind.SERVERS, path, TOO_DEEP)
            if claims:
                yield Mention(MentionKind.CLAIMS, path, TOO_DEEP)
        else:
            for part in parts:
                yield from _of_options(part, path, depth - 1, claims=claims)
