"""Code that tries to get out of its sandbox, or to take more than its share: each try is contained, and said.

Programs run for real, in namespaces that bubblewrap makes. What they must not reach is there for real, too: a listening
socket, a process, a secret in a file and in the environment.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from tests.waiting import until

from rljob_runtime.sandbox import (
    LocalSandbox,
    SandboxEnd,
    SandboxLimits,
    SandboxResult,
    SandboxUnavailable,
)

SMALL = SandboxLimits(
    seconds=20.0, memory_bytes=64 << 20, disk_bytes=4 << 20, processes=16, output_bytes=100_000
)
SECRET = "a-secret-of-the-machine"


@pytest.fixture(scope="module")
def sandbox() -> LocalSandbox:
    try:
        return LocalSandbox()
    except SandboxUnavailable as error:
        if os.environ.get("RLJOB_E2E_REQUIRED"):
            raise
        pytest.skip(str(error))


def python(sandbox: LocalSandbox, code: str, limits: SandboxLimits = SMALL) -> SandboxResult:
    return sandbox.run(["python3", "main.py"], files={"main.py": code.encode()}, limits=limits)


def says(sandbox: LocalSandbox, code: str, limits: SandboxLimits = SMALL) -> str:
    found = python(sandbox, code, limits)
    assert found.succeeded, found
    return found.output.decode().strip()


def refused(sandbox: LocalSandbox, code: str, *errors: str) -> None:
    """A line of Python fails, by one of these errors."""
    lines = "".join(f"    {line}\n" for line in code.splitlines())
    said = says(
        sandbox,
        f"import errno\ntry:\n{lines}    print('done')\n"
        "except OSError as error:\n    print(errno.errorcode[error.errno])\n",
    )
    assert said in errors, said


def running(marked: str) -> list[psutil.Process]:
    """Processes of the machine with this word in their command line."""
    return [p for p in psutil.process_iter(["cmdline"]) if marked in " ".join(p.info["cmdline"] or ())]


@pytest.fixture
def outside() -> Iterator[subprocess.Popen[bytes]]:
    """A process of the machine."""
    with subprocess.Popen(["sleep", "1000"]) as process:
        yield process
        assert process.poll() is None
        process.kill()


# ---------------------------------------------------------------------------------------------- what it is for


def test_a_program_runs_with_its_files_and_input(sandbox: LocalSandbox) -> None:
    code = b"import sys, helper\nprint(helper.twice(int(sys.stdin.read())))\nprint('no', file=sys.stderr)\n"
    helper = b"def twice(n): return 2 * n\n"
    found = sandbox.run(["python3", "main.py"], files={"main.py": code, "helper.py": helper}, stdin=b"21")
    assert (found.end, found.exit_code, found.output, found.errors) == (SandboxEnd.ENDED, 0, b"42\n", b"no\n")
    assert found.succeeded


def test_how_it_ended_is_said(sandbox: LocalSandbox) -> None:
    assert python(sandbox, "raise SystemExit(3)").exit_code == 3
    assert python(sandbox, "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)").exit_code == 128 + 11
    found = python(sandbox, "1/0")
    assert (found.exit_code, found.end) == (1, SandboxEnd.ENDED)
    assert b"ZeroDivisionError" in found.errors
    assert sandbox.run(["no-such-program"]).exit_code != 0


@pytest.mark.parametrize("name", ["../main.py", "/etc/passwd", "a/../../b", ""])
def test_a_file_that_leads_out_is_refused_before_anything_starts(sandbox: LocalSandbox, name: str) -> None:
    with pytest.raises(ValueError, match="leads out of the sandbox's working directory"):
        sandbox.run(["true"], files={name: b""})
    with pytest.raises(ValueError, match="the sandbox's disk"):
        sandbox.run(["true"], files={"large": bytes(5 << 20)}, limits=SMALL)


def test_two_sandboxes_see_nothing_of_each_other(sandbox: LocalSandbox) -> None:
    assert says(sandbox, "open('left', 'w').write('x'); print('done')") == "done"
    assert says(sandbox, "import os; print(os.listdir())") == "['main.py']"


def test_what_is_missing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda _: None)
    with pytest.raises(SandboxUnavailable, match="install Debian's package bubblewrap"):
        LocalSandbox()


# ---------------------------------------------------------------------------------------------- too much


def test_a_fork_bomb(sandbox: LocalSandbox) -> None:
    marked = f"fork-bomb-{os.getpid()}"
    code = b"import os\nwhile True:\n    try: os.fork()\n    except OSError: pass\n"
    limits = SandboxLimits(seconds=2.0, processes=16)
    found = sandbox.run(["python3", marked], files={marked: code}, limits=limits)
    assert found.end is SandboxEnd.OUT_OF_TIME
    until(lambda: not running(marked))


def test_more_processes_than_it_may_have(sandbox: LocalSandbox) -> None:
    code = (
        "import os, time\nmade = 0\ntry:\n    while True:\n        if os.fork() == 0: time.sleep(60)\n"
        "        made += 1\nexcept OSError:\n    print(made)\n"
    )
    assert 8 <= int(says(sandbox, code)) <= 16


def test_more_threads_than_it_may_have(sandbox: LocalSandbox) -> None:
    code = (
        "import threading, time\nmade = 0\ntry:\n    while True:\n"
        "        threading.Thread(target=time.sleep, args=(60,), daemon=True).start(); made += 1\n"
        "except (RuntimeError, MemoryError):\n    import os\n    print(made, flush=True)\n    os._exit(0)\n"
    )
    found = python(sandbox, code)
    assert found.succeeded, found
    assert int(found.output) <= 16


def test_more_memory_in_one_process(sandbox: LocalSandbox) -> None:
    found = python(sandbox, "held = []\nwhile True: held.append(bytearray(1 << 20))")
    assert found.end is SandboxEnd.OUT_OF_MEMORY or b"MemoryError" in found.errors


def test_more_memory_in_many_processes(sandbox: LocalSandbox) -> None:
    code = (
        "import os, time\nfor _ in range(8):\n    if os.fork() == 0: break\n"
        "held = bytearray(b'x') * (24 << 20)\ntime.sleep(60)\n"
    )
    assert python(sandbox, code).end is SandboxEnd.OUT_OF_MEMORY


def test_memory_that_is_shared(sandbox: LocalSandbox) -> None:
    code = (
        "import mmap, time\nheld = mmap.mmap(-1, 512 << 20)\n"
        "for _ in range(1 << 17): held.write(b'x' * 4096)\ntime.sleep(60)"
    )
    assert python(sandbox, code).end is SandboxEnd.OUT_OF_MEMORY


def test_memory_that_no_limit_counts(sandbox: LocalSandbox) -> None:
    refused(sandbox, "import os\nos.memfd_create('more')", "EPERM")
    call = "print(libc.shmget(0, 1 << 30, 0o1600), ctypes.get_errno())"
    assert says(sandbox, f"import ctypes\nlibc = ctypes.CDLL(None, use_errno=True)\n{call}") == "-1 1"


@pytest.mark.parametrize("place", ["/tmp/fill", "/dev/shm/fill", "/tmp/work/fill"])
def test_a_disk_that_is_filled(sandbox: LocalSandbox, place: str) -> None:
    fill = f"with open({place!r}, 'wb') as file:\n    while True: file.write(bytes(1 << 16))"
    ignore = "import signal\nsignal.signal(signal.SIGXFSZ, signal.SIG_IGN)"
    refused(sandbox, f"{ignore}\n{fill}", "ENOSPC", "EFBIG", "EROFS")


def test_output_without_an_end(sandbox: LocalSandbox) -> None:
    found = python(sandbox, "while True: print('x' * 1000)")
    assert found.end is SandboxEnd.TOO_MUCH_OUTPUT
    assert len(found.output) == SMALL.output_bytes


@pytest.mark.parametrize(
    "code",
    [
        "while True: pass",
        "import time; time.sleep(1000)",
        "import signal, time\nfor n in (1, 2, 3, 10, 12, 15): signal.signal(n, signal.SIG_IGN)\ntime.sleep(1000)",
        "import os, signal; os.kill(os.getpid(), signal.SIGSTOP)",
        "import os, time\nos.close(1); os.close(2); time.sleep(1000)",
    ],
    ids=["computes", "sleeps", "ignores signals", "stops itself", "closes its output"],
)
def test_a_program_without_an_end(sandbox: LocalSandbox, code: str) -> None:
    found = python(sandbox, code, SandboxLimits(seconds=1.0))
    assert found.end is SandboxEnd.OUT_OF_TIME
    assert found.exit_code == 128 + 9


def test_what_a_program_leaves_running_ends_with_it(sandbox: LocalSandbox) -> None:
    marked = "a-daemon-that-stays"
    code = (
        f"import os, subprocess\nsubprocess.Popen(['sleep', '1000'], start_new_session=True)\n"
        f"if os.fork() == 0:\n    os.setsid()\n    os.execv('/bin/sh', ['{marked}', '-c', 'sleep 1000; true'])\n"
        "print('left')\n"
    )
    assert says(sandbox, code) == "left"
    assert not running(marked)


# ---------------------------------------------------------------------------------------------- out of it


def test_the_network(sandbox: LocalSandbox) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        connect = "import socket\nsocket.create_connection(({!r}, {}), timeout=5)"
        refused(sandbox, connect.format("127.0.0.1", port), "ECONNREFUSED", "ENETUNREACH")
        refused(sandbox, connect.format("192.0.2.1", 80), "ENETUNREACH")


@pytest.mark.parametrize(
    "family", ["AF_NETLINK", "AF_PACKET", "AF_VSOCK", "AF_ALG", "AF_BLUETOOTH", "AF_KEY"]
)
def test_other_kinds_of_network(sandbox: LocalSandbox, family: str) -> None:
    number = {
        "AF_NETLINK": 16,
        "AF_PACKET": 17,
        "AF_VSOCK": 40,
        "AF_ALG": 38,
        "AF_BLUETOOTH": 31,
        "AF_KEY": 15,
    }
    refused(sandbox, f"import socket\nsocket.socket({number[family]}, socket.SOCK_RAW)", "EPERM")


def test_sockets_of_the_machine_without_a_file(sandbox: LocalSandbox) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(f"\0rljob-sandbox-{os.getpid()}")
        server.listen()
        code = f"import socket\nsocket.socket(socket.AF_UNIX).connect('\\0rljob-sandbox-{os.getpid()}')"
        refused(sandbox, code, "ECONNREFUSED")


def test_processes_of_the_machine(sandbox: LocalSandbox, outside: subprocess.Popen[bytes]) -> None:
    refused(sandbox, f"import os\nos.kill({outside.pid}, 9)", "ESRCH")
    assert says(sandbox, "import os\ntry: os.kill(-1, 0)\nexcept OSError: pass\nprint('lives')") == "lives"
    listed = says(sandbox, "import os\nprint(*[p for p in os.listdir('/proc') if p.isdecimal()])").split()
    assert len(listed) <= 3
    assert "sleep 1000" not in says(
        sandbox,
        "import glob\nprint(*[open(f).read().replace('\\0', ' ') for f in glob.glob('/proc/[0-9]*/cmdline')])",
    )


def test_files_of_the_machine(sandbox: LocalSandbox, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text(SECRET)
    secret.chmod(0o644)
    for place in (
        secret,
        "/etc/passwd",
        "/etc/shadow",
        "/root",
        "/home",
        "/var/lib",
        "/sys",
        "/run",
        "/boot",
    ):
        refused(sandbox, f"import os\nos.stat({str(place)!r})", "ENOENT")
    refused(sandbox, f"import os\nos.symlink({str(secret)!r}, 'link')\nopen('link')", "ENOENT")
    refused(sandbox, f"open('/proc/1/root{secret}')", "ENOENT", "EACCES", "EPERM")
    refused(sandbox, "open('/proc/kcore', 'rb').read(1)", "EACCES", "EPERM", "ENOENT")


@pytest.mark.parametrize(
    "place", ["/new", "/usr/new", "/bin/new", "/dev/new", "/etc/new", "/proc/sys/kernel/hostname"]
)
def test_writes_outside_of_its_disk(sandbox: LocalSandbox, place: str) -> None:
    refused(sandbox, f"open({place!r}, 'w').write('x')", "EROFS", "EACCES", "EPERM", "ENOENT")


def test_the_environment_and_open_files(
    sandbox: LocalSandbox, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("SECRET_TOKEN", SECRET)
    (tmp_path / "open").write_text(SECRET)
    with (tmp_path / "open").open() as file:
        os.set_inheritable(file.fileno(), True)
        assert SECRET not in says(sandbox, "import os\nprint(dict(os.environ))")
        names = says(
            sandbox,
            "import os\nprint(*sorted(n for n in os.listdir('/proc/self/fd') if os.path.exists(f'/proc/self/fd/{n}')))",
        )
        assert names.split() == ["0", "1", "2"]


def test_more_rights(sandbox: LocalSandbox) -> None:
    refused(sandbox, "import os\nos.setuid(0)", "EPERM", "EINVAL")
    refused(sandbox, "import os\nos.chroot('/tmp')", "EPERM")
    refused(sandbox, "import os\nos.mknod('disk', 0o60660, os.makedev(8, 0))", "EPERM")
    status = says(sandbox, "print(open('/proc/self/status').read())")
    for line in ("CapEff:\t0000000000000000", "CapBnd:\t0000000000000000", "NoNewPrivs:\t1", "Seccomp:\t2"):
        assert line in status
    found = sandbox.run(["sh", "-c", "mount -t tmpfs none /tmp; su -c id"], limits=SMALL)
    assert not found.succeeded


CALLS = {
    "unshare": "libc.unshare(0x10000000)",
    "ptrace": "libc.ptrace(0, 0, 0, 0)",
    "mount": "libc.mount(b'none', b'/tmp', b'tmpfs', 0, 0)",
    "setns": "libc.setns(0, 0)",
    "keyctl": "libc.syscall({'x86_64': 250, 'aarch64': 219}[machine], 0, 0, 0, 0, 0)",
    "bpf": "libc.syscall({'x86_64': 321, 'aarch64': 280}[machine], 0, 0, 0)",
    "io_uring": "libc.syscall(425, 8, 0)",
    "userfaultfd": "libc.syscall({'x86_64': 323, 'aarch64': 282}[machine], 0)",
    "perf_event_open": "libc.syscall({'x86_64': 298, 'aarch64': 241}[machine], 0, 0, -1, -1, 0)",
    "reboot": "libc.reboot(0x01234567)",
    "clone of a user namespace": "libc.syscall({'x86_64': 56, 'aarch64': 220}[machine], 0x10000011, 0, 0, 0, 0)",
}


@pytest.mark.parametrize("call", CALLS)
def test_system_calls_that_lead_out(sandbox: LocalSandbox, call: str) -> None:
    code = (
        "import ctypes, platform\nmachine = platform.machine()\nlibc = ctypes.CDLL(None, use_errno=True)\n"
        f"result = {CALLS[call]}\nprint(result, ctypes.get_errno())\n"
    )
    assert says(sandbox, code) == "-1 1"


def test_the_name_of_the_machine_and_its_terminal(sandbox: LocalSandbox) -> None:
    assert says(sandbox, "import socket\nprint(socket.gethostname())") == "sandbox"
    refused(sandbox, "import socket\nsocket.sethostname('other')", "EPERM")
    refused(sandbox, "open('/dev/tty')", "ENXIO", "ENOENT")
    devices = says(sandbox, "import os\nprint(*sorted(os.listdir('/dev')))").split()
    assert not {"sda", "vda", "mem", "kmsg", "kvm", "fuse"} & set(devices)


def test_a_program_of_another_machine_s_convention(sandbox: LocalSandbox) -> None:
    """On x86, calls by `int 0x80` have other numbers: the filter ends such a program."""
    if os.uname().machine != "x86_64":
        pytest.skip("x86 alone has two")
    code = (
        "import ctypes, mmap\nm = mmap.mmap(-1, 4096, prot=7)\n"
        "m.write(bytes.fromhex('b8140000' '00' 'cd80' 'c3'))\n"  # mov eax, getpid; int 0x80; ret
        "f = ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(m)))\nprint(f())\n"
    )
    found = python(sandbox, code)
    assert found.exit_code in {128 + 31, 128 + 11}  # SIGSYS; SIGSEGV where the kernel has no such convention


def test_nothing_is_left(sandbox: LocalSandbox) -> None:
    mine = [p for p in psutil.Process().children(recursive=True) if "bwrap" in p.name()]
    assert mine == []
    assert sys.platform == "linux"
