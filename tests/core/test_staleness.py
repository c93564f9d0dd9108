from __future__ import annotations

import inspect
from typing import Any

import pytest

from rljob_core.errors import ProtocolViolation, StalenessExceeded
from rljob_core.planner.buffers import moves
from rljob_core.records import GroupMoved
from rljob_core.staleness import Buffer, Entry, EntryState, StalenessBuffers


def opened(*, bound: int, version: int = 0, capacity: int = 2) -> StalenessBuffers:
    buffers = StalenessBuffers()
    buffers.version = buffers.next_step = version
    for step in buffers.openable(bound, 100):
        buffers.open(step=step, max_staleness=bound, mode="BoundedAsync", capacity=capacity)
    return buffers


@pytest.mark.parametrize(("bound", "steps"), [(0, [5]), (1, [5, 6]), (4, [5, 6, 7, 8, 9])])
def test_buffers_open_as_far_as_their_oldest_weights_exist(bound, steps):
    assert list(opened(bound=bound, version=5).buffers) == steps


def test_buffers_do_not_open_past_the_last_step():
    buffers = StalenessBuffers()
    assert list(buffers.openable(4, 2)) == [0, 1]


def test_a_buffer_cannot_open_early_or_out_of_order():
    buffers = opened(bound=1)
    with pytest.raises(ProtocolViolation, match="cannot open at version 0"):
        buffers.open(step=2, max_staleness=1, mode="BoundedAsync", capacity=1)
    with pytest.raises(ProtocolViolation, match="the next one is 2"):
        buffers.open(step=3, max_staleness=5, mode="BoundedAsync", capacity=1)


@pytest.mark.parametrize(("base", "legal"), [(2, False), (3, True), (4, True), (5, True)])
def test_reservation_keeps_the_bound(base, legal):
    buffers = opened(bound=2, version=3)
    if legal:
        buffers.reserve(group="g", step=5, base=base)
        assert buffers.entry_of("g").base == base
    else:
        with pytest.raises(ProtocolViolation, match="not admissible"):
            buffers.reserve(group="g", step=5, base=base)
        assert "g" not in buffers


def test_a_full_buffer_takes_nothing():
    buffers = opened(bound=0, capacity=1)
    buffers.reserve(group="a", step=0, base=0)
    with pytest.raises(ProtocolViolation, match="full"):
        buffers.reserve(group="b", step=0, base=0)


def test_a_group_has_one_entry():
    buffers = opened(bound=1)
    buffers.reserve(group="a", step=0, base=0)
    with pytest.raises(ProtocolViolation, match="already has an entry"):
        buffers.reserve(group="a", step=1, base=0)


def test_what_is_in_training_never_moves():
    buffers = opened(bound=1)
    buffers.reserve(group="a", step=0, base=0)
    buffers.reserve(group="b", step=1, base=0)
    buffers.occupy(group="a", base=0)
    buffers.train(group="a")
    with pytest.raises(ProtocolViolation, match="in training"):
        buffers.move(group="a", target=1)
    with pytest.raises(ProtocolViolation, match="in training"):
        buffers.swap(group="b", displaced="a")


def test_a_displaced_entry_must_satisfy_the_stamp_it_lands_in():
    buffers = opened(bound=2, version=3)  # buffers 3, 4, 5
    buffers.reserve(group="late", step=3, base=2)
    buffers.reserve(group="early", step=5, base=3)
    with pytest.raises(ProtocolViolation, match="late with base 2 is not admissible in buffer 5"):
        buffers.swap(group="early", displaced="late")
    assert (buffers.buffer_of("late").step, buffers.buffer_of("early").step) == (3, 5)
    buffers.rebase(group="late", base=3)
    buffers.swap(group="early", displaced="late")
    assert (buffers.buffer_of("late").step, buffers.buffer_of("early").step) == (5, 3)


def test_the_mover_too_must_satisfy_a_smaller_stamp():
    buffers = opened(bound=0, version=3)
    buffers.open(step=4, max_staleness=2, mode="BoundedAsync", capacity=2)  # opened after η was raised
    buffers.reserve(group="g", step=4, base=2)
    with pytest.raises(ProtocolViolation, match="buffer 3"):
        buffers.move(group="g", target=3)


def test_only_the_current_step_is_trained_and_consumed_whole():
    buffers = opened(bound=1, capacity=2)
    for group in ("a", "b"):
        buffers.reserve(group=group, step=0, base=0)
    buffers.reserve(group="c", step=1, base=0)
    for group in ("a", "b", "c"):
        buffers.occupy(group=group, base=0)
    with pytest.raises(ProtocolViolation, match="the trainer is at 0"):
        buffers.train(group="c")
    buffers.train(group="a")
    with pytest.raises(ProtocolViolation, match="not whole"):
        buffers.consume(0)
    buffers.train(group="b")
    assert buffers.consume(0) == ["a", "b"]
    assert buffers.version == 1
    assert "a" not in buffers


def test_consumption_checks_the_bound_once_more():
    buffers = opened(bound=0, version=3, capacity=1)
    buffers.reserve(group="a", step=3, base=3)
    buffers.occupy(group="a", base=3)
    buffers.train(group="a")
    buffers.entry_of("a").base = 2  # as if some guard before had failed
    with pytest.raises(StalenessExceeded, match="staleness 1 exceeds the bound 0"):
        buffers.consume(3)
    assert buffers.version == 3


CHANGES: list[tuple[str, dict[str, Any]]] = [
    ("open", {"step": 0, "max_staleness": 1, "mode": "BoundedAsync", "capacity": 1}),
    ("open", {"step": 1, "max_staleness": 1, "mode": "BoundedAsync", "capacity": 2}),
    ("reserve", {"group": "a", "step": 0, "base": 0}),
    ("reserve", {"group": "b", "step": 1, "base": 0}),
    ("rebase", {"group": "b", "base": 0}),
    ("swap", {"group": "b", "displaced": "a"}),
    ("occupy", {"group": "b", "base": 0}),
    ("reopen", {"group": "b", "base": 0}),
    ("occupy", {"group": "b", "base": 0}),
    ("train", {"group": "b"}),
    ("give_back", {"group": "b"}),
    ("abort", {"group": "b"}),
    ("move", {"group": "a", "target": 0}),
    ("occupy", {"group": "a", "base": 0}),
    ("train", {"group": "a"}),
    ("consume", {"step": 0}),
    ("restore", {"step": 1, "groups": [], "moved": {}}),
    ("revoke", {"version": 0}),
]


def test_every_change_is_counted():
    buffers = StalenessBuffers()
    for name, arguments in CHANGES:
        before = buffers.changes
        getattr(buffers, name)(**arguments)
        assert buffers.changes > before, name
    public = inspect.getmembers(StalenessBuffers, inspect.isfunction)
    queries = {"buffer_of", "entry_of", "openable"}
    assert {name for name, _ in public if name[0] != "_"} == {name for name, _ in CHANGES} | queries


def test_training_is_given_back_and_aborts_free_the_entry():
    buffers = opened(bound=0, capacity=1)
    buffers.reserve(group="a", step=0, base=0)
    buffers.occupy(group="a", base=0)
    buffers.train(group="a")
    buffers.give_back(group="a")
    assert buffers.entry_of("a").state is EntryState.OCCUPIED
    buffers.abort("a")
    buffers.reserve(group="b", step=0, base=0)


@pytest.mark.parametrize(("base", "moved"), [(0, False), (1, True)])
def test_a_finished_group_moves_only_within_the_bound_of_the_buffer_that_it_moves_to(
    base: int, moved: bool
) -> None:
    waits, done = Entry("g1", 1), Entry("g2", base, EntryState.OCCUPIED)
    current = Buffer(1, 0, "Streaming", 1, {"g1": waits})
    later = Buffer(2, 2, "BoundedAsync", 1, {"g2": done})
    found = moves(StalenessBuffers.of(1, 3, [current, later]))
    assert found == ([GroupMoved("g2", 2, 1, "g1")] if moved else [])
