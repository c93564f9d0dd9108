"""`agent`: an environment that is a program of the user's, which asks for the model's turns as OpenAI's clients do.

The program is started when its episode is opened. Each request for a chat completion ends a call of the episode: what
is new in it is what the model reads next. The model's turn is the request's answer. The program's end is the episode's.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import shutil
import sys
from collections.abc import Sequence

from rljob_core.errors import SpecError
from rljob_core.ports import EpisodeStart, ModelTurn, TurnObservation
from rljob_core.words import end_with_last_words, shell_code
from rljob_runtime.environments.agent.chat_requests import ChatRequestRefused
from rljob_runtime.environments.agent.exchange import TurnExchange
from rljob_runtime.environments.agent.gateway import AgentGateway
from rljob_runtime.environments.agent.tool_calls import PARSERS
from rljob_runtime.process.error_tail import ErrorTail

PROMPT = "{prompt}"
"""In an argument of the command: the prompt's text."""


class AgentProgram:
    """A process of the agent's.

    Args:
        command: the program and its arguments.
        prompt: takes the place of `PROMPT` in the arguments; the process can read it from its standard input, too.
        variables: that it gets besides this process's own.
    """

    def __init__(self, command: Sequence[str], *, prompt: str, variables: dict[str, str]) -> None:
        program, *arguments = command
        self._command = [
            sys.executable if program == "python" else program,
            *(argument.replace(PROMPT, prompt) for argument in arguments),
        ]
        self._prompt = prompt
        self._variables = variables
        self._process: asyncio.subprocess.Process | None = None
        self._errors = ErrorTail()

    async def run(self) -> int:
        """Start it, and wait for its end; its exit code, as shells count."""
        with contextlib.ExitStack() as unused:
            unused.callback(self._errors.close)
            self._process = await asyncio.create_subprocess_exec(
                *self._command,
                stdin=asyncio.subprocess.PIPE,
                stderr=self._errors.writing,
                env={**os.environ, **self._variables},
            )
            unused.pop_all()
        self._errors.start()
        assert self._process.stdin is not None  # noqa: S101  it is a pipe
        with contextlib.suppress(OSError):  # it may read nothing
            self._process.stdin.write(self._prompt.encode(errors="replace"))
            await self._process.stdin.drain()
        self._process.stdin.close()
        return shell_code(await self._process.wait())

    async def end_in_words(self, code: int) -> str:
        """How it has ended, with what it printed last."""
        return end_with_last_words(code, await asyncio.to_thread(self._errors.rest))


_OPTIONS = "spec.rollout.environment.options"


class AgentEnded(Exception):
    """The program has ended as it must not."""


class Agent:
    """Runs a program in each episode.

    Args:
        command: the program and its arguments; `{prompt}` in one stands for the prompt's text, `python` for the
            interpreter of this process.
        model: the name that requests give the model.
        tool_calls: how the model writes tool calls: a name of `PARSERS`.
        plain_text: whether the model reads the contents of messages alone: for models without a chat template.

    Raises:
        SpecError: no such program or parser.
    """

    observes_first = True

    def __init__(self, command: Sequence[str], *, model: str, tool_calls: str, plain_text: bool) -> None:
        if (
            not isinstance(command, list | tuple)
            or not command
            or not all(isinstance(c, str) for c in command)
        ):
            raise SpecError(f"{_OPTIONS}.command", "write a list: the program and its arguments, as texts")
        if command[0] != "python" and shutil.which(command[0]) is None:
            raise SpecError(f"{_OPTIONS}.command", f"there is no program {command[0]!r}")
        if not isinstance(model, str) or not model:
            raise SpecError(f"{_OPTIONS}.model", "write a name")
        if tool_calls not in PARSERS:
            raise SpecError(f"{_OPTIONS}.toolCalls", f"write one of {', '.join(PARSERS)}")
        if not isinstance(plain_text, bool):
            raise SpecError(f"{_OPTIONS}.plainText", "write true or false")
        self._command = command
        self._model = model
        self._parser = PARSERS[tool_calls]
        self._plain_text = plain_text

    async def open(self, start: EpisodeStart) -> AgentEpisode:
        """Open an episode: the program starts when it begins."""
        exchange = TurnExchange(self._model, self._parser, plain_text=self._plain_text)
        return AgentEpisode(self._command, start, exchange, model=self._model)


class AgentEpisode:
    """One episode of an agent.

    Args:
        command: as in `Agent`.
        start: of the episode.
        exchange: of its turns.
        model: name of the model.
    """

    def __init__(
        self, command: Sequence[str], start: EpisodeStart, exchange: TurnExchange, *, model: str
    ) -> None:
        self._command = command
        self._start = start
        self._exchange = exchange
        self._model = model
        self._key = f"sk-{secrets.token_urlsafe(32)}"
        self._gateway = AgentGateway(exchange, start, model=model, key=self._key)

    async def begin(self) -> TurnObservation:
        """Start the program; the messages of its first request.

        Raises:
            AgentEnded: it has ended before.
        """
        variables = {
            "OPENAI_BASE_URL": await self._gateway.serve(),
            "OPENAI_API_KEY": self._key,
            "OPENAI_MODEL": self._model,
        }
        self._program = AgentProgram(self._command, prompt=self._start.text, variables=variables)
        self._running = asyncio.create_task(self._program.run())
        observation = await self._next_request()
        if observation is None:
            ended = await self._program.end_in_words(self._running.result())
            raise AgentEnded(f"it has ended before its first request: {ended}")
        return observation

    async def react(self, turn: ModelTurn) -> TurnObservation | None:
        """Give the program the model's turn; the new messages of its next request, or None if it has ended.

        Raises:
            AgentEnded: its exit code is not 0.
            HistoryRewritten: the request changes what was said before.
        """
        self._exchange.answer(turn)
        observation = await self._next_request()
        if observation is None and (code := self._running.result()):
            raise AgentEnded(await self._program.end_in_words(code))
        return observation

    async def score(self, *, truncated: bool) -> float:
        """What the program has given, 0 if it has given nothing; wait for its end if turns or tokens ran out."""
        if truncated:
            message = "the episode has no turns or tokens left: give its score, and end"
            self._exchange.end(ChatRequestRefused(400, "context_length_exceeded", message))
            await self._running
        return self._gateway.score or 0.0

    async def _next_request(self) -> TurnObservation | None:
        """The program's next request; None if it has ended."""
        request = asyncio.create_task(self._exchange.next_request())
        done, _ = await asyncio.wait({request, self._running}, return_when=asyncio.FIRST_COMPLETED)
        if request in done:
            return request.result()
        request.cancel()
        return None
