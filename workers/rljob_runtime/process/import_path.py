"""Where modules of users are found: after installed packages, so that a `queue.py` beside a manifest hides none."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable

from rljob_core import worker_protocol


def put_users_modules_last() -> None:
    """Put the working folder last, which `python -m` puts first, and the folders that the environment names."""
    if not sys.flags.safe_path and sys.path and sys.path[0] in {"", os.getcwd()}:  # noqa: PTH109
        sys.path.append(sys.path.pop(0))
    find_modules_in(os.environ.get(worker_protocol.MODULES, "").split(os.pathsep))


def find_modules_in(folders: Iterable[str]) -> None:
    """Have modules in these folders found, after all others."""
    sys.path.extend(folder for folder in folders if folder and folder not in sys.path)
