"""Processes that run code of users, from outside: how they are killed, and how they ended."""

from __future__ import annotations

import contextlib
import os
import signal

import psutil

from rljob_core.words import exit_in_words, shell_code


def kill(process: int) -> bool:
    """Kill a process, and those that it has started; False if it had ended by itself."""
    try:
        parent = psutil.Process(process)
        is_running = parent.status() != psutil.STATUS_ZOMBIE
        for each in (parent, *parent.children(recursive=True)):
            with contextlib.suppress(psutil.NoSuchProcess):
                each.kill()
    except psutil.NoSuchProcess:
        return False
    return is_running


def kill_session(leader: int, *, ended: bool) -> None:
    """Kill a process that leads a session, and those that it has started.

    Args:
        leader: its process id.
        ended: whether it has ended by itself. What it has started, and has left its group, is not found then.
    """
    if not ended:
        kill(leader)
    elif psutil.pid_exists(leader):  # another process has its id: none is left of its group
        return
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, signal.SIGKILL)


def end_in_words(code: int | None) -> str:
    """How a process ended, by the exit code of `multiprocessing`: minus the number of the signal, if one ended it."""
    if code is None:
        return "its exit code is not known"
    return exit_in_words(shell_code(code))
