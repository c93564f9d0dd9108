"""A real vLLM server in a process of its own, and a look at which of vLLM's processes are there."""

from __future__ import annotations

import os
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
from e2e.harness.ports import hold_port
from tests.waiting import until

from rljob_runtime.engines.vllm.names import EXTENSION

#: A start takes 20 s on an idle machine, two minutes on a busy one.
START_SECONDS = 900.0
#: What every engine and server here is given: two run at the same time on two cores.
CONTEXT = 4096


@contextmanager
def vllm_server(model: Path, log: Path, *, ours: bool = True, slots: int = 8) -> Iterator[str]:
    """Serve a model with vLLM's server in its development mode; where.

    Args:
        model: its folder.
        log: what the server writes.
        ours: whether it has our worker extension.
        slots: sequences at once.
    """
    held = hold_port()  # it takes minutes to start, in which others look for free ports
    port = held.getsockname()[1]
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server"]
    command += [
        "--model",
        str(model),
        "--served-model-name",
        "tiny",
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
    ]
    command += ["--enforce-eager", "--dtype", "float32", "--max-num-seqs", str(slots)]
    command += ["--logprobs-mode", "processed_logprobs"]
    if ours:
        command += ["--worker-extension-cls", EXTENSION]
    variables = {
        "VLLM_SERVER_DEV_MODE": "1",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_NO_USAGE_STATS": "1",
        "OMP_NUM_THREADS": "1",
    }
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, env=os.environ | variables, stdout=output, stderr=subprocess.STDOUT
        )
    url = f"http://127.0.0.1:{port}"
    try:
        _wait_healthy(process, url, log)
        yield url
    finally:
        end(process)
        held.close()


def _wait_healthy(process: subprocess.Popen[bytes], url: str, log: Path) -> None:
    def healthy() -> bool:
        with suppress(OSError), urllib.request.urlopen(f"{url}/health", timeout=5.0):
            return True
        return False

    until(
        healthy,
        "vLLM server",
        seconds=START_SECONDS,
        every=0.2,
        alive=lambda: process.poll() is None,
        shown=lambda: log.read_text()[-4000:],
    )


def end(process: subprocess.Popen[bytes]) -> None:
    """End a process and all that it has started."""
    with suppress(psutil.NoSuchProcess):
        family = psutil.Process(process.pid).children(recursive=True)
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(60.0)
        for member in family:
            with suppress(psutil.NoSuchProcess):
                member.kill()
    process.kill()
    process.wait()


def family(owner: int) -> list[psutil.Process]:
    """What a process has started, and what that has: vLLM's processes, if that is all it does."""
    found = []
    for process in psutil.Process(owner).children(recursive=True):
        with suppress(psutil.Error):
            # Python's own helper of whoever starts processes ends with it.
            if is_there(process) and not any("resource_tracker" in word for word in process.cmdline()):
                found.append(process)
    return found


def is_there(process: psutil.Process) -> bool:
    """Whether it runs, and is not only waiting to be asked how it ended."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
