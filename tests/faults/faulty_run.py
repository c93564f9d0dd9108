"""Runs a real `rljob run`, kills and freezes its processes, and checks what must hold at its end."""

from __future__ import annotations

import os
import random
import shutil
import signal
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import wait
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
from block_device import Disk
from boundaries import Boundary
from kill_locations import PAIR, RANDOM, Kill, Landed, Written, locate, read_ledger
from watcher import Watcher, names_of

from rljob_cli.run_folder.embedded_nats import running_url
from runs import LiveRun, still_there, write_job

PROMPTS, SIBLINGS = 4, 2
POOL = "cpu"
_MISSES = 40

Say = Callable[[str], None]


class FaultyRun(LiveRun):
    """A run, watched from its first step on.

    Args:
        folder: of its own.
        changes: over the sections of the job's spec.
    """

    def __init__(self, name: str, folder: Path, model: Path, say: Say, *, steps: int, **changes: Any) -> None:
        self.name = name
        self.steps_wanted = steps
        self.kills: list[Kill] = []
        self.landed: list[Landed] = []
        self.watcher: Watcher | None = None
        self._say = say
        self._rollouts = 0
        self._began = time.monotonic()
        folder.mkdir(parents=True, exist_ok=True)
        data = {
            "dataset": "chain_sum",
            "options": {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 2},
            "promptsPerStep": PROMPTS,
            "groupSize": SIBLINGS,
            **changes.pop("data", {}),
        }
        # A job finds its own functions beside its manifest.
        for functions in ("paced.py", "poisonous.py", "faulty_game.py"):
            shutil.copy(Path(__file__).parent / functions, folder)
        self.manifest = write_job(folder, model, steps=steps, backoffLimit=1000, data=data, **changes)
        super().__init__(self.manifest, folder / "run", "--record")

    def say(self, what: str) -> None:
        """Progress, with the seconds since the start."""
        self._say(f"  {self.name:<22} {time.monotonic() - self._began:6.1f} s  {what}")

    def watch(self, from_step: int = 1) -> None:
        """Wait for the first steps, then follow the job."""
        self.until("its streams", lambda: running_url(self.output / "nats") is not None)
        url = running_url(self.output / "nats")
        assert url is not None
        self.until(f"step {from_step}", lambda: self.steps() >= from_step)
        self.watcher = Watcher(url, names_of(self.output), self.output)
        self.watcher.start()
        self.watcher.seen.committed = max(self.watcher.seen.committed, self.steps())
        self.say(f"at step {self.steps()}")

    @property
    def seen(self) -> Watcher:
        """Its watcher."""
        assert self.watcher is not None
        return self.watcher

    # ------------------------------------------------------------------------------------------ processes

    def pods(self, role: str) -> dict[str, int]:
        """Pods of a role that run now, and their process ids."""
        found = {name: stated["pid"] for name, stated in self.pids().items() if _role(name) == role}
        if role == "trainer" and found:  # the newest attempt
            newest = max(found, key=lambda name: int(name.split("-")[-2]))
            return {newest: found[newest]}
        return found

    def victim(self, role: str) -> tuple[str, int]:
        """One pod of the role: of engines, one after the other."""
        self.until(f"a {role}", lambda: bool(self.pods(role)))
        pods = sorted(self.pods(role).items())
        if role == "rollout":
            self._rollouts += 1
        return pods[self._rollouts % len(pods)] if role == "rollout" else pods[0]

    # ------------------------------------------------------------------------------------------ killing

    def hit(self, boundary: Boundary, role: str) -> None:
        """Kill -9 a role's process at the boundary, and wait until the job has gone on."""
        killed: dict[str, int] = {}

        def kill(key: Any) -> None:
            name, pid = self.victim(role)
            killed[name] = pid
            os.kill(pid, signal.SIGKILL)
            self.kills.append(Kill(role, pid, time.time_ns(), boundary.name, boundary, key))

        where = self._act_at(boundary, kill)
        self.say(f"{where}: killed {', '.join(killed)}")
        self.until_back(killed)

    def _act_at(self, boundary: Boundary, act: Callable[[Any], None]) -> str:
        """Act at the boundary, at which the role that acts next stands still; where that was, in words.

        Args:
            act: what is done, for the boundary's key.
        """
        for miss in range(_MISSES):
            held = list(self.pods(boundary.held).values()) if boundary.held else []
            found = self.seen.arm(boundary, lambda held=held: signal_pods(held, signal.SIGSTOP))
            try:
                key = self._awaited(found, boundary.name)
                self.seen.catch_up()
                if not boundary.untouched(key, self.seen.seen):
                    continue  # it came too late to stop what comes next
                step = self.seen.seen.committed
                act(key)
            finally:
                if self.watcher is not None:
                    self.seen.disarm()
                    signal_pods(held, signal.SIGCONT)
            again = f" (after {miss} that came too late)" if miss else ""
            return f"step {step}: {boundary.name}{again}"
        raise AssertionError(f"{boundary.name} was never seen in time")

    def strike(self, *roles: str, chance: random.Random) -> None:
        """Kill -9 processes of these roles at any moment, the later ones a moment after the first."""
        time.sleep(chance.uniform(0.0, 1.0))
        victims = dict(self.victim(role) for role in roles)
        for (name, pid), role in zip(victims.items(), roles, strict=True):
            if self.kills and name != next(iter(victims)):
                time.sleep(chance.choice((0.0, chance.uniform(0.0, 0.6))))
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
                where = RANDOM if len(roles) == 1 else PAIR
                self.kills.append(Kill(role, pid, time.time_ns(), where))
        self.say(f"step {self.seen.seen.committed}: killed {' and '.join(victims)}")
        self.until_back(victims)

    def freeze_at(self, boundary: Boundary, pid: int) -> None:
        """Stop a process (SIGSTOP) at the boundary."""
        self._awaited(self.seen.arm(boundary, lambda: signal_pods([pid], signal.SIGSTOP)), boundary.name)

    def crash(self) -> None:
        """Kill -9 the command; all its processes end with it, as on a machine that dies."""
        self._kill_all()
        self._forget_server()
        self.say("killed with all its processes")

    def lose_power(self, boundary: Boundary, disk: Disk) -> None:
        """Cut the power of the disk that holds the run's folder at the boundary, and of its processes with it."""

        def cut(key: Any) -> None:
            disk.cut_power()
            assert boundary.untouched(key, self.seen.seen), f"{boundary.name}: the power was cut after it"
            self._kill_all()

        where = self._act_at(boundary, cut)
        disk.restore_power()
        self._forget_server()
        self.say(f"{where}: the power was cut")

    def _kill_all(self) -> None:
        family = self.family()
        self.seen.close()
        self.watcher = None
        self.process.kill()
        self.process.wait()
        assert not still_there(family)

    def _forget_server(self) -> None:
        """Remove what the dead nats-server wrote of its port: it would be taken for the next one's."""
        for stale in (self.output / "nats").glob("nats-server_*.ports"):
            stale.unlink()

    def resume(self, *flags: str) -> None:
        """Begin again where it was."""
        LiveRun.__init__(self, self.manifest, self.output, "--resume", "--record", *flags)

    def until_back(self, victims: dict[str, int]) -> None:
        """Wait until others run in their places and a step is committed."""
        reached = self.seen.seen.committed
        self.until(
            f"a step after {', '.join(victims)} was killed",
            lambda: self.replaced(victims) and self.seen.seen.committed > reached,
        )

    def replaced(self, victims: dict[str, int]) -> bool:
        """Whether others run in the places of these pods' processes."""
        pods = self.pids()
        return all(
            bool(self.pods("trainer")) and name not in self.pods("trainer")
            if _role(name) == "trainer"
            else pods.get(name, {}).get("pid", pid) != pid
            for name, pid in victims.items()
        )

    def _awaited(self, found: Any, what: str) -> Any:
        self.until(what, lambda: wait([found], timeout=0.2).done)  # it returns as soon as it is found
        return found.result()

    # ------------------------------------------------------------------------------------------ the end

    def finish(self) -> list[Written]:
        """Wait for the end; all steps are there, the audit is clean, no process is left. The ledger."""
        family = self.family()
        assert self.wait() == 0, self.said[-3000:] + self.logs()
        summary = self.summary()
        assert summary["exit"] == "Succeeded"
        assert summary["steps"] == self.steps_wanted
        siblings = PROMPTS * SIBLINGS
        assert summary["trajectories"]["consumed"] == self.steps_wanted * siblings, summary["trajectories"]
        self.check_audit()
        self.check_replay()
        assert not still_there(family)
        ledger = read_ledger(self.output / "nats", names_of(self.output))
        self.landed = locate(self.name, self.kills, ledger)
        self.say(f"ended: {self.steps_wanted} steps, {len(self.kills)} kills; audit and replay are clean")
        return ledger

    def stop(self) -> None:
        """End what is left, whatever the test did."""
        if self.watcher is not None:
            self.watcher.close()
            self.watcher = None
        for process in self.family():  # a frozen one would not be seen to end
            with suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGCONT)
        super().stop()


def _role(pod: str) -> str:
    for role in ("coordinator", "trainer", "reward", "rollout"):
        if pod.startswith(f"job-{role}"):
            return role
    return "nats-server"


def signal_pods(pids: Sequence[int], number: signal.Signals) -> None:
    """Send a signal to all processes of these pods; each pod leads a process group. An engine's process is watched."""
    for pid in pids:
        with suppress(ProcessLookupError):
            os.killpg(pid, number)


def apart(role: str) -> list[str]:
    """A role's command, to be run so that it may outlive its pod."""
    wrapper = str(Path(__file__).parent / "detached.py")
    return ["python", wrapper, sys.executable, "-m", "rljob_runtime.main", role]
