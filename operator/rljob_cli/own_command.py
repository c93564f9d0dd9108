"""This program as the user has started it, for hints that are to be copied: `rljob` may not be on the PATH."""

from __future__ import annotations

import os
import shlex
import shutil
import sys

_NAME = "rljob"


def own_command(*arguments: str) -> str:
    """A command of this program, quoted for a shell: `rljob …`, or `.venv/bin/rljob …` where that is not found."""
    return shlex.join([_program(sys.argv[0]), *arguments])


def _program(started: str) -> str:
    if os.path.basename(started) != _NAME or not os.path.isfile(started):  # noqa: PTH113, PTH119  as it was typed
        return _NAME  # `python -m`, or a program that calls this one
    found = shutil.which(_NAME)
    if found is not None and os.path.samefile(found, started):  # noqa: PTH121
        return _NAME
    here = os.path.relpath(started)
    return started if here.startswith(os.pardir) else here
