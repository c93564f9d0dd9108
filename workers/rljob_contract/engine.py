"""The contract of the port `Engine`, whatever computes.

Requests here have no stop tokens, so that a response is as long as it may be; an engine that ends responses by itself
must be given options under which it does not.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import numpy as np

from rljob_contract.check import Broken, Contract, require, unhurried
from rljob_core.errors import GenerationFailed, WeightsRejected
from rljob_core.ports import Completed, Engine, EngineEvent, Progress, Request, Stopped
from rljob_core.trajectory import Finish

#: Columns of a response and their types.
_COLUMNS: Mapping[str, type] = {"tokens": np.int32, "logprobs": np.float32, "versions": np.int32}
#: Seconds between looks at an engine, which announces responses and not tokens.
_LOOK = 0.001


class EngineSubject:
    """Engines of one kind. Starting one may take a minute, so checks share those that they leave idle.

    Args:
        create: an engine that is not started yet, each time another one.
        weights: the initial model's weights as a trainer publishes them, in any order.
        longest: tokens of a response that still runs when a check does something, and that the check then waits for.
        endless: tokens of one that the check stops; the model's context holds them.
    """

    def __init__(
        self,
        create: Callable[[], Engine],
        weights: Callable[[], Iterable[tuple[str, Any]]],
        *,
        longest: int = 3000,
        endless: int = 3000,
    ) -> None:
        self.weights = weights
        self.longest = longest
        self.endless = endless
        self._create = create
        self._idle = list[Engine]()

    @asynccontextmanager
    async def engine(self) -> AsyncIterator[Engine]:
        """An engine that has nothing to do; whoever leaves it so leaves it to the next check.

        Raises:
            Broken: a new one already has a version, or after a check it believes to have something to do.
        """
        engine = self._idle.pop() if self._idle else await self._started()
        try:
            yield engine
            load = engine.load()
            require(
                load.running == load.waiting == 0,
                f"all responses have ended or were cancelled, but load() says {load.running} running and "
                f"{load.waiting} waiting",
            )
        except BaseException:
            await engine.close()
            raise
        self._idle.append(engine)

    @asynccontextmanager
    async def new_engine(self) -> AsyncIterator[Engine]:
        """An engine of one's own, to close."""
        engine = await self._started()
        try:
            yield engine
        finally:
            await engine.close()

    async def close(self) -> None:
        """End what is left."""
        while self._idle:
            await self._idle.pop().close()

    async def _started(self) -> Engine:
        engine = self._create()
        try:
            with unhurried():
                await engine.start()
            require(engine.version == -1, f"a new engine's version is {engine.version}, not -1")
            require(engine.slots >= 1, f"slots is {engine.slots}, not 1 at least")
        except BaseException:
            await engine.close()
            raise
        return engine


ENGINE = Contract[EngineSubject]()

UNENDING: Mapping[str, Mapping[str, Any]] = {
    # Longer than any request allows, and as slow as real ones: what is asked for still runs when a check acts.
    "Emulated": {
        "stepSeconds": 0.002,
        "lengths": {"median": 1e6, "sigma": 0.0, "promptSigma": 0.0, "max": 1_000_000},
    },
}
"""Options under which engines of ours end no response by themselves."""

# ------------------------------------------------------------------------------------------------ to ask and to wait


def ask(
    name: str,
    length: int,
    *,
    seed: int = 0,
    prompt: Iterable[int] = (1, 2, 3),
    temperature: float = 1.0,
    inherited: Progress | None = None,
) -> Request:
    """A request for a response of `length` tokens."""
    return Request(
        id=name,
        tokens=np.array(list(prompt), np.int32),
        temperature=temperature,
        top_p=1.0,
        max_tokens=length,
        stop_tokens=frozenset(),
        stop=(),
        seed=seed,
        inherited=inherited,
    )


async def gather(engine: Engine, names: Iterable[str]) -> dict[str, EngineEvent]:
    """The events of these requests.

    Raises:
        Broken: another one came, or a second one of the same.
    """
    missing, found = set(names), dict[str, EngineEvent]()
    while missing:
        events = await engine.events()
        require(bool(events), "events() returned without an event")
        for event in events:
            require(event.id not in found, f"a second event came about {event.id!r}: {_shown(event)}")
            require(
                event.id in missing,
                f"an event came about {event.id!r}, which nobody waits for: {_shown(event)}",
            )
            found[event.id] = event
            missing.discard(event.id)
    return found


async def completed(engine: Engine, names: Iterable[str]) -> dict[str, Completed]:
    """The responses to these requests.

    Raises:
        Broken: as `gather`, or one has stopped.
    """
    done = dict[str, Completed]()
    for name, event in (await gather(engine, names)).items():
        if not isinstance(event, Completed):
            raise Broken(f"{name!r} has not completed: {_shown(event)}")
        done[name] = event
    return done


async def generating(engine: Engine) -> None:
    """Until more tokens come out."""
    before = engine.load().tokens
    while engine.load().tokens == before:  # noqa: ASYNC110  an engine announces responses, not tokens
        await asyncio.sleep(_LOOK)


async def use(engine: Engine, *, inflight: str = "Update") -> int:
    """Swap to the initial weights as the next version; that version."""
    version = engine.version + 1
    await engine.swap(version, None, inflight)
    require(engine.version == version, f"after swap({version}, …) the version is {engine.version}")
    return version


def versions(event: Completed) -> list[int]:
    """The versions of a response's tokens."""
    return [int(version) for version in event.versions]


def upto(done: Completed, tokens: int) -> Progress:
    """A response as it was when it had so many tokens."""
    return Progress(done.id, done.tokens[:tokens], done.logprobs[:tokens], done.versions[:tokens])


def _shown(event: EngineEvent) -> str:
    if isinstance(event, Completed):
        return f"Completed with {len(event.tokens)} tokens, {event.finish}"
    return f"Stopped({event.reason!r}, failure={event.failure})"


def _require_columns(made: Completed | Progress, length: int) -> None:
    for column, dtype in _COLUMNS.items():
        array = getattr(made, column)
        require(
            isinstance(array, np.ndarray) and array.shape == (length,) and array.dtype == dtype,
            f"{column} of {made.id!r} are {getattr(array, 'dtype', type(array).__name__)}"
            f"{list(np.shape(array))}, not {np.dtype(dtype)}[{length}]",
        )


def _require_versions(event: Completed, expected: Sequence[int]) -> None:
    found = versions(event)
    require(
        found == list(expected), f"versions of {event.id!r} are {_runs(found)}, not {_runs(list(expected))}"
    )


def _runs(numbers: Sequence[int]) -> str:
    """Equal numbers in a row, as `0 x 5, 3 x 7`."""
    runs = list[tuple[int, int]]()
    for number in numbers:
        if runs and runs[-1][0] == number:
            runs[-1] = (number, runs[-1][1] + 1)
        else:
            runs.append((number, 1))
    return ", ".join(f"{number} x {count}" for number, count in runs[:6]) + (", …" if len(runs) > 6 else "")


# ---------------------------------------------------------------------------------------------------- the checks


@ENGINE.check
async def responses_have_what_was_asked_for(subject: EngineSubject) -> None:
    """A response has as many tokens as were asked for, each with log-probability and version.

    Report Completed with int32 tokens, float32 log-probabilities and int32 versions of one length; without stop tokens
    it ends by max_tokens, with Finish.LENGTH.
    """
    async with subject.engine() as engine:
        version = await use(engine)
        lengths = {"a": 5, "b": 1}
        engine.submit([ask(name, length) for name, length in lengths.items()])
        for name, event in (await completed(engine, lengths)).items():
            _require_columns(event, lengths[name])
            require(event.finish == Finish.LENGTH, f"{name!r} ended by {event.finish}, not {Finish.LENGTH}")
            require(
                bool(np.isfinite(event.logprobs).all() and (event.logprobs <= 0).all()),
                f"log-probabilities of {name!r} are not all finite and at most 0",
            )
            _require_versions(event, [version] * lengths[name])


@ENGINE.check
async def more_than_its_slots_wait_their_turn(subject: EngineSubject) -> None:
    """More requests than slots wait their turn, and all of them are answered.

    Generate `slots` requests at once and queue the others in order; load() counts both.
    """
    async with subject.engine() as engine:
        await use(engine)
        slots = engine.slots
        endless = [f"endless {number}" for number in range(slots)]
        lengths = {str(number): 20 + number for number in range(2 * slots)}
        engine.submit([ask(name, subject.endless) for name in endless])
        engine.submit([ask(name, length, seed=int(name)) for name, length in lengths.items()])
        load = engine.load()
        require(
            load.running + load.waiting == 3 * slots,
            f"of {3 * slots} requests load() sees {load.running} running and {load.waiting} waiting",
        )
        while engine.load().running < slots:  # noqa: ASYNC110  an engine announces responses, not tokens
            await asyncio.sleep(_LOOK)
        load = engine.load()
        require(
            load.running == slots and load.waiting == 2 * slots,
            f"with {slots} slots load() sees {load.running} running and {load.waiting} waiting",
        )
        engine.cancel(endless)
        for name, event in (await completed(engine, lengths)).items():
            _require_columns(event, lengths[name])


@ENGINE.check
async def a_response_depends_on_prompt_and_seed_alone(subject: EngineSubject) -> None:
    """The same prompt and seed give the same response, whatever runs beside it.

    Draw the i-th token of a response with the i-th number of a random stream of its own, made from Request.seed.
    """
    async with subject.engine() as engine:
        await use(engine)
        engine.submit([ask("alone", 30, seed=7)])
        alone = (await completed(engine, ["alone"]))["alone"]
        others = {str(number): 10 + 7 * number for number in range(6)}
        engine.submit([ask(name, size, seed=int(name), prompt=range(1, 9)) for name, size in others.items()])
        engine.submit([ask("again", 30, seed=7)])
        again = (await completed(engine, [*others, "again"]))["again"]
        require(
            alone.tokens.tolist() == again.tokens.tolist(),
            f"alone it was {alone.tokens[:8].tolist()}…, beside others {again.tokens[:8].tolist()}…",
        )


@ENGINE.check
async def update_goes_on_under_the_new_weights(subject: EngineSubject) -> None:
    """Under `Update` what is running goes on, and each token carries the version that produced it.

    swap(…, "Update") takes effect between two tokens; note the version with each token, not with the response.
    """
    async with subject.engine() as engine:
        old = await use(engine)
        names = ["a", "b"][: engine.slots]
        engine.submit([ask(name, subject.longest // (2 + index)) for index, name in enumerate(names)])
        await generating(engine)
        new = old + 3
        await engine.swap(new, None, "Update")
        require(engine.version == new, f"after swap({new}, …) the version is {engine.version}")
        for event in (await completed(engine, names)).values():
            spans = versions(event)
            require(
                set(spans) == {old, new} and spans == sorted(spans),
                f"versions of {event.id!r} are {_runs(spans)}, not some {old}, then {new}",
            )


@ENGINE.check
async def keep_ends_what_runs_and_then_swaps(subject: EngineSubject) -> None:
    """Under `Keep` what is running ends with the old weights, and what comes meanwhile waits for the new ones.

    swap(…, "Keep") returns once the running requests have ended; admit none from when its tensors are read, that is, at
    once where they are a sequence.
    """
    async with subject.engine() as engine:
        old = await use(engine, inflight="Keep")
        engine.submit([ask("old", subject.longest // 4)])
        await generating(engine)
        swap = asyncio.create_task(engine.swap(old + 1, list(subject.weights()), "Keep"))
        await asyncio.sleep(0)
        engine.submit([ask("new", 5)])
        require(not swap.done(), "swap has returned while a request was running")
        await swap
        require(engine.version == old + 1, f"after swap({old + 1}, …) the version is {engine.version}")
        done = await completed(engine, ["old", "new"])
        _require_versions(done["old"], [old] * (subject.longest // 4))
        _require_versions(done["new"], [old + 1] * 5)


@ENGINE.check
async def restart_stops_what_runs(subject: EngineSubject) -> None:
    """Under `Restart` what is running is stopped, and what waits is generated with the new weights.

    swap(…, "Restart") reports Stopped(reason="Restarted", failure=False) for each request that was running.
    """
    async with subject.engine() as engine:
        old = await use(engine, inflight="Restart")
        running = [str(number) for number in range(engine.slots)]
        engine.submit([*(ask(name, subject.endless) for name in running), ask("waiting", 4)])
        await generating(engine)
        while engine.load().running < engine.slots:  # noqa: ASYNC110
            await asyncio.sleep(_LOOK)
        await engine.swap(old + 1, None, "Restart")
        done = await gather(engine, [*running, "waiting"])
        for name in running:
            require(
                done[name] == Stopped(id=name, reason="Restarted", failure=False),
                f"{name!r} was running: {_shown(done[name])}, not Stopped('Restarted', failure=False)",
            )
        waited = done["waiting"]
        if not isinstance(waited, Completed):
            raise Broken(f"'waiting' was not running: {_shown(waited)}, not Completed")
        _require_versions(waited, [old + 1] * 4)


@ENGINE.check
async def what_is_cancelled_is_forgotten(subject: EngineSubject) -> None:
    """What is cancelled is forgotten, running or waiting, and its slot is free again.

    After cancel() no event comes about these ids, not even one that was ready; unknown ids are passed over.
    """
    async with subject.engine() as engine:
        await use(engine)
        running = [str(number) for number in range(engine.slots)]
        engine.submit([ask(name, subject.endless) for name in running])
        engine.submit([ask("waiting", 5), ask("next", 6)])
        await generating(engine)
        engine.cancel([*running, "waiting", "unknown"])
        await completed(engine, ["next"])


@ENGINE.check
async def the_same_id_again_takes_the_place_of_the_first(subject: EngineSubject) -> None:
    """A request with an id that is being generated takes its place.

    submit() forgets an older request of the same id, as cancel() does; only the newer one is reported.
    """
    async with subject.engine() as engine:
        await use(engine)
        engine.submit([ask("a", subject.endless), ask("b", 50)])
        await generating(engine)
        engine.submit([ask("a", 7)])
        done = await completed(engine, ["a", "b"])
        _require_columns(done["a"], 7)


@ENGINE.check
async def weights_that_do_not_verify_change_nothing(subject: EngineSubject) -> None:
    """Weights that do not verify leave the old ones in use.

    Read all tensors before you take any: reading raises WeightsRejected, which swap() passes on.
    """

    def altered() -> Iterator[tuple[str, Any]]:
        yield from list(subject.weights())[:1]
        raise WeightsRejected("digest")

    async with subject.engine() as engine:
        version = await use(engine)
        try:
            await engine.swap(version + 1, altered(), "Update")
        except WeightsRejected:
            pass
        else:
            raise Broken("swap() has returned although reading a tensor raised WeightsRejected")
        require(engine.version == version, f"the version is {engine.version}, not {version} as before")
        engine.submit([ask("a", 3)])
        _require_versions((await completed(engine, ["a"]))["a"], [version] * 3)


@ENGINE.check
async def another_engine_goes_on_as_if_nothing_had_happened(subject: EngineSubject) -> None:
    """Another engine goes on with a response as if nothing had happened, from any token on.

    Prefill Request.inherited after the prompt, go on with the random number of the next token, and report the whole
    response, inherited tokens with the log-probabilities and versions that they came with.
    """
    length = 60
    async with subject.engine() as engine, subject.engine() as successor:
        old = await use(engine)
        new = max(old, successor.version) + 3
        await successor.swap(new, None, "Update")
        for temperature in (0.0, 1.0):
            stops = {str(n): tokens for n, tokens in enumerate((0, 1, length // 2, length - 1))}
            engine.submit([ask(name, length, seed=int(name), temperature=temperature) for name in stops])
            whole = await completed(engine, stops)
            successor.submit(
                [
                    ask(
                        name,
                        length,
                        seed=int(name),
                        temperature=temperature,
                        inherited=upto(whole[name], tokens),
                    )
                    for name, tokens in stops.items()
                ]
            )
            for name, done in (await completed(successor, stops)).items():
                before, tokens = whole[name], stops[name]
                _require_columns(done, length)
                require(
                    done.tokens.tolist() == before.tokens.tolist(),
                    f"at temperature {temperature:g}, from token {tokens} on, it generated other tokens: "
                    f"{done.tokens[tokens : tokens + 8].tolist()}…, not {before.tokens[tokens : tokens + 8].tolist()}…",
                )
                require(
                    done.logprobs[:tokens].tolist() == before.logprobs[:tokens].tolist(),
                    "log-probabilities of inherited tokens are not those that they came with",
                )
                gap = float(np.abs(done.logprobs - before.logprobs).max())
                require(
                    gap <= 1e-4, f"log-probabilities differ by {gap:g} from those without a change of engines"
                )
                _require_versions(done, [old] * tokens + [new] * (length - tokens))


@ENGINE.check
async def what_is_generating_tells_how_far_it_has_come(subject: EngineSubject) -> None:
    """progress() gives the beginnings of responses that are running and long enough, and of no others.

    Compare len(tokens), inherited ones included, with the number asked for; leave out what waits or is unknown.
    """
    async with subject.engine() as engine:
        old = await use(engine)
        length = subject.longest // 3
        names = [str(number) for number in range(engine.slots + 1)]
        engine.submit([ask(name, length, seed=int(name)) for name in names])
        await generating(engine)
        await engine.swap(old + 1, None, "Update")
        found = {made.id: made for made in await engine.progress({**dict.fromkeys(names, 1), "unknown": 1})}
        require(
            set(found) <= set(names[:-1]) and bool(found),
            f"of {engine.slots} requests that run and one that waits it tells of {', '.join(sorted(found)) or 'none'}",
        )
        few = await engine.progress({"0": 10 * length})
        require(
            not few,
            f"it tells of a response of {len(few[0].tokens) if few else 0} tokens as of {10 * length}",
        )
        done = await completed(engine, names)
        for name, made in found.items():
            size = len(made.tokens)
            require(0 < size <= length, f"the beginning of a response of {length} tokens has {size}")
            _require_columns(made, size)
            for column in _COLUMNS:
                require(
                    getattr(made, column).tolist() == getattr(done[name], column)[:size].tolist(),
                    f"{column} of what {name!r} had made are not the first of what it has made in the end",
                )
        left = await engine.progress(dict.fromkeys(names, 0))
        require(not left, "it tells of responses that have ended")


@ENGINE.check
async def nothing_is_lost_of_an_engine_that_is_closed(subject: EngineSubject) -> None:
    """A closed engine still tells what it had made, and another one goes on from there.

    Keep the running responses after close(): progress() is asked once more, and load().tokens counts all that was made.
    """
    length = subject.longest // 4
    async with subject.new_engine() as engine, subject.engine() as successor:
        await use(engine)
        await use(successor)
        names = ["a", "b"][: engine.slots]
        engine.submit([ask(name, length, seed=seed) for seed, name in enumerate(names)])
        await generating(engine)
        while engine.load().running < len(names):  # noqa: ASYNC110
            await asyncio.sleep(_LOOK)
        await engine.close()
        left = {made.id: made for made in await engine.progress(dict.fromkeys(names, 0))}
        require(
            set(left) == set(names), f"of {', '.join(names)} it tells of {', '.join(sorted(left)) or 'none'}"
        )
        generated = sum(len(made.tokens) for made in left.values())
        counted = engine.load().tokens
        require(generated == counted, f"it tells of {generated} tokens, load() of {counted}")
        before = successor.load().tokens
        successor.submit([ask(name, length, seed=n, inherited=left[name]) for n, name in enumerate(names)])
        done = await completed(successor, names)
        made = successor.load().tokens - before
        expected = len(names) * length - generated
        require(made == expected, f"the other engine made {made} tokens, where {expected} were left to make")
        for name, response in done.items():
            size = len(left[name].tokens)
            require(
                response.tokens[:size].tolist() == left[name].tokens.tolist(),
                f"the response to {name!r} does not begin with what was inherited",
            )


@ENGINE.check
async def a_request_that_inherits_all_that_it_may_have_fails_alone(subject: EngineSubject) -> None:
    """A request that inherits as many tokens as it may have is refused, alone.

    Report Stopped("NothingLeft: …", failure=True); engine_events.nothing_to_generate(request) gives the reason.
    """
    async with subject.engine() as engine:
        version = await use(engine)
        engine.submit([ask("whole", 4)])
        made = upto((await completed(engine, ["whole"]))["whole"], 4)
        engine.submit([ask("none left", 4, inherited=made), ask("good", 4)])
        done = await gather(engine, ["none left", "good"])
        _require_refused(done["none left"], "NothingLeft: ")
        _require_good(done["good"], [version] * 4)


@ENGINE.check
async def an_empty_request_fails_alone(subject: EngineSubject) -> None:
    """A request without a prompt, or for no token, is refused, alone.

    Report Stopped("EmptyRequest: …", failure=True); engine_events.nothing_to_generate(request) gives the reason.
    """
    async with subject.engine() as engine:
        version = await use(engine)
        engine.submit([ask("empty", 3, prompt=()), ask("none", 0), ask("good", 3)])
        done = await gather(engine, ["empty", "none", "good"])
        _require_refused(done["empty"], "EmptyRequest: ")
        _require_refused(done["none"], "EmptyRequest: ")
        _require_good(done["good"], [version] * 3)


@ENGINE.check
async def a_closed_engine_says_so(subject: EngineSubject) -> None:
    """A closed engine raises GenerationFailed to whoever waits for it, or asks it anew.

    close() ends a swap() and an events() that are waiting, and is itself called any number of times.
    """
    async with subject.new_engine() as engine:
        version = await use(engine)
        engine.submit([ask("a", subject.longest)])
        await generating(engine)
        waiting = {
            "swap() that was waiting": asyncio.create_task(engine.swap(version + 1, None, "Keep")),
            "events() that was waiting": asyncio.create_task(_events(engine)),
        }
        await asyncio.sleep(0)
        await engine.close()
        await engine.close()
        asked = {
            "swap()": asyncio.create_task(engine.swap(version + 1, None, "Update")),
            "events()": asyncio.create_task(_events(engine)),
        }
        calls = {**waiting, **asked}
        await asyncio.wait(calls.values())
        for what, call in calls.items():
            error = call.exception()
            require(
                isinstance(error, GenerationFailed) and "closed" in str(error),
                f"{what} of a closed engine raised {error!r}, not GenerationFailed that says closed",
            )


async def _events(engine: Engine) -> None:
    await engine.events()


def _require_refused(event: EngineEvent, reason: str) -> None:
    require(
        isinstance(event, Stopped) and event.failure and event.reason.startswith(reason),
        f"{event.id!r}: {_shown(event)}, not Stopped('{reason}…', failure=True)",
    )


def _require_good(event: EngineEvent, expected: Sequence[int]) -> None:
    if not isinstance(event, Completed):
        raise Broken(f"the request beside it: {_shown(event)}, not Completed")
    _require_versions(event, expected)
