"""A predictor that raises, or gives what is no estimate, costs its estimates and one line of the log, never the job."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from length_data import synthetic

from rljob_core.lengths import Estimate, GroupLengths, LengthPredictor, PrequentialChoice, Prompt, PromptMeans
from rljob_core.spec import LONGEST_RESPONSE
from rljob_runtime.lengths.guard import GuardedPredictor

MEANS = Estimate(512.0, 1.0)
PROMPTS = [Prompt(number, f"prompt {number}") for number in range(3)]
LENGTHS = GroupLengths((5, 6), 100)


class Plugin:
    """A predictor whose methods do as they are told."""

    def __init__(
        self, predict: Callable[[Sequence[Prompt]], Any], learn: Callable[[], Any] = lambda: None
    ) -> None:
        self._predict, self._learn = predict, learn

    def predict(self, prompts: Sequence[Prompt]) -> Any:
        return self._predict(prompts)

    def observe(self, prompt: Prompt, lengths: GroupLengths) -> None:
        self._learn()

    def fit(self) -> None:
        self._learn()


def guarded(plugin: LengthPredictor, means: PromptMeans | None = None) -> GuardedPredictor:
    return GuardedPredictor("Mine", lambda: plugin, means or PromptMeans())


def raising(error: BaseException) -> Callable[..., Any]:
    def method(*_: object) -> Any:
        raise error

    return method


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]


def test_estimates_pass_as_they_are() -> None:
    guard = guarded(Plugin(lambda prompts: (Estimate(7.0, 0.1) for _ in prompts)))
    assert guard.predict(PROMPTS) == [Estimate(7.0, 0.1)] * 3
    assert guard.predict([]) == []
    guard.observe(PROMPTS[0], LENGTHS)
    guard.fit()
    assert (guard.failures, guard.newest_failure) == (0, "")


def test_they_become_plain_numbers_and_are_no_longer_than_any_response() -> None:
    found = guarded(
        Plugin(
            lambda prompts: [Estimate(np.float32(0.25), np.float64(1)), Estimate(10**9, 0), Estimate(3, 1)]
        )
    ).predict(PROMPTS)
    assert found == [Estimate(1.0, 1.0), Estimate(LONGEST_RESPONSE, 0.0), Estimate(3.0, 1.0)]
    assert {type(value) for one in found for value in (one.tokens, one.spread)} == {float}


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ([], "gave a wrong number of estimates: 0 for 3 prompts"),
        ([Estimate(1.0, 1.0)] * 4, "gave a wrong number of estimates: 4 for 3 prompts"),
        (None, "cannot predict: TypeError"),
        (7, "cannot predict: TypeError"),
        ([5.0, 6.0, 7.0], "gave what is no estimate: 5.0, and 3 like this of 3"),
    ],
)
def test_what_is_no_answer_is_replaced_by_means(answer: object, words: str) -> None:
    guard = guarded(Plugin(lambda prompts: answer))
    assert guard.predict(PROMPTS) == [MEANS] * 3
    assert guard.newest_failure.startswith(words)


@pytest.mark.parametrize(
    "wrong",
    [
        Estimate(math.nan, 1.0),
        Estimate(-1.0, 1.0),
        Estimate(0.0, 1.0),
        Estimate(math.inf, 1.0),
        Estimate(5.0, math.nan),
        Estimate(5.0, -1.0),
        Estimate("long", 1.0),
        None,
    ],
)
def test_of_an_answer_only_what_is_wrong_is_replaced(wrong: Any) -> None:
    guard = guarded(Plugin(lambda prompts: [Estimate(7.0, 0.1), wrong, Estimate(8.0, 0.1)]))
    assert guard.predict(PROMPTS) == [Estimate(7.0, 0.1), MEANS, Estimate(8.0, 0.1)]
    assert guard.failures == 1


def test_errors_are_counted_and_each_kind_is_named_once(caplog: pytest.LogCaptureFixture) -> None:
    guard = guarded(Plugin(raising(ValueError("no such token")), raising(SystemExit(3))))
    for _ in range(5):
        assert guard.predict(PROMPTS) == [MEANS] * 3
        guard.observe(PROMPTS[0], LENGTHS)
        guard.fit()
    assert guard.failures == 15
    assert guard.newest_failure == "cannot be fitted: SystemExit: 3"
    assert said(caplog) == [
        "length predictor Mine cannot predict: ValueError: no such token; means take its place",
        "length predictor Mine cannot observe: SystemExit: 3; means take its place",
        "length predictor Mine cannot be fitted: SystemExit: 3; means take its place",
    ]


def test_errors_of_changing_words_do_not_fill_the_log(caplog: pytest.LogCaptureFixture) -> None:
    count = iter(range(10**6))

    def predict(prompts: Sequence[Prompt]) -> Any:
        kind = type(f"Error{next(count)}", (Exception,), {})
        raise kind("x" * 10_000)

    guard = guarded(Plugin(predict))
    for _ in range(200):
        guard.predict(PROMPTS)
    assert guard.failures == 200
    assert len(said(caplog)) <= 32
    assert max(map(len, said(caplog))) < 600


def test_a_predictor_that_cannot_be_created_is_none(caplog: pytest.LogCaptureFixture) -> None:
    guard = GuardedPredictor("Mine", raising(OSError("no licence")), PromptMeans())
    guard.observe(PROMPTS[0], LENGTHS)
    guard.fit()
    assert guard.predict(PROMPTS) == [MEANS] * 3
    assert said(caplog) == [
        "length predictor Mine cannot be created: OSError: no licence; means take its place"
    ]


def test_an_interrupt_is_passed_on() -> None:
    with pytest.raises(KeyboardInterrupt):
        guarded(Plugin(raising(KeyboardInterrupt()))).predict(PROMPTS)


@given(
    st.lists(
        st.builds(Estimate, st.floats() | st.none() | st.integers() | st.text(), st.floats() | st.integers())
        | st.none()
        | st.floats(),
        max_size=5,
    )
)
def test_whatever_it_answers_the_estimates_are_usable(answer: list[Any]) -> None:
    found = guarded(Plugin(lambda prompts: answer)).predict(PROMPTS)
    assert len(found) == 3
    assert all(one.is_usable for one in found)


@pytest.mark.parametrize("error", [None, ValueError("broken")])
def test_a_ranker_that_fails_never_counts(error: Exception | None) -> None:
    """It is then as good as the means, and not better."""
    answer = (lambda prompts: [Estimate(math.nan, 1.0)] * len(prompts)) if error is None else raising(error)
    means = PromptMeans()
    guard = guarded(Plugin(answer, raising(RuntimeError("broken"))), means)
    chosen = PrequentialChoice(guard, means)
    groups = synthetic(200, seed=1).groups
    for start in range(0, 200, 20):
        asked = [prompt for prompt, _ in groups[start : start + 20]]
        assert chosen.predict(asked) == means.predict(asked)
        for prompt, lengths in groups[start : start + 20]:
            chosen.observe(prompt, lengths)
        chosen.fit()
    assert not chosen.uses_ranker
    assert chosen.ranker_quality.correlation == chosen.means_quality.correlation
    assert guard.failures == 10 + 200 + 10
