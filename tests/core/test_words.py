"""Errors, exit codes and the ends of logs in words."""

from __future__ import annotations

import json

import pytest

from rljob_core.words import (
    LONGEST_LINE,
    end_in_words,
    end_with_last_words,
    error_in_words,
    exit_in_words,
    last_traceback,
    last_words,
    own_traceback,
    place_in_words,
    shell_code,
)

GROUP = """\
  + Exception Group Traceback (most recent call last):
  |   File "worker.py", line 241, in run
  | ExceptionGroup: unhandled errors in a TaskGroup (1 sub-exception)
  +-+---------------- 1 ----------------
    | Traceback (most recent call last):
    |   File "engine.py", line 3, in submit
    | ValueError: no kernel for 7 tokens
    +------------------------------------
"""
SEGFAULT = """\
2026-01-01 rollout INFO engine: serves version 3
Fatal Python error: Segmentation fault

Thread 0x00007f0000000001 (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 320 in wait

Current thread 0x00007f0000000002 (most recent call first):
  File "/plugins/mine/kernels.py", line 12 in launch
  File "/plugins/mine/engine.py", line 80 in submit

Extension modules: numpy._core._multiarray_umath (total: 1)
"""
ABORT = """\
terminate called after throwing an instance of 'c10::Error'
  what():  CUDA error: device-side assert triggered
Fatal Python error: Aborted

Current thread 0x00007f0000000002 (most recent call first):
  File "kernels.py", line 12 in launch
"""
TORCHRUN = """\
  traceback : Signal 11 (SIGSEGV) received by PID 77
============================================================
"""


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ("", ""),
        ("\n \n", ""),
        ("Traceback\n  File x\nMemoryError\n\n", "MemoryError"),
        (GROUP, "ValueError: no kernel for 7 tokens"),
        (SEGFAULT, "Segmentation fault in launch (kernels.py:12)"),
        ("Fatal Python error: Segmentation fault\n", "Segmentation fault"),
        (ABORT, "Aborted in launch (kernels.py:12): what(): CUDA error: device-side assert triggered"),
        (TORCHRUN, "traceback : Signal 11 (SIGSEGV) received by PID 77"),
        ("bad \x1b[31m\x07token\ud800 here", "bad [31m token here"),
        ("y" * 9 * LONGEST_LINE, "y" * LONGEST_LINE),
    ],
)
def test_the_line_that_says_why(said: str, words: str) -> None:
    assert last_words(said) == words


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (1, "exit code 1"),
        (139, "exit code 139 (SIGSEGV)"),
        (134, "exit code 134 (SIGABRT)"),
        (137, "exit code 137 (SIGKILL: out of memory?)"),
        (255, "exit code 255"),
    ],
)
def test_exit_codes_name_their_signal(code: int, words: str) -> None:
    assert exit_in_words(code) == words


def test_what_a_killed_process_said_last_is_not_why_it_ended() -> None:
    assert end_in_words(139, "log\nTrap\n") == "exit code 139 (SIGSEGV): Trap"
    assert end_in_words(137, "INFO engine serves version 3") == "exit code 137 (SIGKILL: out of memory?)"
    assert end_in_words(1, "") == "exit code 1"


class Mute(Exception):
    def __str__(self) -> str:
        raise ValueError


def test_what_a_killed_process_said_last_may_be_asked_for() -> None:
    killed = "exit code 137 (SIGKILL: out of memory?)"
    assert end_with_last_words(137, "log\nno licence\n") == f"{killed}; it printed last: no licence"
    assert end_with_last_words(137, "") == killed
    assert end_with_last_words(139, "log\nTrap\n") == end_in_words(139, "log\nTrap\n")


@pytest.mark.parametrize(("code", "counted"), [(0, 0), (3, 3), (-9, 137)])
def test_exit_codes_are_counted_as_a_shell_does(code: int, counted: int) -> None:
    assert shell_code(code) == counted


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (ValueError("two\nlines"), "ValueError: two lines"),
        (KeyError(), "KeyError"),
        (Mute(), "Mute: (its __str__ raised ValueError)"),
        (ExceptionGroup("a", [ExceptionGroup("b", [OSError("x")]), ValueError("y")]), "OSError: x"),
    ],
)
def test_an_error_is_one_line(error: BaseException, words: str) -> None:
    assert error_in_words(error) == words


def test_the_place_of_an_error_is_the_innermost_line_of_the_file() -> None:
    def fails() -> None:
        json.loads("{")

    with pytest.raises(ValueError, match="Expecting") as raised:
        fails()
    here = f"test_words.py:{fails.__code__.co_firstlineno + 1}"
    assert place_in_words(raised.value, __file__) == here
    assert place_in_words(raised.value, "elsewhere.py") == ""


def called(depth: int) -> None:
    if depth:
        called(depth - 1)
    raise KeyError("anser")


def test_the_traceback_of_user_code_begins_behind_the_frame_that_called_it() -> None:
    with pytest.raises(KeyError) as raised:
        called(1)
    text = own_traceback(raised.value)
    assert text.splitlines()[0] == "Traceback (most recent call last):"
    assert text.count("in called") == 2
    assert "test_the_traceback" not in text
    assert text.endswith("KeyError: 'anser'\n")
    assert own_traceback(KeyError("anser")) == "KeyError: 'anser'\n"


def called_in_turn(depth: int) -> None:
    (called_in_turn if depth % 3 else called_again)(depth - 1)


def called_again(depth: int) -> None:
    called_in_turn(depth) if depth > 0 else called(0)


def test_a_traceback_that_recursed_is_short() -> None:
    with pytest.raises(KeyError) as raised:
        called_in_turn(300)
    assert own_traceback(raised.value).count("in called") == 12


def test_the_last_traceback_of_a_log_is_found() -> None:
    with pytest.raises(KeyError) as raised:
        called(0)
    trace = own_traceback(raised.value)
    said = (
        f"Traceback (most recent call last):\n  old\nValueError\nmine:score, item 3:\n{trace}2026 draining\n"
    )
    assert "\n".join(last_traceback(said)) + "\n" == trace
    assert last_traceback("nothing here\n") == []
    assert (
        len(last_traceback("Traceback (most recent call last):\n" + "  again\x1b[2J\n" * 1000 + "E: e\n"))
        == 48
    )
    assert last_traceback("Traceback (most recent call last):\n  cut") == [
        "Traceback (most recent call last):", "  cut"
    ]  # fmt: skip
