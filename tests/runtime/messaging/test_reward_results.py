"""Messages of the reward stream in which results are damaged: one is lost at most, and the reader never."""

from __future__ import annotations

import json

import pytest

from rljob_core.failures import Failure, Reason
from rljob_core.messages import REWARD_BATCH, RewardBatch, RewardResult
from rljob_core.messages.limits import LONGEST_WORDS, MESSAGE_RESULTS
from rljob_runtime.messaging.reward_results import decode_results

GOOD = RewardResult("g0.1", 1, "payload", 0.5, {"exact_match": 0.5}, "digest")


def message(*entries: str) -> bytes:
    good = json.dumps(json.loads(REWARD_BATCH.dump_json(RewardBatch((GOOD,))))["results"][0])
    return f'{{"results": [{", ".join([good, *entries])}]}}'.encode()


def entry(**changes: str) -> str:
    """A result of g0.0 as JSON, with fields written as given."""
    fields = {"trajectory": '"g0.0"', "attempt": "2", "payload_digest": '"p"', "reward": "1", "parts": "{}"}
    fields |= {"digest": '"d"'} | changes
    return "{" + ", ".join(f'"{name}": {value}' for name, value in fields.items()) + "}"


@pytest.mark.parametrize(
    ("damaged", "wrong"),
    [
        (entry(reward="NaN"), "reward"),
        (entry(reward="-Infinity"), "reward"),
        (entry(reward="null"), "reward"),
        (entry(reward='"1e999"'), "reward"),
        (entry(reward="1e999"), "reward"),
        (entry(parts='{"f": NaN}'), "parts.f"),
        (entry(parts="[]"), "parts"),
        (entry(failure="7"), "failure"),
        (entry(sample="{}"), "sample"),
    ],
)
def test_a_damaged_result_is_its_attempts_failure(damaged: str, wrong: str) -> None:
    good, failed = decode_results(message(damaged))
    assert good == GOOD
    assert (failed.trajectory, failed.attempt, failed.payload_digest, failed.reward) == ("g0.0", 2, "p", 0.0)
    assert failed.error == f"RewardInvalid: it does not decode: {wrong}"


@pytest.mark.parametrize(
    "damaged", ["7", "null", "[]", "{}", entry(trajectory="7"), entry(attempt="1" * 5000)]
)
def test_what_names_no_attempt_is_left_out(damaged: str) -> None:
    assert decode_results(message(damaged)) in [(GOOD,), ()]


@pytest.mark.parametrize("data", [b"", b"\xff", b"{}", b"[]", b'{"results": 7}', b"[" * 100_000, b"null"])
def test_a_message_of_something_else_holds_no_results(data: bytes) -> None:
    assert decode_results(data) == ()


@pytest.mark.parametrize(
    ("changes", "wrong"),
    [
        ({"digest": json.dumps("d" * 400)}, "digest is "),
        ({"sample": json.dumps("a b")}, "sample is "),
        ({"parts": json.dumps({"f" * 400: 1})}, " is 'ffff"),
    ],
)
def test_a_result_out_of_bounds_is_its_attempts_failure(changes: dict[str, str], wrong: str) -> None:
    good, failed = decode_results(message(entry(**changes)))
    assert good == GOOD
    assert (failed.trajectory, failed.attempt, failed.payload_digest) == ("g0.0", 2, "p")
    assert failed.error.startswith("RewardInvalid: it does not decode: ")
    assert wrong in failed.error


@pytest.mark.parametrize(
    "changes", [{"trajectory": '"g0.>"'}, {"attempt": "1" * 30}, {"payload_digest": json.dumps("d" * 400)}]
)
def test_what_names_no_attempt_that_can_be_is_left_out(changes: dict[str, str]) -> None:
    assert decode_results(message(entry(**changes))) == (GOOD,)


@pytest.mark.parametrize("another", [entry(), "{}"], ids=["good", "damaged"])
def test_no_more_results_are_read_than_a_message_holds(another: str) -> None:
    assert len(decode_results(message(*[entry()] * 600, another))) == MESSAGE_RESULTS


def test_a_long_error_is_cut() -> None:
    _, failed = decode_results(
        message(entry(failure=json.dumps({"reason": "RewardRaised", "detail": "x" * 900_000})))
    )
    assert failed.failure == Failure(Reason.REWARD_RAISED, "x" * LONGEST_WORDS)
