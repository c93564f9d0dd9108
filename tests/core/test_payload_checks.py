"""Headers of payloads are checked: what cannot be true costs its attempt, and is never trained on."""

from __future__ import annotations

from dataclasses import replace

import pytest
from ledger_history import check_history, records
from world import SimulatedEngine, World, job_config

from rljob_core.actions import Summary
from rljob_core.messages import Generate
from rljob_core.planner.results import payload_fault
from rljob_core.records import Generated, SiblingReset
from rljob_core.trajectory import VersionSpan


class Mislabelled(World):
    """The first attempt of each trajectory of g1 is said to be of weights that come later."""

    def complete(self, engine: SimulatedEngine, work: Generate) -> None:
        key = (work.trajectory, work.attempt)
        if work.trajectory.startswith("g1.") and work.attempt == 1 and key in engine.running:
            engine.running[key] = VersionSpan(engine.version, engine.version + 2)
        super().complete(engine, work)


def test_tokens_of_weights_that_do_not_exist_are_not_trained_on() -> None:
    world = Mislabelled(job_config())
    world.start()
    world.run()
    assert world.finished == "Succeeded"
    check_history(world)
    reset = [r for r in records(world) if isinstance(r, SiblingReset)]
    assert {r.trajectory.partition(".")[0] for r in reset} == {"g1"}
    for record in reset:
        assert (record.reason, record.failure) == ("InvalidOutput", True)
        assert record.detail.endswith("is the newest committed one")
    generated = [r for r in records(world) if isinstance(r, Generated) and r.trajectory.startswith("g1.")]
    assert {r.attempt for r in generated} == {2}


@pytest.mark.parametrize(
    ("span", "tokens", "response", "fault"),
    [
        ((0, 3), 9, 9, ""),
        ((3, 3), 9, 1, ""),
        ((3, 4), 9, 5, "its tokens are of versions up to 4, where 3 is the newest committed one"),
        (
            (2**40, 2**40),
            9,
            5,
            f"its tokens are of versions up to {2**40}, where 3 is the newest committed one",
        ),
        ((-1, 3), 9, 5, "its tokens are of versions -1 to 3"),
        ((3, 2), 9, 5, "its tokens are of versions 3 to 2"),
        ((3, 3), 9, 0, "0 of 9 tokens are its response"),
        ((3, 3), 9, 10, "10 of 9 tokens are its response"),
        ((3, 3), 10**400, 10**400, f"more than {2**40} tokens cannot be"),
    ],
)
def test_what_cannot_be_true_is_named(span: tuple[int, int], tokens: int, response: int, fault: str) -> None:
    summary = Summary("g0.0", 1, VersionSpan(*span), tokens, response, "digest")
    assert payload_fault(summary, committed=3) == fault
    assert payload_fault(replace(summary, digest="d" * 65), committed=3) == "its digest has 65 characters"
