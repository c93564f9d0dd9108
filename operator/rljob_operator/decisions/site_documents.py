"""What travels between the hub's operator and that of a site: pools down, reports up, each in a key-value bucket.

| bucket | written at | key | value |
|---|---|---|---|
| `rljob_pools_<site>` | the hub | `pool.<namespace>.<name>` | a RolloutPool, compressed; it has no secret |
| | | `index.<namespace>` | which pools the site is to have there, and no others: each name with the pool's uid |
| | | `site` | `SiteSettings` |
| | | `streams.<namespace>` | the jobs there whose streams the site is to have, and no others (`joined_streams`) |
| | | `again` | another value each time that both mirrors have to be made again |
| `rljob_reports_<site>` | the site | `report.<namespace>.<name>` | a `PoolReport` |
| | | `streams.<namespace>` | what the site has of these streams |
| | | `beat` | a `SiteBeat` |

The other side has a mirror of each bucket. An index is written after the pools that it names. A site removes a pool
only if the index of its namespace does not name it, and leaves one whose document is missing as it is. So a bucket that
is empty, because a server has lost it, removes nothing; and where several operators share the namespaces of the hub,
each writes for its own.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from typing import Annotated, Any, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from rljob_core.spec import API_VERSION
from rljob_operator.cluster.port import Manifest

BEAT = "beat"
SETTINGS = "site"
AGAIN = "again"
_INDEX, _POOL = "index.", "pool."
_FORMAT = 1
_LARGEST = 16 << 20
"""Bytes of a document at most: more than the API server stores of an object."""

PoolAddress = tuple[str, str]
"""Namespace and name of a RolloutPool."""


class SiteMessage(BaseModel):
    """What one side tells the other; fields that a later release has added are passed over."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    @classmethod
    def read(cls, text: bytes | None) -> Self | None:
        """The message in a text; None if there is none, or if it cannot be read."""
        try:
            return None if text is None else cls.model_validate_json(text)
        except ValidationError:
            return None


SiteDocument = TypeVar("SiteDocument", bound=SiteMessage)


class SiteSettings(SiteMessage):
    """What a site's operator has to know of its Site.

    Attributes:
        lost_seconds: of the Site's spec.
    """

    lost_seconds: Annotated[int, Field(ge=1)] | None = None

    @classmethod
    def of(cls, held: Mapping[str, bytes]) -> SiteSettings:
        """Those in a bucket; empty ones if there are none that can be read."""
        return cls.read(held.get(SETTINGS)) or cls()


class PoolDocument(SiteMessage):
    """A RolloutPool of the hub, as it travels to a site.

    Attributes:
        format: of this document; a site does not read those of a format that it does not know.
        uid, generation: of the hub's RolloutPool.
        spec: as the hub's RolloutPool has it.
    """

    format: int = _FORMAT
    namespace: str
    name: str
    uid: str
    generation: int
    labels: dict[str, str]
    spec: dict[str, Any]

    @property
    def address(self) -> PoolAddress:
        """Namespace and name."""
        return self.namespace, self.name

    @cached_property
    def packed(self) -> bytes:
        """As it is written to the bucket; packing takes milliseconds."""
        return packed(self)

    @property
    def manifest(self) -> Manifest:
        """The hub's RolloutPool, without its owner and its status."""
        metadata = {"namespace": self.namespace, "name": self.name, "labels": self.labels}
        identity = {"uid": self.uid, "generation": self.generation}
        return {
            "apiVersion": API_VERSION,
            "kind": "RolloutPool",
            "metadata": {**metadata, **identity},
            "spec": self.spec,
        }


@dataclass(frozen=True, slots=True)
class WantedPools:
    """What a site is to have.

    Attributes:
        content: `content_id` of what was read.
        namespaces: of which there is a list; in all others, what there is stays as it is.
        pools: those that it has to make.
        unread: those that it has to leave as they are, because their document is missing or cannot be read.
    """

    content: str
    namespaces: frozenset[str]
    pools: Mapping[PoolAddress, PoolDocument]
    unread: frozenset[PoolAddress]


@dataclass(frozen=True, slots=True)
class BucketChanges:
    """Writes to a bucket, in this order: `deletes`, and then `puts`; so that a bucket that is full gets room first."""

    puts: tuple[tuple[str, bytes], ...] = ()
    deletes: tuple[str, ...] = ()


def document_of(pool: Manifest) -> PoolDocument:
    """The document of a RolloutPool."""
    metadata = pool["metadata"]
    return PoolDocument(
        namespace=metadata["namespace"],
        name=metadata["name"],
        uid=metadata["uid"],
        generation=metadata.get("generation", 0),
        labels=metadata.get("labels", {}),
        spec=pool["spec"],
    )


def pool_key(address: PoolAddress) -> str:
    """The key of a pool in the bucket that the hub writes."""
    return f"{_POOL}{'.'.join(address)}"


def report_key(address: PoolAddress) -> str:
    """The key of a pool in the bucket that the site writes."""
    return f"report.{'.'.join(address)}"


def reported_namespace(key: str) -> str | None:
    """The namespace of the pool that a key of the site's bucket is about; None for other keys."""
    kind, *address = key.split(".")
    return address[0] if kind == "report" and len(address) == 2 else None


def listed_namespaces(held: Mapping[str, bytes]) -> set[str]:
    """The namespaces of which the bucket that the hub writes has a list."""
    return {_namespace(key) for key in held if key.startswith(_INDEX)}


def index_key(namespace: str) -> str:
    """The key of the list of a namespace's pools in the bucket that the hub writes."""
    return f"{_INDEX}{namespace}"


def changes_at_hub(
    pools: Iterable[PoolDocument],
    held: Mapping[str, bytes],
    *,
    namespaces: Collection[str] = (),
    also: Collection[str] = (),
    settings: SiteSettings | None = None,
) -> BucketChanges:
    """The writes after which a site's bucket has these pools and no others.

    Args:
        pools: that the site is to have.
        held: what the bucket has.
        namespaces: that the operator watches; empty for all. What is of others is left to other operators.
        also: namespaces that are to have a list though the bucket has nothing of them.
        settings: of the site; None to leave those that there are.
    """
    wanted = {pool_key(pool.address): pool for pool in pools}
    puts = [(key, pool.packed) for key, pool in wanted.items() if held.get(key) != pool.packed]
    if settings is not None and held.get(SETTINGS) != (text := settings.model_dump_json().encode()):
        puts.append((SETTINGS, text))
    listed = {pool.namespace for pool in wanted.values()} | set(also)
    others = {_namespace(key) for key in held if key.startswith((_INDEX, _POOL))}
    listed |= {namespace for namespace in others if not namespaces or namespace in namespaces}
    for namespace in sorted(listed):
        index = _index({p.name: p.uid for p in wanted.values() if p.namespace == namespace})
        if held.get(index_key(namespace)) != index:
            puts.append((index_key(namespace), index))
    gone = (key for key in held if key.startswith(_POOL) and key not in wanted and _namespace(key) in listed)
    return BucketChanges(tuple(puts), tuple(gone))


def content_id(held: Mapping[str, bytes]) -> str:
    """Identifies what a bucket has besides beats, so that both sides can tell whether they have the same."""
    return sha256(repr(sorted((k, v) for k, v in held.items() if k != BEAT)).encode()).hexdigest()[:16]


def wanted_pools(held: Mapping[str, bytes]) -> WantedPools:
    """What a site is to have, by the bucket that the hub writes."""
    namespaces: set[str] = set()
    found: dict[PoolAddress, PoolDocument | None] = {}
    for key, text in held.items():
        uids = _listed(text) if key.startswith(_INDEX) else None
        if uids is None:
            continue
        namespace = _namespace(key)
        namespaces.add(namespace)
        for name, uid in uids.items():
            found[namespace, name] = _pool(held.get(pool_key((namespace, name)), b""), uid)
    return WantedPools(
        content_id(held),
        frozenset(namespaces),
        {address: document for address, document in found.items() if document is not None},
        frozenset(address for address, document in found.items() if document is None),
    )


def _namespace(key: str) -> str:
    return key.split(".")[1]


def _index(uids: Mapping[str, str]) -> bytes:
    return json.dumps({"format": _FORMAT, "pools": dict(sorted(uids.items()))}).encode()


def _listed(text: bytes) -> dict[str, str] | None:
    """The pools of a list, with their uids; None if it cannot be read."""
    try:
        index = json.loads(text)
        if index["format"] != _FORMAT:
            return None
        return {str(name): str(uid) for name, uid in index["pools"].items()}
    except (KeyError, ValueError, TypeError, AttributeError, RecursionError):
        return None


def packed(document: BaseModel) -> bytes:
    """A document as it travels."""
    return zlib.compress(json.dumps(document.model_dump(), sort_keys=True).encode(), 6)


def unpacked(data: bytes, kind: type[SiteDocument], *, largest: int = _LARGEST) -> SiteDocument | None:
    """The document of that kind; None if it cannot be read, or takes more than `largest` bytes."""
    unpacker = zlib.decompressobj()
    try:
        document = kind.read(unpacker.decompress(data, largest))
    except zlib.error:
        return None
    # Else it is cut off, or a few bytes that name gigabytes.
    return document if unpacker.eof else None


def _pool(data: bytes, uid: str) -> PoolDocument | None:
    document = unpacked(data, PoolDocument)
    known = document is not None and document.uid == uid and document.format == _FORMAT
    return document if known else None
