"""The wire format: trajectories are decoded as they were encoded, and any other bytes are refused."""

from __future__ import annotations

import dataclasses
import json
import struct

import numpy as np
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from rljob_core.errors import CorruptPayload, UnknownVersion
from rljob_core.messages.limits import MESSAGE_TRAJECTORIES, SEGMENTS
from rljob_core.trajectory import FinishReason, Segment, Source, Trajectory, VersionSpan
from rljob_runtime.messaging import wire
from rljob_runtime.messaging.summaries import PayloadSummary, decode_summaries, encode_summaries, summarize

_COLUMNS = (("tokens", np.int32), ("loss_mask", np.uint8), ("logprobs", np.float32), ("versions", np.int32))


def segment(source: Source, length: int, seed: int = 0, versions: list[int] | None = None) -> Segment:
    random = np.random.default_rng(seed)
    model = source is Source.MODEL
    return Segment(
        source=source,
        tokens=random.integers(0, 50_000, length, dtype=np.int32),
        loss_mask=np.full(length, model, dtype=np.uint8),
        logprobs=-random.random(length, dtype=np.float32) if model else np.zeros(length, np.float32),
        versions=np.sort(random.choice(versions or [3], length)).astype(np.int32)
        if model
        else np.full(length, -1, np.int32),
    )


def trajectory(name: str = "g7.2", length: int = 40, seed: int = 0) -> Trajectory:
    return Trajectory(
        id=name,
        attempt=2,
        prompt=7,
        segments=(
            segment(Source.PROMPT, 9, seed),
            segment(Source.MODEL, length, seed, [3, 4, 5]),
            segment(Source.ENVIRONMENT, 5, seed),
            segment(Source.MODEL, 3, seed),
        ),
        span=VersionSpan(3, 5),
        finish=FinishReason.STOP,
        engine="pool-0",
    )


def assert_equal(found: Trajectory, expected: Trajectory) -> None:
    for name in ("id", "attempt", "prompt", "span", "finish", "engine", "sample"):
        assert getattr(found, name) == getattr(expected, name)
    assert len(found.segments) == len(expected.segments)
    for one, other in zip(found.segments, expected.segments, strict=True):
        assert one.source is other.source
        for column, dtype in _COLUMNS:
            array = getattr(one, column)
            assert array.dtype == dtype
            # Bits, so that NaN equals itself and 0 differs from -0.
            assert array.tobytes() == np.asarray(getattr(other, column), dtype).tobytes()


def same(found: list[Trajectory], expected: list[Trajectory]) -> bool:
    try:
        for one, other in zip(found, expected, strict=True):
            assert_equal(one, other)
    except (AssertionError, ValueError):
        return False
    return True


def test_trajectories_come_back_as_they_were() -> None:
    several = [trajectory(f"g{i}.0", length=i * 13, seed=i) for i in range(9)]
    decoded = wire.decode(wire.encode(several))
    for found, expected in zip(decoded, several, strict=True):
        assert_equal(found, expected)


int32 = st.integers(-(2**31), 2**31 - 1)


@st.composite
def segments(draw: st.DrawFn) -> Segment:
    length = draw(st.integers(0, 30))

    def column(values: st.SearchStrategy[object], dtype: type) -> np.ndarray:
        few = st.lists(values, min_size=1, max_size=2).flatmap(
            lambda kinds: st.lists(st.sampled_from(kinds), min_size=length, max_size=length)
        )
        return np.array(draw(few | st.lists(values, min_size=length, max_size=length)), dtype)

    return Segment(
        source=draw(st.sampled_from(Source)),
        tokens=column(int32, np.int32),
        loss_mask=column(st.integers(0, 255), np.uint8),
        logprobs=column(st.floats(width=32), np.float32),
        versions=column(int32, np.int32),
    )


trajectories = st.builds(
    Trajectory,
    id=st.text(max_size=300),
    attempt=int32,
    prompt=st.integers(0, 2**63 - 1),
    segments=st.lists(segments(), max_size=4).map(tuple),
    span=st.builds(VersionSpan, st.integers(-1, 2**31 - 1), st.integers(-1, 2**31 - 1)),
    finish=st.sampled_from(FinishReason),
    engine=st.text(max_size=300),
    sample=st.text(max_size=300),
)


@given(st.lists(trajectories, max_size=4))
def test_any_trajectories_come_back_as_they_were(several: list[Trajectory]) -> None:
    decoded = wire.decode_verified(wire.encode(several))
    assert len(decoded) == len(several)
    for (found, digest), expected in zip(decoded, several, strict=True):
        assert_equal(found, expected)
        assert digest == wire.digest(expected) == wire.digest(found)


def test_arrays_are_read_only_views_of_the_message() -> None:
    data = wire.encode([trajectory(length=1000)])
    buffer = np.frombuffer(data, np.uint8)
    (decoded,) = wire.decode(data)
    for part in decoded.segments:
        for column, _ in _COLUMNS:
            array = getattr(part, column)
            assert not array.flags.writeable
            assert array.flags.aligned
            if column != "versions" or part.source is not Source.MODEL:
                assert np.shares_memory(array, buffer), column


def test_long_runs_cost_nothing() -> None:
    one_version = Trajectory(
        "g1.0", 0, 0, (segment(Source.MODEL, 16384),), VersionSpan(3, 3), FinishReason.LENGTH, "e"
    )
    assert len(wire.encode([one_version])) < 16384 * 8 + 500


def test_columns_that_are_no_arrays_are_taken_if_their_values_fit() -> None:
    plain = Segment(Source.MODEL, [1, 2], [1, 1], [-0.5, -1.5], [0, 1])
    value = Trajectory("g1.0", 0, 0, [plain], VersionSpan(0, 1), FinishReason.STOP, "e")
    (decoded,) = wire.decode(wire.encode([value]))
    assert decoded.segments[0].tokens.tolist() == [1, 2]
    assert decoded.segments[0].logprobs.tolist() == [-0.5, -1.5]


@pytest.mark.parametrize(
    "columns",
    [
        ([1, 2], [1], [0.0, 0.0], [0, 0]),
        ([1], [1], [0.0], [0, 0]),
        ([2**31], [1], [0.0], [0]),
        ([1], [256], [0.0], [0]),
        ([1.5], [1], [0.0], [0]),
        ([[1]], [1], [0.0], [0]),
    ],
)
def test_columns_that_do_not_fit_are_refused(columns: tuple[list[float], ...]) -> None:
    value = Trajectory(
        "g1.0", 0, 0, [Segment(Source.MODEL, *columns)], VersionSpan(0, 0), FinishReason.STOP, "e"
    )
    with pytest.raises(ValueError, match="column"):
        wire.encode([value])


def test_an_environments_score_is_stored_and_covered_by_the_digest() -> None:
    plain = trajectory()
    scored = [dataclasses.replace(plain, score=score) for score in (0.0, -0.1, 1e6)]
    assert [found.score for found in wire.decode(wire.encode([plain, *scored]))] == [None, 0.0, -0.1, 1e6]
    assert len({wire.digest(each) for each in (plain, *scored)}) == 4
    assert b"score" not in wire.encode([plain])
    with pytest.raises(CorruptPayload):
        wire.decode(wire.encode([dataclasses.replace(plain, score=1.1e6)]))


def test_the_digest_is_of_the_trajectory_and_not_of_its_place() -> None:
    one, other = trajectory("g1.0"), trajectory("g2.0")
    (_, first), (_, second) = wire.decode_verified(wire.encode([one, other]))
    (_, moved), _ = wire.decode_verified(wire.encode([other, one]))
    assert first == wire.digest(one)
    assert second == moved == wire.digest(other)
    assert first != second


@given(trajectories, st.data())
def test_the_digest_covers_identity_and_every_column(value: Trajectory, data: st.DataObject) -> None:
    other = data.draw(trajectories)
    assert (wire.digest(value) == wire.digest(other)) == same([value], [other])


# ------------------------------------------------------------------------------------------- what is refused


@given(st.binary(max_size=300))
def test_no_bytes_but_ours_decode(data: bytes) -> None:
    with pytest.raises(CorruptPayload):
        wire.decode(data)
    with pytest.raises(CorruptPayload):
        wire.decode(wire.MAGIC + data)


VALID = [trajectory("g1.0", 30, 1), trajectory("g2.0", 7, 2)]
ENCODED = wire.encode(VALID)


def test_every_flipped_bit_is_noticed() -> None:
    for position in range(8 * len(ENCODED)):
        altered = bytearray(ENCODED)
        altered[position // 8] ^= 1 << position % 8
        with pytest.raises(CorruptPayload):
            wire.decode(bytes(altered))


def test_every_truncation_and_extension_is_noticed() -> None:
    for length in range(len(ENCODED)):
        with pytest.raises(CorruptPayload):
            wire.decode(ENCODED[:length])
        with pytest.raises(CorruptPayload):
            wire.decode(ENCODED + ENCODED[: length + 1])


@given(st.data())
def test_a_mutated_message_is_refused_or_the_same(data: st.DataObject) -> None:
    altered = bytearray(ENCODED)
    for _ in range(data.draw(st.integers(1, 4))):
        start = data.draw(st.integers(0, len(altered)))
        end = data.draw(st.integers(start, min(start + 40, len(altered))))
        altered[start:end] = data.draw(st.binary(max_size=40))
    try:
        found = wire.decode(bytes(altered))
    except CorruptPayload:
        return
    assert same(found, VALID)


def test_another_version_says_so() -> None:
    other = bytearray(ENCODED)
    other[4:6] = struct.pack("<H", wire.VERSION + 1)
    with pytest.raises(UnknownVersion, match="use the release that wrote it"):
        wire.decode(bytes(other))


def message_of(blocks: list[bytes]) -> bytes:
    """A message whose checksum and digests hold, whatever its blocks are."""
    offset = 32 + 32 * len(blocks)
    table = b""
    for block in blocks:
        table += struct.pack("<QQ16s", offset, len(block), xxhash.xxh3_128_digest(block))
        offset += len(block)
    prefix = struct.pack("<4sHHIIQ", wire.MAGIC, wire.VERSION, 0, len(blocks), 0, offset)
    return prefix + struct.pack("<Q", xxhash.xxh3_64_intdigest(prefix + table)) + table + b"".join(blocks)


def block_of(meta: object, columns: bytes = b"") -> bytes:
    text = json.dumps(meta).encode()
    return struct.pack("<II", len(text), 0) + text + bytes(-len(text) % 8) + columns


META = {
    "id": "g1.0", "attempt": 0, "prompt": 0, "span": [0, 0], "finish": "stop", "engine": "e",
    "sample": "sampled", "segments": [["model", 2, 0, 0, 0]],
}  # fmt: skip


def test_the_documented_layout_is_what_is_read() -> None:
    columns = struct.pack("<ii2B6x2f2i", 5, 6, 1, 0, -0.5, -1.0, 3, 4)
    (found,) = wire.decode(message_of([block_of(META, columns)]))
    assert found.segments[0].tokens.tolist() == [5, 6]
    assert found.segments[0].loss_mask.tolist() == [1, 0]
    assert found.segments[0].logprobs.tolist() == [-0.5, -1.0]
    assert found.segments[0].versions.tolist() == [3, 4]
    runs = META | {"segments": [["model", 5, 1, 1, 2]]}
    columns = struct.pack("<5i4x ii fi 4i", *range(5), 1, 5, 0.5, 5, 7, 8, 2, 3)
    (found,) = wire.decode(message_of([block_of(runs, columns)]))
    assert found.segments[0].loss_mask.tolist() == [1] * 5
    assert found.segments[0].logprobs.tolist() == [0.5] * 5
    assert found.segments[0].versions.tolist() == [7, 7, 8, 8, 8]


@pytest.mark.parametrize(
    "block",
    [
        block_of([]),
        block_of(META | {"extra": 1}, bytes(32)),
        block_of({key: value for key, value in META.items() if key != "span"}, bytes(32)),
        block_of(META | {"finish": "bored"}, bytes(32)),
        block_of(META | {"segments": [["model", -1, 0, 0, 0]]}),
        block_of(META | {"segments": [["model", 2**31, 1, 1, 1]]}, bytes(64)),
        block_of(META | {"segments": [["model", 2**31 - 1, 1, 1, 1]]}, bytes(64)),
        block_of(META | {"segments": [["model", 2, 0, 0]]}, bytes(32)),
        block_of(META | {"segments": [["model", 2, 0, 0, 2]]}, bytes(40)),
        block_of(META | {"segments": [["model", 2, 0, 0, 2]]}, bytes(24) + struct.pack("<4i", 1, 1, 3, -1)),
        block_of(META | {"segments": [["model", 2, 0, 0, 2**31 - 1]]}, bytes(40)),
        block_of(
            META | {"segments": [["model", 2, 1, 0, 0]]}, bytes(8) + struct.pack("<2i", 1, 3) + bytes(16)
        ),
        block_of(META | {"attempt": "0"}, bytes(32)),
        block_of(META | {"segments": [["model", 0, 0, 0, 0]] * (SEGMENTS + 1)}),
        block_of(META | {"engine": "e" * 200_000}, bytes(32)),
        block_of(META, bytes(24)),
        block_of(META, bytes(40)),
        struct.pack("<II", 2**32 - 1, 0),
        struct.pack("<II", 9, 0) + bytes(8),
        struct.pack("<II", 4, 0) + b"\xff\xff\xff\xff" + bytes(4),
    ],
)
def test_a_block_that_contradicts_itself_is_refused_though_its_digest_holds(block: bytes) -> None:
    with pytest.raises(CorruptPayload):
        wire.decode(message_of([block]))


def test_more_trajectories_than_a_message_holds_are_refused() -> None:
    blocks = [wire.pack(VALID[0]).block] * (MESSAGE_TRAJECTORIES + 1)
    assert len(wire.decode_verified(message_of(blocks[1:]))) == MESSAGE_TRAJECTORIES
    assert len(wire.decode(message_of(blocks))) == MESSAGE_TRAJECTORIES + 1, "between ranks"
    with pytest.raises(CorruptPayload, match="129 trajectories"):
        wire.decode_verified(message_of(blocks))


@settings(max_examples=300)
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text() | st.sampled_from(["model", "stop"]),
        lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from([*META, "x"]), inner),
        max_leaves=12,
    ),
    st.binary(max_size=64),
)
def test_any_meta_with_a_digest_that_holds_decodes_or_is_refused(patch: object, columns: bytes) -> None:
    meta = META | patch if isinstance(patch, dict) else META | {"segments": patch}
    padded = columns + bytes(-len(columns) % 8)
    try:
        found = wire.decode(message_of([block_of(meta, padded)]))
    except CorruptPayload:
        return
    assert found[0].id == meta["id"]


# --------------------------------------------------------------------------------------------- summaries


def test_a_summary_says_what_its_trajectory_is() -> None:
    value = trajectory(length=40)
    summary = summarize(wire.pack(value))
    assert summary == PayloadSummary(
        trajectory="g7.2",
        attempt=2,
        prompt=7,
        span=VersionSpan(3, 5),
        tokens=57,
        response_tokens=43,
        digest=wire.digest(value),
        finish=FinishReason.STOP,
        sample="sampled",
        engine="pool-0",
    )


@given(st.lists(trajectories, max_size=3))
def test_summaries_fit_a_header_and_come_back(several: list[Trajectory]) -> None:
    summaries = tuple(summarize(wire.pack(value)) for value in several)
    header = encode_summaries(summaries)
    assert header.isascii()
    assert not set(header) & {"\r", "\n"}
    assert decode_summaries(header) == summaries


@pytest.mark.parametrize("value", ["", "{}", "[[]]", '[{"trajectory": "g1.0"}]', "\x00"])
def test_what_is_no_summary_is_refused(value: str) -> None:
    with pytest.raises(CorruptPayload):
        decode_summaries(value)
