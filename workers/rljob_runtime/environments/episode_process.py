"""Plays one episode in a process of its own: makes the environment, and calls it as its end of a socket is asked to.

Nothing that an environment does in its process concerns another episode: it may hang, end it, close its socket, and
neither signal nor trace the server, its fork server or other episodes. The server kills the process then.
"""

from __future__ import annotations

import asyncio
import json
import operator
import os
import pickle
import socket
import sys
from numbers import Real
from typing import Any

from pydantic import ValidationError

from rljob_core.errors import SpecError
from rljob_core.ports import LARGEST_SCORE, Environment, Episode, EpisodeStart, TurnObservation
from rljob_core.words import error_in_words, place_in_words
from rljob_runtime.environments.messages import (
    INVALID,
    LARGEST_CALL,
    LARGEST_REPLY,
    MESSAGE_FIELDS,
    OBSERVATION,
    RAISED,
    REFUSED,
    REPLY,
    EncodedObservation,
    EnvironmentReply,
    EnvironmentSetup,
    EpisodeCall,
    failure,
    has_message_fields,
)
from rljob_runtime.environments.registry import NETWORK, make_environment, module_of
from rljob_runtime.process.confinement import enter_own_loopback, leave_others_alone
from rljob_runtime.process.frames import ServerConnection, frame, read_frame
from rljob_runtime.process.lifeline import die_with_parent


class _InvalidReturn(Exception):
    """The environment returned what it must not."""


def play(connection: socket.socket, setup: EnvironmentSetup) -> None:
    """Serve the calls of one episode, until the socket is closed.

    Args:
        connection: this process's end.
        setup: of the job.
    """
    die_with_parent()
    if sys.platform == "linux":
        os.setsid()  # so that its server finds what it has started
    leave_others_alone()
    refusal = ""
    if setup.own_loopback:
        try:
            enter_own_loopback()
        except OSError as error:
            refusal = (
                f"{NETWORK}\n{error_in_words(error)}: write `true`, if the environment may reach the network"
            )
    asyncio.run(_serve(connection, setup, os.getpid(), refusal))


async def _serve(connection: socket.socket, setup: EnvironmentSetup, process: int, refusal: str) -> None:
    reader, writer = await asyncio.open_unix_connection(sock=connection)
    if refusal:
        writer.write(frame(failure(0, REFUSED, refusal)))
        await writer.drain()
        return
    try:
        environment = make_environment(setup.name, setup.options)
    except SpecError as error:
        writer.write(frame(failure(0, REFUSED, f"{error.path}\n{error.message}")))
        await writer.drain()
        return
    writer.write(frame(REPLY.dump_json(EnvironmentReply(0, observes_first=speaks_first(environment)))))
    await answer_calls((reader, writer), environment, name=setup.name, process=process)


def speaks_first(environment: Environment) -> bool:
    """Whether what the model reads first comes from its episodes."""
    return getattr(environment, "observes_first", False) is True


async def answer_calls(
    connection: ServerConnection, environment: Environment, *, name: str, process: int
) -> None:
    """Play one episode, call by call, until the server closes the connection.

    Args:
        connection: to the server.
        environment: opens the episode.
        name: of the environment.
        process: id of the process that answers; one that the environment has forked does not.
    """
    reader, writer = connection
    observes_first = speaks_first(environment)
    episode: Episode | None = None
    while True:
        try:
            call: EpisodeCall = pickle.loads(await read_frame(reader, LARGEST_CALL))  # noqa: S301  the worker's
        except (OSError, asyncio.IncompleteReadError):
            return
        try:
            if call.verb == "open":
                start: EpisodeStart = pickle.loads(call.start)  # noqa: S301  the worker's
                episode = await environment.open(start)
                reply = await _opened(episode, call.number, observes_first=observes_first)
            else:
                reply = await _answer(episode, call)
        except _InvalidReturn as error:
            reply = failure(call.number, INVALID, f"{name} {error}")
        except BaseException as error:  # a user's code may raise anything
            if os.getpid() != process:  # a child that the environment forked: only its parent answers
                os._exit(0)
            reply = failure(call.number, RAISED, f"{name}, {call.verb}: {_in_words(error, name)}")
        if os.getpid() != process:
            os._exit(0)
        writer.write(frame(reply))
        await writer.drain()


async def _opened(episode: Episode | None, number: int, *, observes_first: bool) -> bytes:
    if not observes_first:
        return REPLY.dump_json(EnvironmentReply(number))
    begin = getattr(episode, "begin", None)
    if begin is None:
        raise _InvalidReturn(
            f"observes first, and opened {type(episode).__name__}, which has no method `begin`"
        )
    return _reply_with(number, _encoded(await begin()))


async def _answer(episode: Episode | None, call: EpisodeCall) -> bytes:
    if episode is None:
        raise _InvalidReturn("opened no episode, but None")
    if call.verb == "score":
        score = await episode.score(truncated=call.truncated)
        return REPLY.dump_json(EnvironmentReply(call.number, score=_checked_score(score)))
    assert call.turn is not None  # noqa: S101  as the worker sends it
    observation = await episode.react(call.turn)
    return _reply_with(call.number, None if observation is None else _encoded(observation))


def _reply_with(number: int, observation: EncodedObservation | None) -> bytes:
    reply = REPLY.dump_json(EnvironmentReply(number, observation=observation))
    if len(reply) > LARGEST_REPLY:
        raise _InvalidReturn(
            f"returned an observation of {len(reply)} bytes; at most {LARGEST_REPLY} are read"
        )
    return reply


def _checked_score(score: object) -> float:
    if not isinstance(score, Real):
        raise _InvalidReturn(f"returned {type(score).__name__} as a score, not a number")
    try:
        number = float(score)
    except OverflowError:
        number = float("inf")
    if not abs(number) <= LARGEST_SCORE:
        raise _InvalidReturn(
            f"returned the score {number:g}; a score lies between {-LARGEST_SCORE:g} and {LARGEST_SCORE:g}"
        )
    return number


def _encoded(observation: object) -> EncodedObservation:
    if not isinstance(observation, TurnObservation):
        raise _InvalidReturn(f"returned {type(observation).__name__}, not a TurnObservation or None")
    given: dict[str, Any] = {
        "text": observation.text,
        "messages": observation.messages,
        "tokens": observation.tokens,
    }
    present = {name: value for name, value in given.items() if value is not None}
    if len(present) != 1:
        named = " and ".join(present) or "nothing"
        raise _InvalidReturn(f"returned an observation with {named}: give one of text, messages, tokens")
    name, value = next(iter(present.items()))
    if name == "messages" and isinstance(value, (list, tuple)):
        value = tuple(dict(m) if isinstance(m, dict) else m for m in value)
        if any(not isinstance(m, dict) or not has_message_fields(m) for m in value):
            raise _InvalidReturn(f"returned messages that cannot be: {MESSAGE_FIELDS}")
    elif name == "tokens" and not isinstance(value, (str, bytes)):
        try:
            value = tuple(map(operator.index, value))  # a NumPy array's, too
        except TypeError as error:
            raise _InvalidReturn(f"returned tokens that are no whole numbers: {error}") from error
    if observation.tools is not None and name != "messages":
        raise _InvalidReturn(f"returned an observation with {name} and tools: tools go with messages")
    tools = {} if observation.tools is None else {"tools": list(observation.tools)}
    try:
        return OBSERVATION.validate_json(json.dumps({name: value, **tools}))
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        where = ".".join(map(str, first["loc"])) or name
        raise _InvalidReturn(f"returned an observation that cannot be: {where}: {first['msg']}") from error
    except (TypeError, ValueError) as error:
        raise _InvalidReturn(
            f"returned an observation that cannot be: {name}: {error_in_words(error)}"
        ) from error


def _in_words(error: BaseException, name: str) -> str:
    """An error of the environment, and where in its module."""
    module = (
        sys.modules.get(module_of(name)) if ":" in name else None
    )  # rljob's own lines say nothing to its users
    file = getattr(module, "__file__", None)
    place = place_in_words(error, file) if file else ""
    return f"{error_in_words(error)} ({place})" if place else error_in_words(error)
