"""An engine that ends its process, raises, hangs or answers nothing, as a prompt or an option names it; a plug-in."""

from __future__ import annotations

from pathlib import Path

from installed import install

CODE = """
import asyncio, ctypes, os, sys
from dataclasses import replace
from pathlib import Path
from rljob_runtime.engines.emulated.engine import EmulatedEngine
from rljob_runtime.engines.emulated.options import EmulatedEngineOptions
from rljob_core.ports import Completed, EngineLoad
from rljob_runtime.model.tokenizer import Tokenizer

class Options(EmulatedEngineOptions):
    start: str = ""  # how it ends when it starts
    words: dict[str, str] = {}  # how it ends, raises or answers, by a word of the prompt

def end(how):
    match how:
        case "segfault":
            ctypes.string_at(0)
        case "kill":
            os.kill(os.getpid(), 9)
        case "exit":
            sys.exit(0)
        case "raise":
            raise RuntimeError("no kernel\\nfor this prompt")
        case "stop":
            os.kill(os.getpid(), 19)

class Dying(EmulatedEngine):
    options_model = Options
    is_paced = True

    def __init__(self, model_path, *, options, decode):
        super().__init__(options)
        self._how, self._tokenizer = options, Tokenizer(model_path)

        self._silent = False
        self._empty = set()

    async def events(self):
        found = await super().events()
        while self._silent:  # its heartbeats go on
            await asyncio.sleep(60)
        return [self._answered(event) for event in found]

    def _answered(self, event):
        if not isinstance(event, Completed) or event.id not in self._empty:
            return event
        columns = {name: getattr(event, name)[:0] for name in ("tokens", "logprobs", "versions")}
        return replace(event, **columns)

    def load(self):
        if self._silent:
            return EngineLoad(self.slots, 0, 0)
        return super().load()

    async def progress(self, least):
        return [] if self._silent else await super().progress(least)

    async def start(self):
        print("started", flush=True)
        end(self._how.start)
        await super().start()

    def submit(self, requests):
        super().submit(requests)
        for request in requests:
            text = self._tokenizer.decode(request.tokens)
            for word, how in self._how.words.items():
                if word in text:
                    self._silent = self._silent or how == "silent"
                    if how == "empty":
                        self._empty.add(request.id)
                    end(how)
"""


def install_dying_engine(folder: Path) -> Path:
    """Install the engine `Dying` into a folder for `sys.path`; returns the folder."""
    return install(folder, "rljob-dying", CODE, engines="Dying = Dying")
