"""The nats-server's machine dies and loses messages that were acknowledged but not synced: the job continues."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from cut_files import cut_bytes, cut_messages, stream_folder
from faulty_run import FaultyRun
from kill_locations import Written, commits, read_ledger
from tests.emulated import emulated
from tests.night import chance
from watcher import names_of

from rljob_core.records import MicroBatchAssigned, Record, StepCommitted, StepRestored

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]

STEPS = 60  # it is not over before the last cut
OTHERS = ("work", "training", "events", "trajectories", "rewards", "versions", "signals")


def after_last(ledger: Sequence[Written], wanted: Callable[[Record], bool]) -> int:
    """Messages of the ledger after the newest one that has such a record."""
    sequence = max(m.sequence for m in ledger if any(map(wanted, m.records)))
    return sum(message.sequence > sequence for message in ledger)


def lose_last_messages(store: Path, ledger: Sequence[Written]) -> int:
    cut_messages(stream_folder(store, "ledger"), 3)
    return 0


def lose_half_a_step(store: Path, ledger: Sequence[Written]) -> int:
    """The newest commit, and all after the micro-batch before it."""
    version = commits(ledger)[-1]
    count = after_last(ledger, lambda r: isinstance(r, MicroBatchAssigned) and r.step == version - 1)
    cut_messages(stream_folder(store, "ledger"), count)
    return 1


def lose_steps_and_the_ends_of_all_else(store: Path, ledger: Sequence[Written]) -> int:
    """Four commits, and up to as many messages of every other stream."""
    version = commits(ledger)[-4]
    count = 1 + after_last(ledger, lambda r: isinstance(r, StepCommitted) and r.version == version)
    cut_messages(stream_folder(store, "ledger"), count)
    for other in OTHERS:
        cut_messages(stream_folder(store, other), chance(f"lost tail of {other}").randrange(5))
    return 4


def tear_a_record(store: Path, ledger: Sequence[Written]) -> int:
    """The newest commit's message ends in its middle."""
    version = commits(ledger)[-1]
    count = after_last(ledger, lambda r: isinstance(r, StepCommitted) and r.version == version)
    cut_messages(stream_folder(store, "ledger"), count)
    cut_bytes(stream_folder(store, "ledger"), 100)
    return 1


CUTS = (lose_last_messages, lose_half_a_step, lose_steps_and_the_ends_of_all_else, tear_a_record)


def test_a_ledger_that_lost_its_tail(start: Callable[..., FaultyRun]) -> None:
    run = start("tail lost", steps=STEPS, **emulated())
    names = names_of
    least = 0
    for number, cut in enumerate(CUTS, start=1):
        run.watch(6 * number)
        run.crash()
        before = read_ledger(run.output / "nats", names(run.output))
        least += cut(run.output / "nats" / "store", before)
        after = read_ledger(run.output / "nats", names(run.output))
        lost = len(before) - len(after)
        assert lost > 0
        run.say(
            f"{cut.__name__}: {lost} messages of {len(before)}, versions {commits(before)[-1]} -> "
            f"{max(commits(after), default=0)}"
        )
        run.resume()
    ledger = run.finish()
    assert commits(ledger) == list(range(1, STEPS + 1))
    restored = [r.commit.version for m in ledger for r in m.records if isinstance(r, StepRestored)]
    run.say(f"taken back from manifests: {restored}")
    assert len(restored) >= least
