"""Which versions may be deleted: never one that a needed version depends on."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from rljob_core.ports import DeltaBase, WeightManifest
from rljob_core.weight_retention import deletable


def manifest(version: int, *, base: WeightManifest | None = None, key: str = "a") -> WeightManifest:
    name = f"v{version}-{key}"
    depth = 0 if base is None else 1 + (base.base.depth if base.base else 0)
    said = None if base is None else DeltaBase(base.key, base.digest, depth)
    return WeightManifest(name, version, "", (), None, f"digest of {name}", said)


def history(versions: int, anchor_every: int) -> list[WeightManifest]:
    made: list[WeightManifest] = []
    for version in range(versions):
        made.append(manifest(version, base=made[-1] if version % anchor_every else None))
    return made


def test_whole_versions_go_as_soon_as_they_are_not_needed() -> None:
    assert deletable(history(6, 1), needed_from=4) == ["v0-a", "v1-a", "v2-a", "v3-a"]
    assert deletable(history(6, 1), needed_from=0) == []
    assert deletable([], needed_from=9) == []


def test_the_versions_that_a_needed_delta_depends_on_stay_down_to_its_anchor() -> None:
    versions = history(12, 5)  # anchors 0, 5, 10
    assert deletable(versions, needed_from=9) == [f"v{v}-a" for v in range(5)]
    assert deletable(versions, needed_from=10) == [f"v{v}-a" for v in range(10)]
    assert deletable(versions, needed_from=4) == []


def test_the_base_that_is_named_stays_and_not_its_rival() -> None:
    """Version 2 was proposed by two attempts; 3 depends on the second's."""
    first = manifest(1)
    lost, kept = manifest(2, base=first), manifest(2, base=first, key="b")
    after = manifest(3, base=kept, key="b")
    assert deletable([after, kept, lost, first], needed_from=3) == ["v2-a"]


@given(data=st.data(), versions=st.integers(1, 15), needed=st.integers(0, 16))
def test_no_chain_breaks_and_nothing_needless_is_kept(
    data: st.DataObject, versions: int, needed: int
) -> None:
    made: list[WeightManifest] = []
    for version in range(versions):
        for key in data.draw(st.sampled_from(["a", "ab"])):
            bases = [m for m in made if m.version == version - 1]
            made.append(manifest(version, base=data.draw(st.sampled_from([None, *bases])), key=key))
    shuffled = data.draw(st.permutations(made))
    gone = set(deletable(shuffled, needed_from=needed))
    by_key = {m.key: m for m in made}
    reached: set[str] = set()
    ways = [m for m in made if m.version >= needed]
    while ways:
        reached.add((m := ways.pop()).key)
        ways += [by_key[m.base.key]] if m.base else []
    assert gone == by_key.keys() - reached
    assert deletable([m for m in made if m.key not in gone], needed_from=needed) == []
