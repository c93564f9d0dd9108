"""The images of the nodes: what holds a pod's sandbox, and a small Debian to run programs in.

There is no registry: images are archives in the cache, imported into every node. What is heavy is not in them: the
project's virtual environment, gigabytes of it, is mounted from this machine (`volumes.py`). So the base holds what
this machine's Python and its packages are linked with, of this machine's own release of Debian.
"""

from __future__ import annotations

import hashlib
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path

from e2e.harness.binaries import Binaries
from e2e.harness.cache import cache_folder, locked
from e2e.harness.errors import HarnessError, NotAvailableError
from e2e.harness.node_files import PAUSE_IMAGE
from e2e.harness.oci_archive import write_archive

BASE_IMAGE = "localhost/rljob-base:1"
"""A minimal Debian with the shared libraries that this machine's Python needs; any user may enter /root."""
_PACKAGES = frozenset(
    {"libgomp1", "libnuma1", "libstdc++6"}
)  # torch's, vLLM's, beside those of Python itself
_DROPPED = [
    "./dev/*",
    "./proc/*",
    "./sys/*",
    "./usr/share/doc/*",
    "./usr/share/man/*",
    "./usr/share/locale/*",
]
_DROPPED += ["./var/cache/apt/*", "./var/lib/apt/lists/*", "./var/log/*"]


def node_images(binaries: Binaries, *, say: Callable[[str], None] = lambda _: None) -> list[Path]:
    """Archives that every node needs; made if missing, which takes a minute."""
    return [_pause(binaries["pause"]), base_image(say=say)]


def base_image(*, say: Callable[[str], None] = lambda _: None) -> Path:
    """The archive of `BASE_IMAGE`."""
    with locked(_folder() / "lock", waiting=lambda: say("another process makes the image; waiting for it")):
        return _base(say)


def _folder() -> Path:
    return cache_folder() / "images"


def _pause(program: Path) -> Path:
    path = _folder() / f"pause-{_digest([PAUSE_IMAGE, str(program.stat().st_mtime_ns)])}.tar"
    if not path.exists():
        with tempfile.TemporaryDirectory() as root:
            Path(root).chmod(0o755)
            shutil.copy(program, root)
            write_archive(path, name=PAUSE_IMAGE, root=Path(root), command=["/pause"])
    return path


def _base(say: Callable[[str], None]) -> Path:
    release = platform.freedesktop_os_release()
    if shutil.which("debootstrap") is None or "VERSION_CODENAME" not in release:
        raise NotAvailableError("the base image needs debootstrap: run e2e/install-packages.sh (as root)")
    suite = release["VERSION_CODENAME"]
    recipe = [sys.version, str(Path(sys.executable).resolve()), *sorted(_PACKAGES), *_DROPPED]
    path = _folder() / f"base-{suite}-{_digest(recipe)}.tar"
    if not path.exists():
        say(f"making a base image of {release.get('PRETTY_NAME', suite)}: about a minute, once")
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent) as scratch:
            root = Path(scratch) / "root"
            _debootstrap(suite, sorted(_PACKAGES | _linked_packages()), root)
            (root / "root").chmod(0o755)  # Python may be installed below it, and pods are not root
            write_archive(
                path,
                name=BASE_IMAGE,
                root=root,
                command=["/bin/sh"],
                environment={"PATH": "/usr/local/bin:/usr/bin:/bin"},
                leave_out=_DROPPED,
            )
    return path


def _debootstrap(suite: str, packages: Iterable[str], root: Path) -> None:
    command = ["debootstrap", "--variant=minbase", f"--include={','.join(packages)}", suite, str(root)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise HarnessError(f"debootstrap failed:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")


def _linked_packages() -> set[str]:
    """The packages of the libraries that the interpreter and its extension modules are linked with."""
    modules = Path(sysconfig.get_path("stdlib")) / "lib-dynload"  # the interpreter's, not this environment's
    extensions = [
        str(path) for path in modules.glob("*.so") if "_tkinter" not in path.name
    ]  # no windows there
    linked = subprocess.run(
        ["ldd", str(Path(sys.executable).resolve()), *extensions],
        capture_output=True,
        text=True,
        check=False,
    )
    # By name: dpkg may know /lib/x where the loader says /usr/lib/x.
    libraries = {f"*/{Path(found).name}" for found in re.findall(r"=> (/(?:usr/)?lib/\S+)", linked.stdout)}
    owners = subprocess.run(
        ["dpkg-query", "--search", *sorted(libraries)], capture_output=True, text=True, check=False
    )
    return {line.partition(":")[0] for line in owners.stdout.splitlines() if ": " in line}


def _digest(words: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(words).encode()).hexdigest()[:12]
