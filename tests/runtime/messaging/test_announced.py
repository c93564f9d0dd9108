"""The headers that a reader takes from the server's word that messages are stored."""

from __future__ import annotations

from rljob_runtime.messaging.nats.client import Received
from rljob_runtime.messaging.nats.reader import Announced


def told(announced: Announced, *sequences: int, size: int = 10) -> None:
    for sequence in sequences:
        announced.add(Received("stored.s", "", b"", {"Nats-Sequence": f"{sequence}", "Summary": "x" * size}))


def taken(announced: Announced, most: int = 100) -> list[int]:
    return [sequence for _, sequence in announced.take(most)]


def test_headers_are_taken_from_the_readers_position_on() -> None:
    announced = Announced(1 << 20)
    told(announced, 5, 6, 7, 8)
    assert not announced.has(4)  # 4 was stored before anything was said
    assert announced.has(6)
    assert taken(announced, 2) == [6, 7]
    assert announced.has(8)
    assert not announced.has(9)
    assert taken(announced) == []
    assert announced.last == 8


def test_headers_behind_a_gap_count_once_the_reader_is_there() -> None:
    announced = Announced(1 << 20)
    told(announced, 5, 6, 9, 10)  # 7 and 8 got lost
    assert not announced.has(5)
    assert not announced.has(7)
    assert announced.has(9)
    assert taken(announced) == [9, 10]


def test_headers_are_dropped_when_there_are_too_many() -> None:
    announced = Announced(1000)
    told(announced, *range(1, 10), size=100)
    assert announced.has(1)
    told(announced, *range(10, 15), size=100)
    assert not announced.has(1)
    assert announced.has(10)
    assert taken(announced) == [10, 11, 12, 13, 14]
    for sequence in range(15, 100, 3):  # what was taken leaves room
        told(announced, sequence, sequence + 1, size=450)
        assert announced.has(sequence)
        assert taken(announced, 1) == [sequence]
        told(announced, sequence + 2, size=450)
        assert announced.has(sequence + 1)
        assert taken(announced) == [sequence + 1, sequence + 2]


def test_nothing_is_kept_of_headers_that_nobody_reads_or_that_another_server_sent() -> None:
    unwanted, forgotten = Announced(), Announced(1000)
    told(unwanted, 1)
    told(forgotten, 1)
    forgotten.forget()
    assert (unwanted.last, forgotten.last) == (1, 0)
    for announced in (unwanted, forgotten):
        assert not announced.has(1)
