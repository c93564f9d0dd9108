"""The program of an agent: started for one episode, with the variables that lead OpenAI's clients to its gateway."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import Sequence

from rljob_core.words import end_with_last_words, shell_code
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
