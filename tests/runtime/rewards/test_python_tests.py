"""The reward `python_tests`, whose programs run for real, in sandboxes."""

from __future__ import annotations

import os
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from tests.night import NIGHT

from rljob_core.errors import SpecError
from rljob_core.ports import Reward
from rljob_runtime.rewards import registry
from rljob_runtime.rewards.python_tests import code_of, python_tests
from rljob_runtime.rewards.registry import resolve
from rljob_runtime.sandbox import LocalSandbox, SandboxUnavailable

TESTS = "assert twice(4) == 8\nassert twice('a') == 'aa'"
GOOD = "Here it is:\n```python\ndef twice(n):\n    return n * 2\n```\nDone."


@pytest.fixture(scope="module")
def reward() -> Reward:
    try:
        return python_tests(LocalSandbox())
    except SandboxUnavailable as error:
        if os.environ.get("RLJOB_E2E_REQUIRED"):
            raise
        pytest.skip(str(error))


def test_code_that_passes_its_tests_scores(reward: Reward) -> None:
    assert reward(completion=GOOD, item={"tests": TESTS}) == 1.0
    assert reward(completion="def twice(n): return n + n", item={"tests": TESTS}) == 1.0


@pytest.mark.parametrize(
    "code",
    [
        "def twice(n): return n * 3",
        "def twice(n) return n",
        "import os\nos._exit(0)",
        "raise SystemExit(0)",
        "import sys, atexit\ndef twice(n): return 0\nprint('all passed')",
        "while True: pass" if NIGHT else "1/0",
        "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)",
        "",
        "\udcff",
    ],
)
def test_other_code_scores_nothing(reward: Reward, code: str) -> None:
    assert reward(completion=f"```\n{code}\n```", item={"tests": TESTS}) == 0.0


def test_the_last_block_counts() -> None:
    assert code_of("```python\na\n```\nno:\n```py\nb\n```") == "b\n"
    assert code_of("```python\nnever closed") == "never closed"
    assert code_of("plain") == "plain"


def data(**item: Any) -> Any:
    return SimpleNamespace(items=SimpleNamespace(item=lambda _: item))


def test_what_is_missing_is_said_before_anything_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SpecError, match="the item's field `tests`; items have answer"):
        resolve(["python_tests"], data(answer="1"))

    def none(*_: object) -> Callable[..., float]:
        raise SandboxUnavailable("bwrap is not installed: install Debian's package bubblewrap")

    monkeypatch.setattr("rljob_runtime.sandbox.LocalSandbox", none)
    with pytest.raises(SpecError, match=r"spec.reward.functions\[0\].*install Debian's package bubblewrap"):
        resolve(["python_tests"], data(tests="1"))
    assert "python_tests" in registry.__doc__
