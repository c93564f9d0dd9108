"""Builds Kubernetes' programs, and Helm, from their published Go modules: `python -m e2e.harness build`.

There is no download of ready-made programs: the Go module proxy is reached where release servers are not, go.sum
holds every checksum, and it works on every processor. Go's caches (5 GB) are kept until all is built, so that an
interrupted build goes on where it was, and then removed.
"""

from __future__ import annotations

import os
import selectors
import shutil
import subprocess
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path

from e2e.harness.binaries import bin_folder, data_folder
from e2e.harness.cache import cache_folder, locked
from e2e.harness.errors import HarnessError
from e2e.harness.go_modules import MODULES, GoModule, Program
from e2e.harness.go_toolchain import go_toolchain

_SAY_EVERY = 15.0  # seconds between lines of progress


def build(
    modules: Sequence[GoModule] = MODULES,
    *,
    nodes: bool = True,
    keep: bool = False,
    say: Callable[[str], None] = lambda _: None,
) -> None:
    """Build what is missing. One process at a time does it; others wait, and then find it done.

    Args:
        modules: whose programs are wanted.
        nodes: also the programs that only real nodes need.
        keep: leave Go's caches, for building another version soon.
        say: takes lines of progress.
    """
    with locked(cache_folder() / "build.lock", waiting=lambda: say("another process builds; waiting for it")):
        wanted = [
            (module, program)
            for module in modules
            for program in module.programs
            if (nodes or not program.nodes) and not _is_built(module, program)
        ]
        if wanted:
            _build_all(wanted, say=say)
        if nodes and not keep:
            shutil.rmtree(_go_caches(), ignore_errors=True)


def _is_built(module: GoModule, program: Program) -> bool:
    return (bin_folder(module) / program.name).exists() and (not module.data or data_folder(module).exists())


def _build_all(wanted: Sequence[tuple[GoModule, Program]], *, say: Callable[[str], None]) -> None:
    go = go_toolchain(max(module.go_version for module, _ in wanted), say=say)
    names = ", ".join(program.name for _, program in wanted)
    say(f"building {names}, once: about 15 minutes for all of Kubernetes on 2 cores")
    start = time.monotonic()
    for module, program in wanted:
        _build(go, module, program, say=say)
    say(f"built in {_clock(start)}")


def _build(go: Path, module: GoModule, program: Program, *, say: Callable[[str], None]) -> None:
    target = bin_folder(module) / program.name
    target.parent.mkdir(parents=True, exist_ok=True)
    unfinished = target.with_name(f".{program.name}")
    command = [str(go), "build", "-v", "-trimpath", "-ldflags", _linker_flags(module)]
    command += ["-o", str(unfinished), program.package]
    name, start = program.name, time.monotonic()
    with subprocess.Popen(
        command,
        cwd=module.folder,
        env=_environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    ) as process:
        try:
            words = _follow(process, lambda count: say(f"  {name}: {count} packages, {_clock(start)}"))
        except BaseException:
            process.kill()
            raise
    if process.returncode != 0:
        raise HarnessError(f"go build of {name} failed:\n" + "\n".join(words))
    if module.data:
        _keep_data(go, module)
    unfinished.replace(target)
    say(f"  {name}: done, {_clock(start)}, {target.stat().st_size >> 20} MB")


def _keep_data(go: Path, module: GoModule) -> None:
    """Copy the module's files out of Go's cache, which is removed."""
    command = [str(go), "list", "-m", "-f", "{{.Dir}}", module.of]
    found = subprocess.run(
        command, cwd=module.folder, env=_environment(), check=True, text=True, stdout=subprocess.PIPE
    ).stdout.strip()
    target = data_folder(module)
    unfinished = target.with_name(".data")
    shutil.rmtree(unfinished, ignore_errors=True)
    shutil.copytree(Path(found) / module.data, unfinished)
    shutil.rmtree(target, ignore_errors=True)
    unfinished.replace(target)


def _follow(process: subprocess.Popen[bytes], progress: Callable[[int], None]) -> list[str]:
    """Count the packages that `go build -v` names; returns its last lines."""
    assert process.stderr is not None
    words: deque[str] = deque(maxlen=40)
    count, unfinished, said = 0, b"", time.monotonic()
    with selectors.DefaultSelector() as selector:
        selector.register(process.stderr, selectors.EVENT_READ)
        while True:
            if selector.select(timeout=1.0):
                read = os.read(process.stderr.fileno(), 1 << 16)
                if not read:
                    return list(words)
                *lines, unfinished = (unfinished + read).split(b"\n")
                words.extend(line.decode(errors="replace") for line in lines)
                count += sum(not line.startswith(b"go: ") for line in lines)
            if time.monotonic() - said >= _SAY_EVERY:
                progress(count)
                said = time.monotonic()


def _linker_flags(module: GoModule) -> str:
    """No debug information, and the version that the program says of itself."""
    flags = ["-s", "-w"]
    if module.of == "k8s.io/kubernetes":
        major, minor, _ = module.version.removeprefix("v").split(".", 2)
        for name, value in {"gitVersion": module.version, "gitMajor": major, "gitMinor": minor}.items():
            flags += ["-X", f"k8s.io/component-base/version.{name}={value}"]
    if module.of == "helm.sh/helm/v3":
        # Without a cluster, Helm takes a chart to be for the Kubernetes whose client library it has: v0.37 is of 1.37.
        minor = module.required("k8s.io/client-go").split(".")[1]
        flags += ["-X", f"{module.of}/internal/version.version={module.version}"]
        for name, value in {"k8sVersionMajor": "1", "k8sVersionMinor": minor}.items():
            flags += [
                "-X",
                f"{module.of}/pkg/chartutil.{name}={value}",
                "-X",
                f"{module.of}/pkg/lint/rules.{name}={value}",
            ]
    return " ".join(flags)


def _environment() -> dict[str, str]:
    return {
        **os.environ,
        "CGO_ENABLED": "0",
        "GOCACHE": str(_go_caches() / "build"),
        "GOFLAGS": "-mod=readonly -modcacherw -buildvcs=false",
        "GOMODCACHE": str(_go_caches() / "mod"),
        "GOTOOLCHAIN": "local",
        "GOWORK": "off",
    }


def _go_caches() -> Path:
    return cache_folder() / "go"


def _clock(start: float) -> str:
    minutes, seconds = divmod(int(time.monotonic() - start), 60)
    return f"{minutes}:{seconds:02}"
