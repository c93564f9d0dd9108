"""What every weight store promises, on each transport, with whole versions and with deltas."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import pytest
import torch
import xxhash
from e2e.harness.nats_server import EmbeddedServer
from fsspec.implementations.memory import MemoryFileSystem
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.memory.weights import MemoryTransport

from rljob_core.errors import JobFailed, ProtocolViolation, WeightsMissing, WeightsRejected
from rljob_core.ports import WeightManifest
from rljob_core.records import StepCommitted
from rljob_runtime.messaging.nats.store import NatsStore
from rljob_runtime.weights import files as weights_files
from rljob_runtime.weights.files import FolderTransport
from rljob_runtime.weights.format import signed
from rljob_runtime.weights.message_writer import MessageWriter
from rljob_runtime.weights.nats import MessageTransport
from rljob_runtime.weights.objects import ObjectTransport
from rljob_runtime.weights.store import StoredWeights
from rljob_runtime.weights.transport import Transport

TENSORS: dict[str, Any] = {
    "model.embed": torch.arange(12, dtype=torch.float32).reshape(3, 4),
    "model.norm": torch.tensor([1.5, -2.25, 3.0], dtype=torch.bfloat16),
    "model.scalar": torch.tensor(7.0, dtype=torch.float64),
    "model.empty": torch.zeros((0, 3)),
    "model.slice": torch.arange(10, dtype=torch.float32)[::2],
    "model.numpy": np.arange(6, dtype=np.float16).reshape(2, 3),
    "model.flag": torch.tensor([True, False]),
}
CHUNK = 1000  # bytes, so that small tensors span messages
Change = Callable[[bytes], bytes]


@dataclass
class Place:
    """Where versions are kept, as several processes reach it."""

    connect: Callable[[], Transport]
    erase: Callable[[str], None]
    opened: list[StoredWeights]

    def store(self, anchor_every: int | None = None) -> StoredWeights:
        """As another process would see it."""
        self.opened.append(StoredWeights(self.connect(), anchor_every=anchor_every))
        return self.opened[-1]

    def damage(self, key: str, *, tensors: Change = bytes, manifest: Change = bytes) -> None:
        """Alter what is stored, with all that the transport itself says of it."""
        transport = self.opened[0]._transport
        before = transport.manifest(key)
        assert before is not None
        with transport.reader(key) as reader:
            data = reader.take(reader.size).tobytes()
        assert (tensors(data), manifest(before)) != (data, before)
        self.erase(key)
        with transport.writer(key) as writer:
            writer.write(tensors(data))
            writer.commit(manifest(before))


@pytest.fixture(params=["files", "files mapped", "objects", "nats", "memory"])
def place(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    def nothing(key: str) -> None:
        """A writer replaces what is there."""

    opened: list[StoredWeights] = []
    match request.param:
        case "files" | "files mapped" as kind:
            here = weights_files.file_system(tmp_path.stat().st_dev)
            monkeypatch.setattr(
                weights_files, "_OF_THIS_MACHINE", {here} if kind == "files mapped" else set()
            )
            root = tmp_path / "weights"
            made = Place(partial(FolderTransport, root), lambda key: shutil.rmtree(root / key), opened)
        case "objects":
            files = MemoryFileSystem()
            bucket = f"/{uuid4().hex}/weights"
            made = Place(partial(ObjectTransport, files, bucket), nothing, opened)
        case "nats":
            server: EmbeddedServer = request.getfixturevalue("nats_server")
            job = uuid4().hex
            connect = partial(NatsStore, server.url, subject=f"rljob.{job}", stream_prefix=f"RLJOB_{job}")
            made = Place(partial(MessageTransport, connect, chunk_bytes=CHUNK), nothing, opened)
        case _:
            shared = MemoryTransport()
            made = Place(lambda: shared, nothing, opened)
    yield made
    for store in opened:
        store.close()


@pytest.fixture
def store(place: Place) -> StoredWeights:
    return place.store()


def proposal(version: int, parent: str) -> StepCommitted:
    ids = (("g0.0", "g0.1"), ("g1.0",))
    return StepCommitted(version, parent, 1, 2, ids, 1, "r" * 32, "", f"v{version}-a1")


def write(
    store: StoredWeights, version: int, tensors: Mapping[str, Any] = TENSORS, parent: str = ""
) -> WeightManifest:
    return store.write(
        version=version,
        parent=parent,
        proposal=proposal(version, parent),
        key=f"v{version}-a1",
        tensors=tensors.items(),
    )


def check_read(store: StoredWeights, manifest: WeightManifest, expected: Mapping[str, Any]) -> None:
    """Every tensor, bit by bit."""
    found = dict(store.read(manifest))
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        wanted = torch.as_tensor(tensor).contiguous()
        assert (found[name].dtype, found[name].shape) == (wanted.dtype, wanted.shape)
        assert torch.equal(found[name].reshape(-1).view(torch.uint8), wanted.reshape(-1).view(torch.uint8))


# ------------------------------------------------------------------------------------------ whole versions


def test_what_is_written_is_read(place: Place) -> None:
    written = write(place.store(), 1, parent="p")
    reader = place.store()
    manifest = reader.manifest("v1-a1")
    assert manifest == written
    assert (manifest.version, manifest.parent, manifest.proposal, manifest.base) == (
        1, "p", proposal(1, "p"), None,
    )  # fmt: skip
    check_read(reader, manifest, TENSORS)


def test_tensors_larger_than_a_message_and_manifests_too(place: Place) -> None:
    tensors = {f"layer.{i}": torch.randn(i * 37) for i in range(20)}
    manifest = write(place.store(), 1, tensors)
    check_read(place.store(), manifest, tensors)
    assert place.store().manifests() == [manifest]


def test_initial_model_has_no_proposal(store: StoredWeights) -> None:
    store.write(version=0, parent="", proposal=None, key="v0", tensors=[("a", torch.ones(2))])
    assert store.manifest("v0").proposal is None


def test_digests_are_what_the_port_says(store: StoredWeights) -> None:
    manifest = write(store, 1)
    by_name = {i.name: i.digest for i in manifest.tensors}
    assert by_name["model.embed"] == xxhash.xxh3_128_hexdigest(TENSORS["model.embed"].numpy().tobytes())
    content = json.loads(store._transport.manifest("v1-a1") or b"")
    digest = content.pop("digest")
    canonical = json.dumps(content, sort_keys=True, separators=(",", ":")).encode()
    assert digest == manifest.digest == xxhash.xxh3_128_hexdigest(canonical)


def test_manifests_and_proposals_in_order(place: Place) -> None:
    store = place.store()
    assert store.manifests() == store.proposals(0) == []
    for version in (2, 10, 1):
        write(store, version)
    assert [m.version for m in place.store().manifests()] == [1, 2, 10]
    assert [m.version for m in place.store().proposals(1)] == [2, 10]
    assert place.store().proposals(10) == []


def test_proposals_of_one_version_and_of_deleted_ones(store: StoredWeights) -> None:
    for key in ("v00000003-b", "v00000003-a", "v00000002-a", "other"):
        store.write(version=int(key[8:9] or 0) if key[0] == "v" else 9, parent="", proposal=None, key=key,
                    tensors=[("a", torch.ones(2))])  # fmt: skip
    store.delete("v00000003-a")
    assert [m.key for m in store.proposals(1)] == ["v00000002-a", "v00000003-a", "v00000003-b"]
    assert [m.key for m in store.proposals(2)] == ["v00000003-a", "v00000003-b"]


def test_proposals_do_not_open_older_versions(place: Place) -> None:
    store = place.store()
    for version in (1, 2):
        write(store, version)
    place.damage("v1-a1", manifest=lambda data: data[:-20])
    assert [m.version for m in store.proposals(0)] == [2]  # opened, and no manifest
    opened = []
    transport = store._transport
    store._transport = Spy(transport, opened)  # type: ignore[assignment]
    assert [m.version for m in store.proposals(1)] == [2]
    assert opened == ["v2-a1"]


class Spy:
    """Notes which manifests are opened."""

    def __init__(self, transport: Transport, opened: list[str]) -> None:
        self._transport, self._opened = transport, opened

    def manifest(self, key: str) -> bytes | None:
        self._opened.append(key)
        return self._transport.manifest(key)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


def test_delete_keeps_the_manifest(place: Place) -> None:
    store = place.store()
    manifest = write(store, 1)
    write(store, 2)
    store.delete("v1-a1")
    store.delete("v1-a1")
    assert store.manifest("v1-a1") == manifest
    assert [m.version for m in store.manifests()] == [2]
    assert [m.version for m in store.proposals(0)] == [1, 2]
    with pytest.raises(WeightsMissing, match="v1-a1"):
        list(place.store().read(manifest))
    check_read(place.store(), store.manifest("v2-a1"), TENSORS)


def test_a_missing_version(store: StoredWeights) -> None:
    with pytest.raises(WeightsMissing, match="v1-a1"):
        store.manifest("v1-a1")
    for key in ("", ".", "..", "../x", "a/b", ".hidden", "a.b", "*", ">", "a b"):
        with pytest.raises(WeightsRejected):
            store.manifest(key)


# ------------------------------------------------------------------------------------------ damage


def flip(position: int) -> Change:
    def damage(data: bytes) -> bytes:
        return data[:position] + bytes([data[position] ^ 1]) + data[position:][1:]

    return damage


@pytest.mark.parametrize(
    "damage",
    [
        flip(-1),
        flip(0),
        flip(20),
        lambda data: data[:-1],
        lambda data: data[: len(data) // 2],
        lambda data: data[:4],
        lambda data: b"",
        lambda data: data + b"\0",
        lambda data: b"\xff" * 8 + data[8:],
    ],
)
def test_damaged_tensors_are_rejected(place: Place, damage: Change) -> None:
    manifest = write(place.store(), 1)
    place.damage("v1-a1", tensors=damage)
    with pytest.raises(WeightsRejected, match="v1-a1") as rejected:
        list(place.store().read(manifest))
    assert not isinstance(rejected.value, WeightsMissing)


def test_every_single_flipped_bit_of_the_tensors_is_seen(place: Place) -> None:
    manifest = write(place.store(), 1, {"a": torch.arange(3.0), "b": torch.arange(2.0)})
    for position in range(-20, 0, 3):
        place.damage("v1-a1", tensors=flip(position))
        with pytest.raises(WeightsRejected):
            list(place.store().read(manifest))
        place.damage("v1-a1", tensors=flip(position))
    assert len(list(place.store().read(manifest))) == 2


def test_a_tensor_is_not_given_out_before_it_is_verified(place: Place) -> None:
    manifest = write(place.store(), 1, {"a": torch.zeros(4), "b": torch.ones(4)})
    place.damage("v1-a1", tensors=flip(-1))
    reader = place.store().read(manifest)
    assert next(reader)[0] == "a"
    with pytest.raises(WeightsRejected, match="tensor b"):
        next(reader)


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data.replace(b"g0.1", b"g9.9"),
        lambda data: data.replace(b'"version": 1', b'"version": 2'),
        lambda data: data[:-20],
        lambda data: b"",
    ],
)
def test_an_altered_manifest_is_rejected(place: Place, damage: Change) -> None:
    store = place.store()
    write(store, 1)
    place.damage("v1-a1", manifest=damage)
    with pytest.raises(WeightsRejected, match="v1-a1") as rejected:
        store.manifest("v1-a1")
    assert not isinstance(rejected.value, WeightsMissing)
    assert store.manifests() == store.proposals(0) == []


def test_a_manifest_of_another_format_is_rejected_and_says_so(place: Place) -> None:
    store = place.store()
    write(store, 1)
    place.damage("v1-a1", manifest=lambda data: data.replace(b'"format": 1', b'"format": 2'))
    with pytest.raises(
        WeightsRejected, match=r"v1-a1 has another `format` .*: use the release that wrote it"
    ):
        store.manifest("v1-a1")


def test_tensors_of_another_version_are_rejected(place: Place) -> None:
    store = place.store()
    first = write(store, 1, {"a": torch.zeros(4)})
    write(store, 2, {"a": torch.ones(4)})
    with store._transport.reader("v2-a1") as reader:
        other = reader.take(reader.size).tobytes()
    place.damage("v1-a1", tensors=lambda _: other)
    with pytest.raises(WeightsRejected):
        list(store.read(first))


def test_a_manifest_under_another_name_is_rejected(place: Place) -> None:
    store = place.store()
    write(store, 1)
    write(store, 2)
    copied = store._transport.manifest("v1-a1") or b""
    place.damage("v2-a1", manifest=lambda _: copied)
    with pytest.raises(WeightsRejected):
        store.manifest("v2-a1")
    assert [m.key for m in store.manifests()] == ["v1-a1"]


def test_a_manifest_that_names_more_than_is_stored(store: StoredWeights) -> None:
    manifest = write(store, 1, {"a": torch.zeros(4)})
    more = replace(manifest, tensors=(*manifest.tensors, replace(manifest.tensors[0], name="b")))
    with pytest.raises(WeightsRejected, match="other tensors"):
        list(store.read(more))


# ------------------------------------------------------------------------------------------ writing


def test_the_same_again_changes_nothing_and_other_weights_are_refused(place: Place) -> None:
    store = place.store(anchor_every=4)
    first = write(store, 1, {"a": torch.zeros(400)})
    second = write(store, 2, {"a": torch.eye(20).reshape(400)}, first.digest)
    assert second.base is not None
    for same in (store, place.store(), place.store(anchor_every=4)):
        assert write(same, 1, {"a": torch.zeros(400)}) == first
        assert write(same, 2, {"a": torch.eye(20).reshape(400)}, first.digest) == second
        with pytest.raises(ProtocolViolation):
            write(same, 1, {"a": torch.ones(400)})
        with pytest.raises(ProtocolViolation):
            write(same, 1, {"a": torch.zeros(400)}, parent="another")
    check_read(place.store(), second, {"a": torch.eye(20).reshape(400)})


def test_a_writer_that_failed_half_way_leaves_nothing_that_counts(place: Place) -> None:
    store = place.store()

    def die() -> None:
        with store._transport.writer("v1-a1") as writer:
            writer.write(bytes(5 * CHUNK))
            raise InterruptedError

    with pytest.raises(InterruptedError):
        die()
    assert store.manifests() == store.proposals(0) == []
    with pytest.raises(WeightsRejected):
        store.manifest("v1-a1")
    check_read(place.store(), write(store, 1), TENSORS)


def test_what_dead_writers_left_is_swept(place: Place) -> None:
    """A process that was killed has cleared nothing away."""
    store = place.store()
    left_nothing = isinstance(store._transport, MemoryTransport)  # where bytes count or are nowhere
    kept = [write(store, version) for version in (1, 2)]
    store.delete("v1-a1")
    dead = [place.store()._transport.writer(key) for key in ("v2-dead", "v3-dead")]
    for context in dead:
        writer = context.__enter__()
        writer.write(bytes(5 * CHUNK))
        if isinstance(writer, MessageWriter):
            writer._settle(0)  # all of it has arrived
    left = sorted(store._transport.unfinished())
    assert left == ([] if left_nothing else ["v2-dead", "v3-dead"])
    store.sweep(2)
    assert store._transport.unfinished() == left[1:]
    assert store.proposals(0) == kept
    assert store.manifests() == kept[1:]
    check_read(place.store(), kept[1], TENSORS)


def test_tensors_that_cannot_be_had_leave_nothing(store: StoredWeights) -> None:
    def tensors() -> Any:
        yield "a", torch.zeros(4)
        raise RuntimeError("trainer died")

    with pytest.raises(RuntimeError):
        store.write(version=1, parent="", proposal=None, key="v1-a1", tensors=tensors())
    assert store.proposals(0) == []


def test_a_dtype_that_cannot_be_stored_is_named(store: StoredWeights) -> None:
    with pytest.raises(JobFailed, match="complex64"):
        write(store, 1, {"a": torch.zeros(2, dtype=torch.complex64)})


# ------------------------------------------------------------------------------------------ deltas


def weights(version: int) -> dict[str, Any]:
    """Of a model that changes a little from version to version, in every way that a tensor can."""
    random = torch.Generator().manual_seed(1)
    dense = torch.randn(50, 40, generator=random)
    half = torch.randn(3000, generator=random).to(torch.bfloat16)
    for step in range(1, version + 1):
        dense.view(-1)[step::97] += 1e-3
        half.view(torch.int16)[step::31] += 1
    special = torch.tensor([0.0, 1.0, float("inf"), float("nan")]).repeat(20)
    special[0] = -0.0 if version % 2 else 0.0
    special.view(torch.int32)[3] = 0x7FC00000 + version  # a NaN's payload
    return {
        "dense": dense,
        "half": half,
        "special": special,
        "frozen": torch.arange(500, dtype=torch.int64),
        "counted": torch.full((300,), 7 + version, dtype=torch.int32),
        "noise": torch.randn(30, generator=torch.Generator().manual_seed(version)),
        "empty": torch.zeros((0, 3)),
        **({"new": torch.ones(3)} if version >= 3 else {}),
    }


def chain(place: Place, versions: int, anchor_every: int = 4) -> tuple[StoredWeights, list[WeightManifest]]:
    """Versions 0 to `versions`, and who wrote them."""
    store, found = place.store(anchor_every), [write(place.opened[-1], 0, weights(0))]
    for version in range(1, versions + 1):
        found.append(write(store, version, weights(version), found[-1].digest))
    return store, found


def test_deltas_between_anchors_are_bit_exact(place: Place) -> None:
    _, manifests = chain(place, 9)
    assert [m.base is None for m in manifests] == [v % 4 == 0 for v in range(10)]
    assert [m.base.depth if m.base else 0 for m in manifests] == [0, 1, 2, 3, 0, 1, 2, 3, 0, 1]
    said = {info.name: info.patch for info in manifests[3].tensors}
    assert said["frozen"] == said["empty"] == 0
    assert said["new"] is said["noise"] is None
    assert 0 < (said["half"] or 0) < 1000
    follower = place.store(anchor_every=4)
    for version, manifest in enumerate(manifests):
        check_read(follower, manifest, weights(version))  # one after the other, as an engine does
        check_read(place.store(), manifest, weights(version))  # from the anchor, as a new one does
        check_read(place.store(anchor_every=4), manifest, weights(version))
    check_read(follower, manifests[2], weights(2))  # back


def test_a_delta_is_shorter(place: Place) -> None:
    store, _ = chain(place, 1)
    sizes = []
    for version in (0, 1):
        with store._transport.reader(f"v{version}-a1") as reader:
            sizes.append(reader.size)
    assert sizes[1] < sizes[0] / 2


def test_no_more_deltas_follow_an_anchor_than_it_has_bytes(place: Place) -> None:
    """A third of the elements changes each time: two deltas are shorter than an anchor, three are not."""
    values, store, parent = np.zeros(3000, np.float32), place.store(anchor_every=100), ""
    found = []
    for version in range(7):
        values = values.copy()
        values[version % 3 :: 3] = np.random.default_rng(version).standard_normal(1000)
        if version == 5:  # a new trainer attempt counts those that were written before
            store = place.store(anchor_every=100)
            list(store.read(found[-1]))
        found.append(write(store, version, {"values": values}, parent))
        parent = found[-1].digest
    sizes = [manifest.tensors[0].patch for manifest in found]
    assert all(size is None or 4000 < size < 6000 for size in sizes)
    assert [size is None for size in sizes] == [True, False, False, True, False, False, True]


def test_a_follower_reads_only_what_changed(place: Place) -> None:
    _, manifests = chain(place, 3)
    follower = place.store(anchor_every=4)
    list(follower.read(manifests[2]))
    for version in range(3):
        place.opened[0].delete(f"v{version}-a1")
    check_read(follower, manifests[3], weights(3))
    with pytest.raises(WeightsRejected, match="v0-a1"):
        list(place.store().read(manifests[3]))


def test_only_the_parent_is_a_base(place: Place) -> None:
    store, (first, second) = chain(place, 1)
    other = store.write(
        version=2, parent=first.digest, proposal=None, key="v2-b", tensors=weights(2).items()
    )  # the trainer went back, but what it holds is version 1
    assert other.base is None
    resumed = place.store(anchor_every=4)
    list(resumed.read(second))  # a new attempt loads what it goes on from
    third = write(resumed, 2, weights(2), second.digest)
    assert third.base is not None
    assert (third.base.key, third.base.digest, third.base.depth) == (second.key, second.digest, 2)
    check_read(place.store(), third, weights(2))


def test_tensors_that_are_trained_on_do_not_reach_what_was_written(place: Place) -> None:
    """A CPU backend gives out views of its parameters."""
    store = place.store(anchor_every=4)
    live = torch.zeros(1000)
    manifest = write(store, 0, {"live": live})
    for version in range(1, 4):
        live[version] = version
        manifest = write(store, version, {"live": live}, manifest.digest)
        assert manifest.base is not None
        live += 0  # an optimizer step in place
        check_read(place.store(), manifest, {"live": live})


def test_no_delta_is_computed_against_an_altered_base_in_memory(place: Place) -> None:
    store, manifests = chain(place, 1)
    assert store._held is not None
    store._held.tensors["dense"][:4] ^= 1
    third = write(store, 2, weights(2), manifests[1].digest)
    assert {info.name: info.patch for info in third.tensors}["dense"] is None
    check_read(place.store(), third, weights(2))


@pytest.mark.parametrize("lost", [0, 1, 2])
def test_a_missing_base_is_named(place: Place, lost: int) -> None:
    store, manifests = chain(place, 3)
    store.delete(f"v{lost}-a1")
    with pytest.raises(
        WeightsMissing, match=rf"v3-a1 depends on v{lost}-a1: the tensors of v{lost}-a1 are missing"
    ):
        list(place.store(anchor_every=4).read(manifests[3]))


def test_a_base_whose_manifest_is_missing_is_named(place: Place) -> None:
    _, (_, second) = chain(place, 1)
    assert second.base is not None
    lost = signed(replace(second, base=replace(second.base, key="v7-gone")))
    with pytest.raises(WeightsMissing, match="v1-a1 depends on v7-gone, which is missing"):
        list(place.store().read(lost))


def test_another_base_is_refused(place: Place) -> None:
    store, (first, second) = chain(place, 1)
    other = place.store(anchor_every=4)
    same = other.write(version=0, parent="", proposal=None, key="v0-b", tensors=weights(0).items())
    assert second.base is not None
    for base in (
        replace(second.base, key=same.key),  # the same weights even
        replace(second.base, digest="0" * 32),
        replace(second.base, depth=2),
    ):
        with pytest.raises(WeightsRejected, match="depends on"):
            list(place.store().read(signed(replace(second, base=base))))
    assert first.digest != same.digest
    check_read(store, second, weights(1))


@pytest.mark.parametrize("damage", [flip(-1), flip(-200), lambda data: data[:-1], lambda data: data + b"\0"])
def test_damaged_deltas_are_rejected_and_the_version_before_stays(place: Place, damage: Change) -> None:
    _, manifests = chain(place, 2)
    engine = place.store(anchor_every=4)
    list(engine.read(manifests[1]))
    place.damage("v2-a1", tensors=damage)
    for store in (engine, place.store()):
        with pytest.raises(WeightsRejected, match="v2-a1"):
            list(store.read(manifests[2]))
    place.opened[0].delete("v0-a1")  # what it holds is enough
    check_read(engine, manifests[1], weights(1))


def test_a_damaged_anchor_is_named(place: Place) -> None:
    _, manifests = chain(place, 2)
    place.damage("v0-a1", tensors=flip(-1))
    with pytest.raises(WeightsRejected, match="v2-a1 depends on v0-a1: v0-a1: tensor"):
        list(place.store().read(manifests[2]))


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(data=st.data())
def test_any_patch_is_exact_or_rejected(place: Place, data: st.DataObject) -> None:
    """Whatever bit of a stored delta flips."""
    name = uuid4().hex
    store = place.store(anchor_every=2)
    keys = [f"v{version}-{name}" for version in range(2)]
    first = store.write(version=0, parent="", proposal=None, key=keys[0], tensors=weights(0).items())
    second = store.write(
        version=1, parent=first.digest, proposal=None, key=keys[1], tensors=weights(1).items()
    )
    with store._transport.reader(keys[1]) as reader:
        size = reader.size
    place.damage(keys[1], tensors=flip(data.draw(st.integers(0, size - 1))))
    # Some bits of a header mean nothing: a space more, another name of the format.
    with suppress(WeightsRejected):
        check_read(place.store(), second, weights(1))
