"""Why something ended, for people: errors, exit codes and the ends of logs as one line each."""

from __future__ import annotations

import re
import traceback

LONGEST_LINE = 1000
"""Characters of such a line that are kept."""

KILLED = 128 + 9
"""Exit code of a process that SIGKILL ended: `kill -9`, or the kernel when memory is exhausted."""

#: Signals that end a process by themselves, with their numbers on Linux.
_SIGNALS = {
    1: "SIGHUP", 2: "SIGINT", 3: "SIGQUIT", 4: "SIGILL", 5: "SIGTRAP", 6: "SIGABRT", 7: "SIGBUS", 8: "SIGFPE",
    9: "SIGKILL", 11: "SIGSEGV", 13: "SIGPIPE", 14: "SIGALRM", 15: "SIGTERM", 24: "SIGXCPU", 25: "SIGXFSZ",
    31: "SIGSYS",
}  # fmt: skip
#: What the standard library's `faulthandler` prints when a signal ends a process.
_FATAL = "Fatal Python error: "
_FRAME = re.compile(r'File "(?P<file>[^"]*)", line (?P<line>\d+) in (?P<function>\S+)')
#: The margin of a line in the traceback of an exception group.
_MARGIN = re.compile(r"^[\s|+]*")
_WORD = re.compile(r"[^\W_]")
#: Innermost frames of a traceback that are shown.
_FRAMES = 12
#: Lines of a traceback that are shown: an output may hold what only looks like one.
_LINES = 4 * _FRAMES
#: The line between two exceptions of a group: dashes around a number.
_RULE = re.compile(r"-+ \d+ -+")


def exit_in_words(code: int) -> str:
    """An exit code as a shell counts it, with the signal that it stands for: `exit code 139 (SIGSEGV)`."""
    name = _SIGNALS.get(code - 128)
    if name is None:
        return f"exit code {code}"
    return f"exit code {code} ({name}{': out of memory?' if code == KILLED else ''})"


def shell_code(code: int) -> int:
    """An exit code as a shell counts it, of one as Python counts it: there, minus the number of a signal."""
    return code if code >= 0 else 128 - code


def end_in_words(code: int, said: str) -> str:
    """A process's exit code and its last words, as one line.

    A process that was killed by SIGKILL had no time to say why; its last words then have nothing to do with its end.

    Args:
        said: the end of its output, or its termination message.
    """
    words = "" if code == KILLED else last_words(said)
    return ": ".join(filter(None, [exit_in_words(code), words]))


def end_with_last_words(code: int, said: str) -> str:
    """How a process ended, with its last words even if SIGKILL ended it, since it may have sent that signal itself."""
    last = last_words(said) if code == KILLED else ""
    return end_in_words(code, said) + (f"; it printed last: {last}" if last else "")


def error_in_words(error: BaseException) -> str:
    """An error's type and message as one line; of an exception group those of the first error in it."""
    error = innermost(error)
    try:
        message = one_line(str(error))
    except BaseException as other:  # an error of user code may be unable to say what it is
        message = f"(its __str__ raised {type(other).__name__})"
    name = type(error).__name__
    return f"{name}: {message}" if message else name


def place_in_words(error: BaseException, file: str) -> str:
    """`rewards.py:12`, the innermost line of a file at which an error was raised; empty if it was raised elsewhere."""
    line, trace = 0, error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == file:
            line = trace.tb_lineno
        trace = trace.tb_next
    return f"{file.rpartition('/')[2]}:{line}" if line else ""


def own_traceback(error: BaseException) -> str:
    """The traceback of an error of user code, without the frame of rljob's that called it; one line if it has none.

    The frames and lines of one traceback are limited: user code may recurse, or raise a message of any length.
    """
    trace = error.__traceback__
    inside = trace.tb_next if trace is not None else None
    head = "Traceback (most recent call last):\n" if inside is not None else ""
    frames = "".join(traceback.format_tb(inside, limit=-_FRAMES)) if inside is not None else ""
    return f"{head}{frames}{error_in_words(error)}\n"


def last_traceback(said: str) -> list[str]:
    """The last traceback in a process's output, as printable lines; none if there is no traceback in it."""
    lines = said.splitlines()
    starts = [number for number, line in enumerate(lines) if line.startswith("Traceback (")]
    if not starts:
        return []
    inside = lines[starts[-1] :]
    end = next((n for n, line in enumerate(inside) if n and line and not line[0].isspace()), len(inside) - 1)
    shown = inside[: end + 1][-_LINES:]
    return ["".join(c if c.isprintable() else " " for c in line)[:LONGEST_LINE] for line in shown]


def innermost(error: BaseException) -> BaseException:
    """The first error inside nested exception groups."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def last_words(said: str) -> str:
    """The line at the end of a process's output that says why it ended, as one printable line; empty if none does.

    Of a traceback that is the exception (of an exception group the last one in it), and of a process that a signal
    ended the signal and where Python was, if `faulthandler` was enabled.

    Args:
        said: the end of the output, or a termination message.
    """
    lines = said.splitlines()
    fatal = max((number for number, line in enumerate(lines) if line.startswith(_FATAL)), default=None)
    if fatal is not None:
        return one_line(_fatal(lines[:fatal], lines[fatal].removeprefix(_FATAL), lines[fatal + 1 :]))
    return one_line(_last(lines))


def one_line(text: str) -> str:
    """The text with every run of white space and unprintable characters as one space, cut at `LONGEST_LINE`."""
    start = text[: 4 * LONGEST_LINE]
    return " ".join("".join(c if c.isprintable() else " " for c in start).split())[:LONGEST_LINE]


def is_word(text: str) -> bool:
    """Whether a text can be a reason, which is counted and shown: letters only, and not many."""
    return text.isascii() and text.isalpha() and len(text) <= 40


def _fatal(before: list[str], what: str, stack: list[str]) -> str:
    """A fatal error and its innermost Python frame; of an abort also what the process printed before it."""
    current = next((number for number, line in enumerate(stack) if line.startswith("Current thread")), 0)
    frame = next((found for line in stack[current:] if (found := _FRAME.search(line))), None)
    if frame is not None:
        file = frame["file"].rpartition("/")[2]
        what = f"{what} in {frame['function']} ({file}:{frame['line']})"
    reason = _last(before) if what.startswith("Aborted") else ""
    return f"{what}: {reason}" if reason else what


def _last(lines: list[str]) -> str:
    for line in reversed(lines):
        text = _MARGIN.sub("", line).strip()
        if _WORD.search(text) and not _RULE.fullmatch(text.strip("+")):
            return text
    return ""
