"""Of candidates for one Lease, whatever holds them up, never two may write at the same time."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_operator.decisions.leadership import (
    LEASE_SECONDS,
    RETRY_SECONDS,
    WORK_SECONDS,
    Candidate,
    LeadershipLost,
    LeaseHolder,
)

TODAY = datetime.fromtimestamp(0.0, UTC)


@dataclass
class Server:
    """The Lease as the API server has it: a write of another version than the present one is refused."""

    spec: dict[str, Any] | None = None
    version: int = 0

    def write(self, spec: dict[str, Any], version: int) -> bool:
        if version != self.version:
            return False
        self.spec, self.version = {**(self.spec or {}), **spec}, version + 1
        return True


@dataclass
class Process:
    """A candidate that does one thing at a time, of which each may take any time."""

    candidate: Candidate
    version: int = 0
    sent: float | None = None
    spec: dict[str, Any] = field(default_factory=dict)
    arrived: bool | None = None
    ends: float = 0.0
    """Until when a write of its may still arrive."""

    def step(self, server: Server, now: float) -> None:
        """Read, decide and send; or let what was sent arrive; or read the answer."""
        candidate = self.candidate
        if self.sent is None:
            candidate.saw(server.spec, now)
            self.version = server.version
            if candidate.may_take(now):
                claim = candidate.claim(datetime.fromtimestamp(now, UTC))
                self.sent, self.spec, self.arrived = now, claim, None
            else:
                candidate.lose()
        elif self.arrived is None:
            self.arrived = server.write(self.spec, self.version)
        else:
            if self.arrived:
                candidate.renewed(server.spec or {}, sent=self.sent, now=now)
            self.sent = None

    def work(self, now: float) -> None:
        """Begin a write, if this process may."""
        if self.candidate.leads(now):
            self.ends = max(self.ends, now + self.candidate.write_seconds(now))


def candidate(number: int) -> Candidate:
    return Candidate(LeaseHolder(f"pod-{number}", "1"))


STEPS = st.lists(
    st.tuples(st.integers(0, 2), st.sampled_from([0.0, 0.1, 1.0, 2.0, 5.0, 9.0, 16.0])), max_size=80
)


@given(STEPS)
def test_never_two_write_at_the_same_time(steps: list[tuple[int, float]]) -> None:
    server, now = Server(), 100.0
    processes = [Process(candidate(number)) for number in range(3)]
    for who, seconds in steps:
        now += seconds
        processes[who].step(server, now)
        for process in processes:
            process.work(now)
        leading = [process for process in processes if process.candidate.leads(now)]
        assert len(leading) <= 1
        for process in processes:
            assert not leading or process is leading[0] or process.ends <= now


def test_who_renews_keeps_it_and_who_is_silent_loses_it() -> None:
    server, first, second = Server(), Process(candidate(1)), Process(candidate(2))
    now, until = 0.0, 60.0
    while now < until:
        for process in (first, second):
            process.step(server, now)
        now += RETRY_SECONDS / 3
        assert second.candidate.holder in {"", "pod-1_1"}
    assert first.candidate.leads(now)
    silent = now
    while not second.candidate.leads(now):
        now += RETRY_SECONDS
        for _ in range(3):
            second.step(server, now)
    assert LEASE_SECONDS - RETRY_SECONDS <= now - silent <= 20.0
    assert not first.candidate.leads(now)
    with pytest.raises(LeadershipLost, match="pod-1_1 had it last"):
        first.candidate.write_seconds(now)
    assert server.spec is not None
    assert server.spec["leaseTransitions"] == 1


def test_a_write_ends_before_another_process_may_begin() -> None:
    only = candidate(1)
    only.renewed({"holderIdentity": "pod-1_1"}, sent=10.0, now=10.5)
    assert only.write_seconds(10.0 + WORK_SECONDS - 0.01) < LEASE_SECONDS - WORK_SECONDS
    assert not only.leads(10.0 + WORK_SECONDS)


def test_what_was_given_back_or_left_by_an_earlier_process_of_the_pod_is_taken_at_once() -> None:
    left = {
        "holderIdentity": "pod-1_0",
        "leaseDurationSeconds": 15,
        "renewTime": "x",
        "leaseTransitions": 3,
    }
    mine, other, process = candidate(1), candidate(2), Candidate(LeaseHolder("", "7"))
    for each in (mine, other, process):
        assert not each.may_take(0.0)  # it has not looked
        each.saw(left, 0.0)
    assert mine.may_take(0.0)
    assert mine.claim(TODAY)["leaseTransitions"] == 4
    assert not other.may_take(14.9)
    assert not process.may_take(14.9)
    assert other.may_take(15.0)
    other.saw(left | mine.release(), 1.0)
    assert other.may_take(1.0)
