"""Reward functions by name, and what they may return."""

from __future__ import annotations

import asyncio
import sys
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rljob_core.errors import RewardFailed, RewardOutOfRange, SpecError
from rljob_core.spec import DataSpec
from rljob_runtime.data.prompts import PromptSource
from rljob_runtime.rewards.registry import given_group, numbers_of, resolve, score, value_of


@pytest.fixture(scope="module")
def sums() -> PromptSource:
    options = {"min_terms": 2, "max_terms": 2}
    return PromptSource(DataSpec(dataset="chain_sum", options=options), model_uri="")


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A user's module on the path."""
    (tmp_path / "user_rewards.py").write_text(
        "def length(*, completion, item): return -len(completion)\n"
        "def positional(completion, item): return 1\n"
        "def other(*, text): return 1\n"
        "def batch(completions, **others): return [1.0 for _ in completions]\n"
        "number = 3\n"
    )
    (tmp_path / "user_broken.py").write_text("raise RuntimeError('no licence')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield "user_rewards"
    sys.modules.pop("user_rewards", None)


def value(name: str, source: PromptSource, completion: str, item: dict[str, Any]) -> float:
    ((resolved, function),) = resolve([name], source)
    assert resolved == name
    return score(name, function, completion=completion, item=item)


@pytest.mark.parametrize(
    ("completion", "expected"), [("42", 1), (" 42\n", 1), ("042", 0), ("42.", 0), ("", 0), ("4 2", 0)]
)
def test_exact_match_strips_white_space_and_nothing_else(
    sums: PromptSource, completion: str, expected: float
) -> None:
    assert value("exact_match", sums, completion, {"answer": "42 "}) == expected
    assert value("exact_match", sums, completion, {"answer": 42}) == expected


def test_the_verifier_is_the_tasks_own(sums: PromptSource) -> None:
    item = sums.item(4)
    right = item["answer"]
    assert value("verifier", sums, f" {right}.0 ", item) == 1
    assert value("verifier", sums, f"I think <answer>{right}</answer>", item) == 1
    assert value("verifier", sums, "none", item) == 0
    assert 0 < value("verifier", sums, f"it is {right}", item) < 1


@pytest.mark.parametrize(
    ("answer", "completion", "expected"),
    [
        ("1/2", "so it is $\\frac{2}{4}$", 1),
        ("\\frac{1}{2}", "0.5", 1),
        ("\\sqrt{8}", "$2\\sqrt{2}$", 1),
        ("0.5", "$\\frac{1}{3}$", 0),
        ("7", "no idea", 0),
    ],
)
def test_math_verify_compares_values(
    sums: PromptSource, answer: str, completion: str, expected: float
) -> None:
    assert value("math_verify", sums, completion, {"answer": answer}) == expected


def test_math_verify_does_not_guess_what_an_unreadable_answer_means(sums: PromptSource) -> None:
    with pytest.raises(RewardFailed, match="not a mathematical expression"):
        value("math_verify", sums, "1", {"answer": ""})


def test_functions_of_ones_own_are_called_by_keyword(sums: PromptSource, module: str) -> None:
    assert value(f"{module}:length", sums, "four", {}) == -4
    assert value(f"{module}:positional", sums, "four", {}) == 1


def test_several_functions_are_resolved_in_order(sums: PromptSource, module: str) -> None:
    names = ["verifier", f"{module}:length", "exact_match"]
    assert [name for name, _ in resolve(names, sums)] == names


@pytest.mark.parametrize(
    ("names", "path", "message"),
    [
        (["exact_match", "exact_macth"], "[1]", "did you mean exact_match"),
        (
            ["bleu"],
            "[0]",
            "write one of exact_match, verifier, math_verify, python_tests, package.module:function, or install",
        ),
        (["exact_match", "verifier", "exact_match"], "[2]", "listed twice"),
        (["no_such_module:f"], "[0]", "no_such_module cannot be imported: ModuleNotFoundError"),
        (["user_broken:f"], "[0]", "user_broken cannot be imported: RuntimeError: no licence"),
        (["user_rewards:missing"], "[0]", "has no function 'missing'"),
        (["user_rewards:number"], "[0]", "it is not a function, but int"),
        (["user_rewards:other"], "[0]", "must take the keyword arguments completion and item"),
        (["user_rewards:batch"], "[0]", "it takes a whole group: name it in spec.reward.perGroup, too"),
    ],
)
def test_a_wrong_name_says_where_and_what_to_write(
    sums: PromptSource, module: str, names: list[str], path: str, message: str
) -> None:
    with pytest.raises(SpecError) as caught:
        resolve(names, sums)
    assert caught.value.path == f"spec.reward.functions{path}"
    assert message in caught.value.message


@pytest.mark.parametrize("name", ["exact_match", "math_verify", "verifier"])
def test_a_reward_that_the_data_cannot_serve_is_refused(tmp_path: Path, name: str) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text('{"question": "1+1", "solution": "2"}\n')
    source = PromptSource(DataSpec(source="jsonl", dataset=str(file)), model_uri="")
    with pytest.raises(SpecError, match=r"spec\.reward\.functions\[0\]: ") as caught:
        resolve([name], source)
    expected = "reasoning-gym's tasks" if name == "verifier" else "items have question, solution"
    assert expected in caught.value.message


@pytest.mark.parametrize(
    "result",
    [1, 0.5, True, Decimal("0.5"), np.float32(0.25), np.int64(-2), np.bool_(True), np.array(0.5)],
)
def test_any_finite_number_is_a_score(result: Any) -> None:
    given = score("f", lambda **_: result, completion="", item={})
    assert given == float(result)
    assert type(given) is float


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (float("nan"), r"f returned nan; a score lies between -1e\+06 and 1e\+06"),
        (float("inf"), "f returned inf"),
        (1.7e308, r"f returned 1.7e\+308; a score lies between -1e\+06 and 1e\+06"),
        (-1.1e6, r"f returned -1.1e\+06; a score lies between -1e\+06 and 1e\+06"),
        (None, "f returned NoneType, not a number"),
        ("1", "f returned str"),
        (1j, "f returned complex"),
    ],
)
def test_anything_else_fails(result: Any, message: str) -> None:
    with pytest.raises(RewardFailed, match=message):
        score("f", lambda **_: result, completion="", item={})


def test_a_function_gets_what_it_takes() -> None:
    def all_of_it(**given: Any) -> float:
        assert given == {"completion": "x", "item": {}, "finish_reason": "length", "truncated": True}
        return 1.0

    def one(truncated: bool) -> np.bool_:
        return np.bool_(truncated)

    for function in (all_of_it, one):
        taking: Any = function
        assert score("f", taking, completion="x", item={}, finish_reason="length") == 1


def test_coroutines_run_on_one_loop() -> None:
    loops = set[asyncio.AbstractEventLoop]()

    async def function(*, completion: str, item: Any) -> float:
        await asyncio.sleep(0)
        loops.add(asyncio.get_running_loop())
        return float(completion)

    assert [score("f", function, completion=text, item={}) for text in ("1", "2")] == [1, 2]
    assert len(loops) == 1
    with pytest.raises(RewardFailed, match="f raised ValueError"):
        score("f", function, completion="x", item={})


def test_what_a_function_raises_is_in_the_failure(sums: PromptSource) -> None:
    with pytest.raises(RewardFailed, match="exact_match raised KeyError: 'answer'") as caught:
        value("exact_match", sums, "1", {})
    assert isinstance(caught.value.__cause__, KeyError)


def test_a_function_of_groups_gets_lists(sums: PromptSource, module: str) -> None:
    ((name, function),) = resolve([f"{module}:batch"], sums, per_group=[f"{module}:batch"])
    assert value_of(name, function, given_group(["a", "b"], {}, ["stop", "length"])) == [1.0, 1.0]
    arguments = given_group(["a", "b"], {"answer": "a"}, ["stop", "length"])
    seen = value_of("f", lambda completions, item, truncated: [completions, item, truncated], arguments)
    assert seen == [["a", "b"], {"answer": "a"}, [False, True]]
    with pytest.raises(SpecError, match="it takes a single answer: take it out"):
        resolve([f"{module}:length"], sums, per_group=[f"{module}:length"])


@pytest.mark.parametrize(
    "scores", [[1, 0.5], (True, 0.5), np.array([1, 0.5], np.float16), [np.int64(1), Decimal("0.5")]]
)
def test_a_group_has_one_score_for_each_answer(scores: Any) -> None:
    assert numbers_of("f", scores, 2) == [1.0, 0.5]


@pytest.mark.parametrize(
    ("scores", "message"),
    [
        ([1.0], "f returned 1 scores for 2 answers: return one for each of completions, in their order"),
        (np.ones(3), "f returned 3 scores for 2 answers"),
        (np.ones((2, 1)), r"f, for completions\[0\], returned list, not a number"),
        (1.0, "f returned float; a function of spec.reward.perGroup returns a list"),
        ("12", "f returned str; "),
        ([1.0, None], r"f, for completions\[1\], returned NoneType, not a number"),
        ([1.0, float("nan")], r"f, for completions\[1\], returned nan; a score lies between"),
    ],
)
def test_what_is_no_score_for_each_answer_is_refused(scores: Any, message: str) -> None:
    with pytest.raises((RewardFailed, RewardOutOfRange), match=message):
        numbers_of("f", scores, 2)
