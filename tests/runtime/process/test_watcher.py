"""The process that watches another one: signals, exit codes, last words, and that neither outlives the other."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from tests.night import some

from rljob_core import worker_protocol

PATIENCE = 300.0  # seconds; of a busy machine
STARTED: list[subprocess.Popen[str]] = []
WATCHING = """
import sys
from rljob_runtime.process.watcher import forked_child, program, watch
_, how, child = sys.argv
ways = {"program": program([sys.executable, "-c", child]), "fork": forked_child(lambda: exec(child, {}) or 0)}
end = watch(ways[how], {"GIVEN": "1"})
print(end.code, end.crashed, end.words)
if end.beginning:
    print("beginning", end.beginning)
sys.exit(end.code)
"""


def start(child: str, folder: Path, how: str = "program") -> subprocess.Popen[str]:
    environment = {
        **os.environ,
        worker_protocol.TERMINATION_LOG: str(folder / "termination"),
        worker_protocol.READY_FILE: str(folder / "ready"),
    }
    watcher = subprocess.Popen(
        [sys.executable, "-c", WATCHING, how, child],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    STARTED.append(watcher)
    return watcher


both_ways = pytest.mark.parametrize("how", ["program", "fork"])


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    """Ends what a failed test has left."""
    yield
    while STARTED:
        with STARTED.pop() as watcher:
            watcher.kill()


@both_ways
@pytest.mark.parametrize(
    ("child", "stated"),
    [
        ("import os; assert os.environ['GIVEN'] == '1'; os._exit(4)", "4 False"),
        ("pass", "0 True"),  # nobody asked it to end
        ("import sys; print('first\\nno room', file=sys.stderr); sys.exit(1)", "1 True no room"),
        ("import os; os.write(2, b'all is well'); os.kill(os.getpid(), 9)", "137 True"),
        (
            "import faulthandler, ctypes; faulthandler.enable(); ctypes.string_at(0)",
            "139 True Segmentation fault in string_at",
        ),
        (
            "import os; open(os.environ['RLJOB_TERMINATION_LOG'], 'w').write('ValueError: why'); os._exit(1)",
            "1 True ValueError: why",
        ),
    ],
)
def test_it_says_how_the_child_ended_and_ends_likewise(
    child: str, stated: str, how: str, tmp_path: Path
) -> None:
    (tmp_path / "ready").touch()
    watcher = start(child, tmp_path, how)
    out, err = watcher.communicate(timeout=PATIENCE)
    assert out.startswith(stated), out + err
    assert watcher.returncode == int(stated.split(maxsplit=1)[0])
    assert not (tmp_path / "ready").exists(), "it serves no more"
    words = "".join(out.strip().split(" ", 2)[2:])
    if "True" in stated:
        assert (tmp_path / "termination").read_text() == words
    if stated == "137 True":
        assert words == "", "what a killed process says last is not why it ended"


@both_ways
def test_it_waits_for_no_process_that_the_child_leaves_behind(how: str, tmp_path: Path) -> None:
    """All that the child has printed passes, however much; another process may hold its standard error for ever."""
    child = """
import os, subprocess
other = subprocess.Popen(["sleep", "600"], stdout=subprocess.DEVNULL)
print(other.pid, flush=True)
os.write(2, b"x" * 300_000 + b"\\nthe end\\n")
os._exit(9)
"""
    watcher = start(child, tmp_path, how)
    out, err = watcher.communicate(timeout=PATIENCE)
    other, stated = out.splitlines()
    psutil.Process(int(other)).kill()
    assert stated == "9 True the end"
    assert err.count("x") == 300_000


@pytest.mark.parametrize("hangs", some(["os.kill(os.getpid(), signal.SIGSTOP)", "time.sleep(600)"], 1))
def test_a_child_that_is_silent_for_longer_than_it_said_is_killed(hangs: str, tmp_path: Path) -> None:
    child = f"""
import os, signal, subprocess, sys, time
from rljob_runtime.process.alive import AliveWriter
alive = AliveWriter()
time.sleep(3)  # nothing is expected of it before it has said anything
alive.say(1)
alive.say(0)
time.sleep(3)  # nor when it has said so
other = subprocess.Popen([sys.executable, "-c", "import os; print(os.environ.get('RLJOB_ALIVE_PIPE'), flush=True)"])
other.wait()
alive.say(1)
{hangs}
"""
    watcher = start(child, tmp_path)
    out, err = watcher.communicate(timeout=PATIENCE)
    assert out.splitlines() == ["None", "124 True no new token for 1 s: ended by its watcher"], out + err
    assert watcher.returncode == worker_protocol.EXIT_HUNG
    assert (tmp_path / "termination").read_text() == "no new token for 1 s: ended by its watcher"


def test_what_the_child_was_beginning_outlives_it(tmp_path: Path) -> None:
    child = """
import os, time
from rljob_runtime.process.alive import AliveWriter
alive = AliveWriter()
alive.say(600)
for name in ("g1", "", "g2", "", "g3"):
    alive.begin(name)
os.abort()
"""
    watcher = start(child, tmp_path)
    out, err = watcher.communicate(timeout=PATIENCE)
    assert out.startswith("134 True"), out + err
    assert out.splitlines()[-1] == "beginning g3"


def until_up(watcher: subprocess.Popen[str]) -> psutil.Process:
    assert watcher.stdout is not None
    assert watcher.stdout.readline() == "up\n"
    (child,) = psutil.Process(watcher.pid).children()
    return child


@both_ways
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize(
    ("handler", "code"),
    [("lambda *_: sys.exit(0)", 0), ("lambda *_: sys.exit(4)", 4), ("signal.SIG_DFL", None)],
)
def test_an_end_that_was_asked_for_is_no_crash(
    handler: str, code: int | None, number: signal.Signals, how: str, tmp_path: Path
) -> None:
    child = f"""
import signal, sys, time
signal.signal({int(number)}, {handler})
print("up", flush=True)
while True:
    time.sleep(60)
"""
    watcher = start(child, tmp_path, how)
    until_up(watcher)
    watcher.send_signal(number)
    out, err = watcher.communicate(timeout=PATIENCE)
    assert watcher.returncode == (128 + number if code is None else code)
    assert out.split()[1] == "False", out + err
    assert not (tmp_path / "termination").exists()


def test_a_crash_is_one_also_where_an_end_was_asked_for(tmp_path: Path) -> None:
    child = """
import os, signal, time
signal.signal(signal.SIGTERM, lambda *_: os.abort())
print("up", flush=True)
while True:
    time.sleep(60)
"""
    watcher = start(child, tmp_path)
    until_up(watcher)
    watcher.terminate()
    out, err = watcher.communicate(timeout=PATIENCE)
    assert out.split()[:2] == ["134", "True"], out + err


@both_ways
def test_a_killed_watcher_takes_the_child_and_its_children_along(how: str, tmp_path: Path) -> None:
    child = '''
import subprocess, sys
from rljob_runtime.process.lifeline import die_with_parent
die_with_parent()
code = """
import os
from rljob_runtime.process.lifeline import die_with_parent
die_with_parent()
print(os.getpid(), os.getppid(), flush=True)
input()
"""
subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE).wait()
'''
    watcher = start(child, tmp_path, how)
    assert watcher.stdout is not None
    family = [psutil.Process(int(pid)) for pid in watcher.stdout.readline().split()]
    assert len(family) == 2
    watcher.kill()
    gone, alive = psutil.wait_procs(family, timeout=PATIENCE)
    for process in alive:
        process.kill()
    assert (len(gone), alive) == (2, [])
    watcher.communicate()
