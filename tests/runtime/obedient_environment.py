"""An environment that does what the model says, its clients, and where its servers run."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rljob_contract.samples import job_config
from rljob_core.errors import EnvironmentFailed
from rljob_core.ports import EpisodeStart, ModelTurn
from rljob_runtime.environments.client import EnvironmentClient
from rljob_runtime.environments.messages import EncodedObservation
from rljob_runtime.process.server_child import ServerChild

#: An environment that does what the model says.
OBEDIENT = """
import asyncio, json, os, signal, socket, subprocess, time
import numpy as np
from rljob_runtime.environments import TurnObservation



def terse(size):
    # The next reply is as long as a process may send, without the fields that have defaults.
    from rljob_runtime.environments import episode_process

    framed = episode_process.frame

    def shorter(reply):
        number = json.loads(reply)["number"]
        before, behind = b'{"number":%d,"observation":{"text":"' % number, b'"}}'
        return framed(before + b"x" * (size - len(before) - len(behind)) + behind)

    episode_process.frame = shorter
    return TurnObservation(text="x")


def terse_message():
    # The next reply has a message that has not what it must have.
    from rljob_runtime.environments import episode_process

    framed = episode_process.frame
    sent = b'"observation":{"messages":[{"tool_calls":"a"}]}}'
    episode_process.frame = lambda reply: framed(b'{"number":%d,' % json.loads(reply)["number"] + sent)
    return TurnObservation(text="x")


def attack(process):
    try:
        os.kill(process, signal.SIGKILL)
    except PermissionError:
        return TurnObservation(text="refused")


def child(**options):
    return TurnObservation(text=str(subprocess.Popen(["sleep", "600"], **options).pid))


def explode():
    raise RuntimeError("no item")


class Mine:
    def __reduce__(self):
        return explode, ()


REACTIONS = {
    "kill the fork server": lambda: attack(os.getppid()),
    "kill the server": lambda: attack(int(open(f"/proc/{os.getppid()}/stat").read().rpartition(")")[2].split()[1])),
    "kill itself": lambda: attack(os.getpid()),
    "child": lambda: child(),
    "daemon": lambda: child(start_new_session=True),
    "1 MiB": lambda: terse(1 << 20),
    "no content": lambda: terse_message(),
    "end": lambda: None,
    "text": lambda: TurnObservation(text="it is 7"),
    "tokens": lambda: TurnObservation(tokens=np.array([1, 2])),
    "messages": lambda: TurnObservation(messages=[{"role": "user", "content": "warmer"}]),
    "raise": lambda: 1 / 0,
    "exit": lambda: exit(3),
    "hang": lambda: time.sleep(600),
    "die": lambda: os._exit(7),
    "10 MB": lambda: TurnObservation(text="x" * 10_000_000),
    "no UTF-8": lambda: TurnObservation(text="a\\udcffb"),
    "bytes": lambda: TurnObservation(text=b"\\xff"),
    "a string": lambda: "it is 7",
    "nothing": lambda: TurnObservation(),
    "two": lambda: TurnObservation(text="a", tokens=[1]),
    "negative": lambda: TurnObservation(tokens=[-1]),
    "floats": lambda: TurnObservation(tokens=[1.5]),
    "no role": lambda: TurnObservation(messages=[{"content": "warmer"}]),
    "connect": lambda: socket.socket(),
    "secret": lambda: TurnObservation(text=str(sorted(name for name in os.environ if "RLJOB_NATS" in name))),
}


class Obedient:
    def __init__(self, score=0.5):
        self.scored = score

    async def open(self, start):
        self.start = start
        if start.prompt == 13:
            raise LookupError("no game for prompt 13")
        return None if start.prompt == 14 else self

    async def react(self, turn):
        if turn.text == "wait":
            await asyncio.sleep(600)
        return REACTIONS[turn.text]()

    async def score(self, *, truncated):
        return {1: float("nan"), 2: "good", 3: 1e7, 4: None}.get(self.start.seed, self.scored)


class Speaking(Obedient):
    observes_first = True

    async def begin(self):
        return TurnObservation(text="go") if self.start.prompt else None


class Silent(Obedient):
    observes_first = True


class Refusing:
    async def open(self, start):
        return self

    def __init__(self):
        raise RuntimeError("no board")


class Killed:
    async def open(self, start):
        return self

    def __init__(self):
        os.kill(os.getpid(), signal.SIGKILL)


def plain(start):
    return start


class Closed:
    pass
"""


class Place(ServerChild):
    """Where servers run, with the id of the one that does now."""

    def __init__(self) -> None:
        super().__init__("rljob_runtime.environments", {"PATH": os.environ["PATH"]})

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid


def client_of(name: str, *, place: ServerChild | None = None, **environment: object) -> EnvironmentClient:
    rollout = {"environment": {"name": name, **environment}, "pools": [{"name": "a"}]}
    config = job_config(Path(), rollout=rollout, reward={"functions": ["environment"]})
    return EnvironmentClient(config, place=place)


def start(prompt: int = 0, *, seed: int = 0, item: Mapping[str, Any] | None = None) -> EpisodeStart:
    return EpisodeStart(prompt, held_out=False, text="?", item=item or {}, seed=seed, max_turns=9)


async def said(client: EnvironmentClient, text: str) -> EncodedObservation | str | None:
    """What comes of one response, in an episode of its own: the observation or the failure."""
    episode = await client.open(start())
    try:
        return await episode.react(ModelTurn(text, [1], truncated=False))
    except EnvironmentFailed as failed:
        return str(failed)
    finally:
        episode.close()
