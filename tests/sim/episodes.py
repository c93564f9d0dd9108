"""The environment of a simulated job: games that raise, crash, hang, lie or are slow, and servers that are killed.

Only processes and sockets are simulated. The worker's end is the product's (`EnvironmentClient`, `Episodes`), and so
are the server (`EpisodeServer`), what it knows of a process (`EpisodeProcess`) and what that answers (`answer_calls`).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import os
import pickle
import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

from virtual_pipe import pipe

from rljob_core.config import JobConfig
from rljob_core.ports import EpisodeStart, ModelTurn, TurnObservation
from rljob_core.trajectory import group_id
from rljob_runtime.environments.client import EnvironmentClient
from rljob_runtime.environments.episode_child import EpisodeProcess
from rljob_runtime.environments.episode_process import answer_calls
from rljob_runtime.environments.messages import (
    GREETING,
    LARGEST_CALL,
    REFUSED,
    REPLY,
    EnvironmentReply,
    EnvironmentSetup,
    EpisodeCall,
    failure,
)
from rljob_runtime.environments.server import EpisodeServer
from rljob_runtime.process.frames import ServerConnection, frame, read_frame
from rljob_runtime.roles.rollout import episode_starts

REASONS = {
    "raises": "EnvironmentRaised",
    "crashes": "EnvironmentCrashed",
    "closes": "EnvironmentCrashed",
    "hangs": "EnvironmentTimeout",
    "slow": "EpisodeTimeout",
    "invalid": "EnvironmentInvalid",
    "out of turn": "EnvironmentInvalid",
    "twice": "EnvironmentInvalid",
    "refuses": "EnvironmentInvalid",
}
"""What the ledger says of an attempt, by what its game does wrong."""
POINTS = 8
"""A game's score is its number over this, so that no two games have the same."""

Prompt = tuple[bool, int]
"""Whether it is held out, and its index."""


@dataclass(frozen=True)
class Misdeed:
    """What a game does wrong, a key of `REASONS`, and in which call: the first, second, … `react`, or another."""

    kind: str
    verb: str = "react"
    turn: int = 1


@dataclass(frozen=True)
class GameFaults:
    """What goes wrong with the environment.

    Attributes:
        seconds: shortest and longest time of a call; its logarithm is distributed uniformly.
        failing: probability that a game does something wrong; one of each prompt does.
        lost_servers: how often a server is killed at a random time.
        lost_loading: probability that a server is lost while it starts.
        not_started: probability that no process starts for an episode.
        poison: the prompt whose games all do what `misdeed` says; None if there is none.
    """

    seconds: tuple[float, float] = (0.01, 2.0)
    failing: float = 0.0
    lost_servers: int = 0
    lost_loading: float = 0.0
    not_started: float = 0.0
    poison: Prompt | None = None
    misdeed: Misdeed = Misdeed("raises")

    @property
    def poisoned_group(self) -> str:
        """Id of the poisoned group; "" if there is none that is trained on."""
        return "" if self.poison is None or self.poison[0] else group_id(self.poison[1])


def any_game_faults(chance: random.Random, *, prompts: int) -> GameFaults:
    """Any faults of an environment, in a job that trains on so many prompts at least."""
    kind = chance.choice(sorted(REASONS))
    verb = chance.choice(["open", "react", "score"]) if kind in {"raises", "crashes", "hangs"} else "react"
    poison = chance.choice([None, None, (False, chance.randrange(prompts)), (True, chance.randrange(3))])
    return GameFaults(
        seconds=chance.choice([(0.01, 0.1), (0.01, 4.0), (0.5, 8.0)]),
        failing=chance.choice([0.0, 0.1, 0.5]),
        lost_servers=chance.choice([0, 0, 1, 2]),
        lost_loading=chance.choice([0.0, 0.0, 0.1, 0.5]),
        not_started=chance.choice([0.0, 0.0, 0.02]),
        poison=poison,
        misdeed=Misdeed(kind, verb),
    )


@dataclass(eq=False)
class Played:
    """One game, as its environment knows it.

    Attributes:
        number: of all games of the job.
        opened, scored: seconds of virtual time.
        turns: tokens of the responses that it was given.
        observations: tokens that it answered each of them with, except where it ended.
        ended: whether the environment has ended it.
        truncated: as it was told.
    """

    number: int
    start: EpisodeStart
    opened: float
    turns: list[tuple[int, ...]] = field(default_factory=list)
    observations: list[tuple[int, ...]] = field(default_factory=list)
    ended: bool = False
    truncated: bool = False
    scored: float | None = None


class Games:
    """All games of a job.

    Args:
        faults: what goes wrong.
        chance: the random number generator.
        happened: counts what goes wrong.
        timeout_seconds, episode_seconds: of the job's environment.
        refute: ends the job, for this reason.

    Attributes:
        played: the games, by number.
        harm: how often an attempt at a prompt may be said to have failed through its environment.
        killed: of these, by the death of a server.
        places: where servers are.
    """

    def __init__(
        self,
        faults: GameFaults,
        chance: random.Random,
        happened: Counter[str],
        *,
        timeout_seconds: float,
        episode_seconds: float,
        refute: Callable[[str], None],
    ) -> None:
        self.faults, self.chance, self.happened = faults, chance, happened
        self.timeout_seconds, self.episode_seconds = timeout_seconds, episode_seconds
        self.refute = refute
        self.played: list[Played] = []
        self.harm: Counter[Prompt] = Counter()
        self.killed: Counter[Prompt] = Counter()
        self.places: list[SimulatedPlace] = []
        self._seeds: dict[Prompt, int] = {}
        self._failed: Counter[Prompt] = Counter()

    @contextlib.contextmanager
    def items(self) -> Iterator[None]:
        """Have rollouts read items that need no file."""

        class Items:
            def item(self, index: int) -> dict[str, Any]:
                return {"index": index}

        with patch.object(episode_starts, "open_job_items", lambda *_: Items()):
            yield

    def happens(self, rate: float) -> bool:
        """Draw whether something of this probability happens."""
        return rate > 0 and self.chance.random() < rate

    async def pass_time(self) -> None:
        """Take the time of a call."""
        low, high = self.faults.seconds
        await asyncio.sleep(math.exp(self.chance.uniform(math.log(low), math.log(high))))

    def begin(self, start: EpisodeStart) -> tuple[Played, Misdeed | None]:
        """A game, and what it does wrong."""
        prompt = (start.held_out, start.prompt)
        if self._seeds.setdefault(prompt, start.seed) != start.seed:
            self.refute(f"[seed] an attempt at {prompt} plays another game than the ones before")
        played = Played(len(self.played), start, asyncio.get_running_loop().time())
        self.played.append(played)
        if prompt == self.faults.poison:
            return played, self.faults.misdeed
        if self._failed[prompt] or not self.happens(self.faults.failing):
            return played, None
        self._failed[prompt] += 1
        kind = self.chance.choice(sorted(REASONS))
        return played, Misdeed(
            kind, self.chance.choice(["open", "react", "score"]), self.chance.choice([1, 2])
        )

    def does(self, played: Played, misdeed: Misdeed) -> None:
        """Note that a game does what is wrong."""
        self.happened[f"game {misdeed.kind}"] += 1
        self.harm[played.start.held_out, played.start.prompt] += 1

    def kill_server(self) -> None:
        """Kill a server, if there is one."""
        if alive := [place for place in self.places if place.is_alive]:
            self.happened["server of episodes killed"] += 1
            self.chance.choice(alive).kill()


class SimulatedProcess(EpisodeProcess):
    """A process that plays one episode, and the environment in it.

    Args:
        setup: of the job.
        games: of the job.
    """

    def __init__(self, setup: EnvironmentSetup, games: Games) -> None:
        self._setup = setup
        self._games = games
        (self._reader, self._writer), (reader, writer) = pipe()
        self._theirs = _LyingWriter(writer)
        self._process: Any = self  # whose `exitcode` and `join` are asked for
        self.exitcode: int | None = None
        self.played: Played | None = None
        self._task = asyncio.create_task(self._play((reader, self._theirs)), name="episode")

    def join(self, seconds: float) -> None:
        """Do nothing: it has ended at once."""

    async def make(self, seconds: float) -> EnvironmentReply:
        """See `EpisodeProcess`."""
        return await self._reply(0, "while it was made", seconds)

    async def end(self) -> None:
        """Kill it."""
        self.kill()

    def kill(self) -> None:
        """Kill it."""
        if self.played is not None and self.exitcode is None:
            start, lasted = self.played.start, asyncio.get_running_loop().time() - self.played.opened
            if self.played.scored is None and lasted > self._games.episode_seconds - 20.0:
                self._games.happened["episode too long"] += 1
                self._games.harm[start.held_out, start.prompt] += 1
        if self.exitcode is None:
            self.exitcode = -9
        self._writer.close()
        self._task.cancel()

    async def _play(self, connection: Any) -> None:
        await asyncio.sleep(self._games.chance.uniform(0.01, 0.2))
        self._theirs.write(frame(REPLY.dump_json(EnvironmentReply(0))))
        await answer_calls(connection, self, name=self._setup.name, process=os.getpid())

    # ------------------------------------------------------------------------------------------ the environment

    async def open(self, start: EpisodeStart) -> SimulatedProcess | None:
        """See `Environment`."""
        self.played, self._misdeed = self._games.begin(start)
        return None if await self._misbehaves("open") == "invalid" else self

    async def react(self, turn: ModelTurn) -> Any:
        """See `Episode`: a game has one turn to one more than the most, by its seed."""
        assert self.played is not None
        self.played.turns.append(tuple(turn.tokens))
        if await self._misbehaves("react") == "invalid":
            wrong: list[Any] = ["text", TurnObservation(), TurnObservation(tokens=[-1]), 7]
            wrong += [TurnObservation(text="\ud800"), TurnObservation(messages=[{"content": "?"}])]
            return self._games.chance.choice(wrong)
        start = self.played.start
        if len(self.played.turns) > start.seed % (start.max_turns + 1):
            self.played.ended = True
            return None
        text = f"({self.played.number})"
        kind = self._games.chance.choice(["text", "tokens", "messages", "empty"])
        if kind == "empty":
            text, kind = "", "text"
        self.played.observations.append(tuple(text.encode()))
        if kind == "tokens":
            return TurnObservation(tokens=list(text.encode()))
        if kind == "messages":
            return TurnObservation(messages=[{"role": "user", "content": text}])
        return TurnObservation(text=text)

    async def score(self, *, truncated: bool) -> Any:
        """See `Episode`."""
        assert self.played is not None
        if await self._misbehaves("score") == "invalid":
            return self._games.chance.choice([math.nan, "good", 1e9, None])
        self.played.truncated = truncated
        self.played.scored = asyncio.get_running_loop().time()
        return self.played.number / POINTS

    async def _misbehaves(self, verb: str) -> str:
        """Take the call's time, and do what is wrong in it; what the caller has to do of that."""
        assert self.played is not None
        misdeed = self._misdeed
        if misdeed is not None and misdeed.kind == "slow":
            await asyncio.sleep(0.95 * self._games.timeout_seconds)
            return ""
        await self._games.pass_time()
        here = (verb, len(self.played.turns) if verb == "react" else 0)
        if misdeed is None or here != (misdeed.verb, misdeed.turn if verb == "react" else 0):
            return ""
        self._games.does(self.played, misdeed)
        match misdeed.kind:
            case "raises":
                raise self._games.chance.choice([RuntimeError("no game"), SystemExit(3), KeyboardInterrupt()])
            case "crashes" | "closes":
                self.exitcode = -11 if misdeed.kind == "crashes" else None
                self._theirs.close()
                await asyncio.Event().wait()
            case "hangs":
                await asyncio.Event().wait()
            case "out of turn" | "twice" | "refuses":
                self._theirs.lie = misdeed.kind
        return misdeed.kind


class _LyingWriter:
    """The end of a process's connection, whose next reply may be false."""

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self._writer = writer
        self.close = writer.close
        self.drain = writer.drain
        self.lie = ""

    def write(self, data: bytes) -> None:
        """Send this, or what is false instead."""
        reply, lie, self.lie = json.loads(data[4:]), self.lie, ""
        if lie == "out of turn":
            data = frame(json.dumps(reply | {"number": reply["number"] - 1}).encode())
        elif lie == "refuses":
            data = frame(failure(reply["number"], REFUSED, "spec.steps\nthey are wrong"))
        self._writer.write(2 * data if lie == "twice" else data)


class SimulatedServer(EpisodeServer):
    """An environment server whose processes are simulated.

    Args:
        setup: of the job.
        writer: takes the replies.
        games: of the job.

    Attributes:
        calls: prompts of the calls that have no reply, by number.
    """

    def __init__(self, setup: EnvironmentSetup, writer: asyncio.StreamWriter, games: Games) -> None:
        super().__init__(setup, writer, set())
        self._games = games
        self._prompts: dict[int, Prompt] = {}
        self.calls: dict[int, Prompt] = {}

    def _started(self) -> EpisodeProcess:
        if self._games.happens(self._games.faults.not_started):
            self._games.happened["no process for an episode"] += 1
            raise BlockingIOError("no more processes")
        return SimulatedProcess(self._setup, self._games)

    async def answer(self, call: EpisodeCall) -> None:
        """See `EpisodeServer`."""
        if call.verb == "open":
            start: EpisodeStart = pickle.loads(call.start)
            self._prompts[call.episode] = (start.held_out, start.prompt)
        if call.verb in {"open", "react", "score"}:
            self.calls[call.number] = self._prompts[call.episode]
        await super().answer(call)
        self.calls.pop(call.number, None)


class SimulatedPlace:
    """Where the servers of one worker run, one after the other.

    Args:
        games: of the job.
    """

    def __init__(self, games: Games) -> None:
        self._games = games
        self._task: asyncio.Task[None] | None = None
        self._server: SimulatedServer | None = None
        games.places.append(self)

    @property
    def is_alive(self) -> bool:
        """Whether a server runs that has loaded."""
        return self._task is not None and not self._task.done() and self._server is not None

    async def connect(self) -> ServerConnection:
        """See `ServerPlace`."""
        await self.close()
        await asyncio.sleep(self._games.chance.uniform(0.1, 1.0))
        if self._games.happens(self._games.faults.lost_loading / 2):
            raise BlockingIOError("no more processes")
        ours, theirs = pipe()
        self._task = asyncio.create_task(self._serve(theirs), name="environment server")
        return ours

    async def end(self) -> str:
        """See `ServerPlace`."""
        return "exit code 137 (SIGKILL)"

    async def close(self) -> None:
        """See `ServerPlace`."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def kill(self) -> None:
        """Kill the server, and with it the processes of its episodes."""
        assert self._task is not None
        if self._server is not None:
            self._games.harm.update(self._server.calls.values())
            self._games.killed.update(self._server.calls.values())
        self._task.cancel()

    async def _serve(self, connection: ServerConnection) -> None:
        reader, writer = connection
        self._server = None
        try:
            writer.write(frame(GREETING))
            setup: EnvironmentSetup = pickle.loads(await read_frame(reader, LARGEST_CALL))
            await asyncio.sleep(self._games.chance.uniform(0.1, 2.0))
            if self._games.happens(self._games.faults.lost_loading / 2):
                self._games.happened["server of episodes lost"] += 1
                return
            server = self._server = SimulatedServer(setup, writer, self._games)
            writer.write(frame(REPLY.dump_json(EnvironmentReply(0))))
            async with asyncio.TaskGroup() as calls:
                while True:
                    call: EpisodeCall = pickle.loads(await read_frame(reader, LARGEST_CALL))
                    calls.create_task(server.answer(call))
        except* (OSError, asyncio.IncompleteReadError):
            pass  # the worker has gone
        finally:
            if self._server is not None:
                await self._server.close()
            writer.close()


def simulated_client(config: JobConfig, games: Games) -> EnvironmentClient:
    """What has the episodes of one worker played."""
    return EnvironmentClient(config, place=SimulatedPlace(games))
