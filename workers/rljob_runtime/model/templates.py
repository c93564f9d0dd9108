"""Templates of prompts and chats, rendered under a limit of time and memory.

A template is a program of whoever made the model or the manifest. In Jinja's sandbox it reaches nothing, but it may
loop for ever, or make `"x" * 2_000_000_000`. So what has more in it than fields is compiled and rendered in a process
that the kernel ends at its limit: no check between two steps of a template would see one step that never ends.

The process is started for the first rendering, serves all templates of this process, and ends with the last of them.
It reads requests, pickled, and answers in JSON: trust has one direction.
"""

from __future__ import annotations

import json
import os
import pickle
import resource
import signal
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Mapping
from datetime import datetime
from functools import lru_cache, partial
from itertools import islice
from pathlib import Path
from typing import IO, Any

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

LIMIT_SECONDS = 5
"""Of the processor's time, for one rendering."""
LIMIT_BYTES = 512 << 20
"""Of memory, for one rendering."""
LIMIT_CHARACTERS = 16 << 20
"""Of what is rendered: no message has room for so long a prompt."""

_PLAIN = (nodes.Output, nodes.TemplateData, nodes.Name, nodes.Getattr)
_MOST_PLAIN_NODES = 64
_LENGTH = 8

Environments = Callable[[], jinja2.Environment]
"""A function of a module that makes an environment: it is called in the other process."""


class _Generation(Extension):
    """`{% generation %}` marks what the assistant says, for training on chats; it renders what it encloses."""

    tags = {"generation"}  # noqa: RUF012  as Jinja declares it

    def parse(self, parser: Parser) -> list[nodes.Node]:
        """The statements of the block."""
        next(parser.stream)
        return [nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True))]


class TemplateTooCostly(jinja2.TemplateError):
    """A template takes more time or memory than prompts may."""


def chat_environment() -> jinja2.Environment:
    """The environment that transformers gives to chat templates."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
    )
    # Jinja's own filter would escape HTML characters.
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)  # noqa: DTZ005  as there
    return environment


def prompt_environment() -> jinja2.Environment:
    """The environment of `spec.data.promptTemplate`."""
    environment = ImmutableSandboxedEnvironment(undefined=jinja2.StrictUndefined, autoescape=False)
    environment.policies["json.dumps_function"] = partial(json.dumps, default=_null)
    environment.tests["none"] = lambda value: value is None or isinstance(value, _Null)
    return environment


class _Null(jinja2.Undefined):
    """A null of the data in a template: false, and equal to none. Written into a prompt, it would read "None"."""

    __slots__ = ()
    __hash__ = jinja2.Undefined.__hash__

    def __eq__(self, other: object) -> bool:
        return other is None or isinstance(other, _Null)

    def __reduce__(self) -> tuple[Any, ...]:
        return _Null, (self._undefined_hint,)

    __str__ = __iter__ = __len__ = jinja2.Undefined._fail_with_undefined_error


def _null(value: object) -> None:
    if not isinstance(value, _Null):
        raise TypeError(f"{type(value).__name__} is not JSON")


def without_nulls(fields: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Fields of an item, and of objects in it, with what refuses to be written in place of each null."""
    return {
        name: _Null(hint=f"{prefix + name!r} is null")
        if value is None
        else without_nulls(value, f"{prefix}{name}.")
        if isinstance(value, dict)
        else value
        for name, value in fields.items()
    }


class LimitedTemplate:
    """A template; it compiles when it is first rendered.

    Args:
        environment: makes the environment that it is compiled in.
        source: its text.
        seconds: of the processor's time that one rendering may take.
    """

    def __init__(self, environment: Environments, source: str, *, seconds: int = LIMIT_SECONDS) -> None:
        self._environment, self._source, self._seconds = environment, source, seconds
        self._plain = environment().from_string(source) if _is_plain(environment(), source) else None
        self._process = None if self._plain is not None else _shared_process()

    def render(self, variables: Mapping[str, Any]) -> str:
        """Render the template.

        Raises:
            jinja2.TemplateSyntaxError, jinja2.UndefinedError: as Jinja raises them.
            jinja2.TemplateError: it raises another error.
            TemplateTooCostly: it takes more time or memory than prompts may, or makes a longer text.
        """
        if self._process is None:
            assert self._plain is not None  # noqa: S101
            return self._plain.render(variables)
        if self._process.owner != os.getpid():  # that of a process which has forked this one
            self._process = _shared_process()
        answer = self._process.ask((self._environment, self._source, dict(variables), self._seconds))
        match answer:
            case {"text": str(text)}:
                return text
            case {"error": "syntax", "message": str(message), "line": int(line)}:
                raise jinja2.TemplateSyntaxError(message, line)
            case {"error": "undefined", "message": str(message)}:
                raise jinja2.UndefinedError(message)
            case {"error": "costly"}:
                raise TemplateTooCostly(_too_costly())
            case {"error": _, "message": str(message)}:
                raise jinja2.TemplateError(message)
        raise jinja2.TemplateError("the process that renders it gave no answer")


def _is_plain(environment: jinja2.Environment, source: str) -> bool:
    """Whether a template has texts and fields only, so that it costs what it is given."""
    if len(source) > LIMIT_CHARACTERS:
        return False
    try:
        found = environment.parse(source)
    except (jinja2.TemplateError, RecursionError):
        return False
    parts = islice(found.find_all(nodes.Node), _MOST_PLAIN_NODES + 1)
    return all(isinstance(part, _PLAIN) and number < _MOST_PLAIN_NODES for number, part in enumerate(parts))


def _too_costly() -> str:
    return (
        f"it takes more than {LIMIT_SECONDS} s of processor time or {LIMIT_BYTES >> 20} MB of memory, or makes more "
        f"than {LIMIT_CHARACTERS:,} characters: look for a loop that does not end, or a text that grows"
    )


# ------------------------------------------------------------------------------------ this process


class _RenderingProcess:
    """The process that renders, started when it is first asked and after each time that it was ended."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: subprocess.Popen[bytes] | None = None
        self._ends: weakref.finalize[..., _RenderingProcess] | None = None
        self.owner = os.getpid()

    def ask(self, request: object) -> Any:
        """Send a request; its answer.

        Raises:
            TemplateTooCostly: the process was ended by it.
        """
        content = pickle.dumps(request, protocol=pickle.HIGHEST_PROTOCOL)
        with self._lock:
            process = self._started()
            assert process.stdin is not None  # noqa: S101
            assert process.stdout is not None  # noqa: S101
            try:
                _write(process.stdin, content)
                return json.loads(_read(process.stdout))
            except (EOFError, OSError) as error:
                self._running = None
                code = process.wait()
                if code == -signal.SIGXCPU:
                    raise TemplateTooCostly(_too_costly()) from error
                raise TemplateTooCostly(f"the process that rendered it has ended ({code})") from error

    def _started(self) -> subprocess.Popen[bytes]:
        if self._running is None:
            # Not `-m` alone: that would have modules of the working directory shadow others.
            self._running = subprocess.Popen(
                [sys.executable, "-P", "-s", "-m", __name__],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env={
                    "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
                    **{name: os.environ[name] for name in ("LD_LIBRARY_PATH", "TZ") if name in os.environ},
                },
            )
            self._ends = weakref.finalize(self, _end, self._running)
        return self._running


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            pipe.close()


_processes: weakref.WeakValueDictionary[int, _RenderingProcess] = weakref.WeakValueDictionary()
_starting = threading.Lock()


def _shared_process() -> _RenderingProcess:
    """The process of all templates here; after a fork, another one."""
    with _starting:
        found = _processes.get(os.getpid())
        if found is None:
            found = _processes[os.getpid()] = _RenderingProcess()
        return found


def _write(file: IO[bytes], content: bytes) -> None:
    file.write(len(content).to_bytes(_LENGTH, "big"))
    file.write(content)
    file.flush()


def _read(file: IO[bytes]) -> bytes:
    head = file.read(_LENGTH)
    content = file.read(int.from_bytes(head, "big")) if len(head) == _LENGTH else b""
    if not content:
        raise EOFError
    return content


# -------------------------------------------------------------------------------- the other process


def _serve() -> None:
    """Answer requests until there are no more."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of the terminal, for the process that asks
    requests, answers = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    size = pages * resource.getpagesize() + LIMIT_BYTES
    while True:
        try:
            content = _read(requests)
        except EOFError:
            return
        _limit(resource.RLIMIT_AS, resource.RLIM_INFINITY)
        environment, source, variables, seconds = pickle.loads(content)  # noqa: S301  the parent's
        used = resource.getrusage(resource.RUSAGE_SELF)
        _limit(resource.RLIMIT_CPU, int(used.ru_utime + used.ru_stime) + 1 + seconds)
        _limit(resource.RLIMIT_AS, max(size, len(content) + size))
        answer = _answer(environment, source, variables)
        _limit(resource.RLIMIT_AS, resource.RLIM_INFINITY)
        _write(answers, json.dumps(answer).encode())


def _limit(which: int, soft: int) -> None:
    resource.setrlimit(which, (soft, resource.getrlimit(which)[1]))


@lru_cache(16)
def _compiled(environment: Environments, source: str) -> jinja2.Template:
    return environment().from_string(source)


def _answer(environment: Environments, source: str, variables: dict[str, Any]) -> dict[str, Any]:
    try:
        text = _compiled(environment, source).render(variables)
    except jinja2.TemplateSyntaxError as error:
        return {"error": "syntax", "message": error.message or "", "line": error.lineno}
    except jinja2.UndefinedError as error:
        return {"error": "undefined", "message": error.message or ""}
    except jinja2.TemplateError as error:
        return {"error": "template", "message": str(error)[:LIMIT_CHARACTERS]}
    except MemoryError:
        return {"error": "costly"}
    except Exception as error:  # a template is a program
        return {"error": "other", "message": f"{type(error).__name__}: {error}"[:LIMIT_CHARACTERS]}
    return {"text": text} if len(text) <= LIMIT_CHARACTERS else {"error": "costly"}


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


if __name__ == "__main__":
    _serve()
