"""Every way in which a response can contradict its request is recognised, and good ones pass."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from rljob_core.ports import Completed, Progress
from rljob_core.trajectory import FinishReason
from rljob_runtime.engines.output_checks import OutputLimits, output_fault

LIMITS = OutputLimits(max_tokens=6, vocabulary=10, oldest=3, newest=5)
INHERITED = Progress(
    "before", np.array([1, 2], np.int32), np.array([-1, -2], np.float32), np.array([1, 2], np.int32)
)
CONTINUES = replace(LIMITS, inherited=INHERITED)


def response(**changes: Any) -> Completed:
    columns: dict[str, Any] = {
        "tokens": np.array([1, 2, 0, 9], np.int32),
        "logprobs": np.array([-1, -2, 0, -0.5], np.float32),
        "versions": np.array([3, 3, 4, 5], np.int32),
    }
    return Completed("r", **{"finish": FinishReason.STOP, **columns, **changes})


def continued(**changes: Any) -> Completed:
    return response(**{"versions": np.array([1, 2, 4, 5], np.int32), **changes})


@pytest.mark.parametrize(
    "good",
    [
        response(),
        response(finish=FinishReason.LENGTH),
        response(tokens=[1, 2, 3, 4], logprobs=[-1.0, 0, 0, -3], versions=(3, 3, 3, 3)),
        response(tokens=np.array([1, 2, 3, 4], np.uint64)),
        response(logprobs=np.array([-1e4, 0, 1e-6, -1], np.float16)),
        response(logprobs=np.array([-3e38, 0, -1e-300, -1])),
        Progress("r", np.array([9]), np.array([-1.0]), np.array([5])),
    ],
)
def test_what_keeps_to_its_limits_passes(good: Completed | Progress) -> None:
    assert output_fault(good, LIMITS) == ""


@pytest.mark.parametrize(
    ("bad", "fault"),
    [
        (response(tokens=None), "its tokens are not a column of whole numbers"),
        (response(tokens=[[1, 2, 3, 4]]), "its tokens are not a column of whole numbers"),
        (response(tokens=[1, 2, 3, 0.5]), "its tokens are not a column of whole numbers"),
        (response(tokens=[1, 2, 3, 10**30]), "its tokens are not a column of whole numbers"),
        (response(tokens=[[1], [2, 3]]), "its tokens are not a column of whole numbers"),
        (response(logprobs=["a"] * 4), "its logprobs are not a column of numbers"),
        (response(logprobs=np.zeros(3)), "4 tokens have 3 log-probabilities and 4 versions"),
        (response(versions=[3]), "4 tokens have 4 log-probabilities and 1 versions"),
        (response(tokens=[], logprobs=[], versions=[]), "it has no tokens"),
        (
            response(tokens=[1] * 7, logprobs=[-1] * 7, versions=[3] * 7),
            "it has 7 tokens, where maxTokens is 6",
        ),
        (response(finish=FinishReason.UNFINISHED), "it ended by 'unfinished', not by stop or length"),
        (response(finish="x" * 1000), "it ended by '" + "x" * 40 + "', not by stop or length"),
        (response(tokens=[1, 2, 10, 3]), "token 2 is 10; the model's token ids are 0 to 9"),
        (response(tokens=[-1, 2, 3, 3]), "token 0 is -1; the model's token ids are 0 to 9"),
        (
            response(logprobs=[-1, 0, -np.inf, 0]),
            "the log-probability of token 2 is -inf, not a finite float32 and at most 0",
        ),
        (
            response(logprobs=np.array([-1, 0, 0, -1e308])),
            "the log-probability of token 3 is -1e+308, not a finite float32 and at most 0",
        ),
        (
            response(logprobs=[-1, 0.01, 0, 0]),
            "the log-probability of token 1 is 0.01, not a finite float32 and at most 0",
        ),
        (response(versions=[2, 3, 4, 5]), "token 0 is of version 2, where 3 is the oldest allowed"),
        (
            response(versions=[3, 3, 4, 6]),
            "token 3 is of version 6, where the engine was given none after 5",
        ),
        (response(versions=[3, 5, 4, 5]), "token 2 is of version 4, the token before it of 5"),
    ],
)
def test_what_contradicts_its_request_is_named(bad: Completed, fault: str) -> None:
    assert output_fault(bad, LIMITS) == fault


def test_inherited_tokens_may_be_older_and_must_come_back_as_they_were() -> None:
    assert output_fault(continued(), CONTINUES) == ""
    for name, value, words in (
        ("tokens", [1, 3, 0, 9], "tokens"),
        ("logprobs", [-1, -2.5, 0, 0], "log-probabilities"),
        ("versions", [2, 2, 4, 5], "versions"),
    ):
        expected = f"the {words} of its first 2 tokens are not those that it inherited"
        assert output_fault(continued(**{name: value}), CONTINUES) == expected
    assert "token 2 is of version 2" in output_fault(continued(versions=[1, 2, 2, 5]), CONTINUES)
    short = continued(tokens=[1], logprobs=[-1], versions=[1])
    assert "not those that it inherited" in output_fault(short, CONTINUES)
