"""The benchmark of recovery times kills each role once, and reads the times from ledger and log as it should."""

from __future__ import annotations

from pathlib import Path

import pytest
from bench.recovery import after_coordinator, after_server, longest_gap
from kill_locations import Written
from tests.emulated import emulated

from bench import recovery
from rljob_contract.tiny_models import tiny_model
from rljob_core.records import EpochClaimed, JobFinished, Record, Writer

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

SECOND = 1_000_000_000
OLD, NEW = Writer(1, "old"), Writer(2, "new")


def written(seconds: int, writer: Writer, *records: Record) -> Written:
    return Written(seconds, seconds * SECOND, writer, records or (JobFinished(),))


def test_a_coordinator_is_back_with_its_first_records_after_the_claim() -> None:
    claim = EpochClaimed(NEW.number, NEW.instance, "job")
    ledger = [
        written(1, OLD),
        written(4, NEW, claim),
        written(5, OLD),
        written(7, NEW),
        written(9, NEW),
    ]
    assert after_coordinator(2 * SECOND, ledger) == 5.0
    with pytest.raises(LookupError):
        after_coordinator(4 * SECOND, ledger)


def test_a_server_is_back_with_the_first_message_after_it_was_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "UTC")
    log = "".join(
        f"[{pid}] 1970/01/01 00:00:0{second}.500000 [INF] Server is ready\n"
        for pid, second in ((7, 1), (8, 4), (9, 8))
    )
    assert after_server(3 * SECOND, log, [written(2, OLD), written(4, OLD), written(6, OLD)]) == 1.5


def test_the_longest_gap_counts_both_ends() -> None:
    assert longest_gap(10 * SECOND, [SECOND, 11 * SECOND, 14 * SECOND, 99 * SECOND], 16 * SECOND) == 3.0
    assert longest_gap(10 * SECOND, [], 16 * SECOND) == 6.0


def test_each_role_is_measured(tmp_path: Path) -> None:
    model = tiny_model(tmp_path / "model")
    seconds = recovery.measure(tmp_path, model, kills=1, per_run=1, **emulated())
    assert {role: len(found) for role, found in seconds.items()} == dict.fromkeys(seconds, 1)
    assert all(found[0] > 0 for found in seconds.values())
