"""The part of the engine contract about requests and their responses."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from rljob_contract.check import Contract, ContractBroken, require
from rljob_contract.engine_requests import (
    LOOK,
    ask,
    completed,
    gather,
    generating,
    require_columns,
    require_versions,
    shown,
    upto,
    use,
)
from rljob_contract.engine_subject import EngineSubject
from rljob_core.ports import Completed, EngineEvent, Stopped
from rljob_core.trajectory import FinishReason
from rljob_runtime.engines.output_checks import OutputLimits, output_fault

GENERATION = Contract[EngineSubject]()


@GENERATION.check
async def responses_have_what_was_asked_for(subject: EngineSubject) -> None:
    """A response has as many tokens as the request asks for, each with its log-probability and version.

    Report Completed with int32 tokens, float32 log-probabilities and int32 versions of one length; without stop tokens
    it ends by max_tokens, with Finish.LENGTH.
    """
    async with subject.engine() as engine:
        version = await use(engine)
        lengths = {"a": 5, "b": 1}
        engine.submit([ask(name, length) for name, length in lengths.items()])
        for name, event in (await completed(engine, lengths)).items():
            require_columns(event, lengths[name])
            require(
                event.finish == FinishReason.LENGTH,
                f"{name!r} ended by {event.finish}, not {FinishReason.LENGTH}",
            )
            limits = OutputLimits(
                max_tokens=lengths[name], vocabulary=subject.vocabulary, oldest=version, newest=version
            )
            fault = output_fault(event, limits)
            require(not fault, f"the response to {name!r} would be refused in a job: {fault}")
            require_versions(event, [version] * lengths[name])


@GENERATION.check
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
            await asyncio.sleep(LOOK)
        load = engine.load()
        require(
            load.running == slots and load.waiting == 2 * slots,
            f"with {slots} slots load() sees {load.running} running and {load.waiting} waiting",
        )
        engine.cancel(endless)
        for name, event in (await completed(engine, lengths)).items():
            require_columns(event, lengths[name])


@GENERATION.check
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


@GENERATION.check
async def what_is_cancelled_is_forgotten(subject: EngineSubject) -> None:
    """A cancelled request, running or waiting, gets no event, and its slot is free again.

    After cancel(), report no event about these ids, not even one that was ready; ignore unknown ids.
    """
    async with subject.engine() as engine:
        await use(engine)
        running = [str(number) for number in range(engine.slots)]
        engine.submit([ask(name, subject.endless) for name in running])
        engine.submit([ask("waiting", 5), ask("next", 6)])
        await generating(engine)
        engine.cancel([*running, "waiting", "unknown"])
        await completed(engine, ["next"])


@GENERATION.check
async def the_same_id_again_takes_the_place_of_the_first(subject: EngineSubject) -> None:
    """A request replaces an earlier one of the same id that is still being generated.

    submit() forgets an older request of the same id, as cancel() does; only the newer one is reported.
    """
    async with subject.engine() as engine:
        await use(engine)
        engine.submit([ask("a", subject.endless), ask("b", 50)])
        await generating(engine)
        engine.submit([ask("a", 7)])
        done = await completed(engine, ["a", "b"])
        require_columns(done["a"], 7)


@GENERATION.check
async def a_request_that_inherits_all_that_it_may_have_fails_alone(subject: EngineSubject) -> None:
    """A request that inherits as many tokens as it asks for is refused, and only that one.

    Report what rljob_runtime.engines.nothing_to_generate() returns: Stopped(id, "NothingLeft", failure=True).
    """
    async with subject.engine() as engine:
        version = await use(engine)
        engine.submit([ask("whole", 4)])
        made = upto((await completed(engine, ["whole"]))["whole"], 4)
        engine.submit([ask("none left", 4, inherited=made), ask("good", 4)])
        done = await gather(engine, ["none left", "good"])
        _require_refused(done["none left"], "NothingLeft")
        _require_good(done["good"], [version] * 4)


@GENERATION.check
async def an_empty_request_fails_alone(subject: EngineSubject) -> None:
    """A request without a prompt, or for no token, is refused, and only that one.

    Report what rljob_runtime.engines.nothing_to_generate() returns: Stopped(id, "EmptyRequest", failure=True).
    """
    async with subject.engine() as engine:
        version = await use(engine)
        engine.submit([ask("empty", 3, prompt=()), ask("none", 0), ask("good", 3)])
        done = await gather(engine, ["empty", "none", "good"])
        _require_refused(done["empty"], "EmptyRequest")
        _require_refused(done["none"], "EmptyRequest")
        _require_good(done["good"], [version] * 3)


def _require_refused(event: EngineEvent, reason: str) -> None:
    require(
        isinstance(event, Stopped) and event.failure and event.reason == reason,
        f"{event.id!r}: {shown(event)}, not Stopped('{reason}', failure=True)",
    )


def _require_good(event: EngineEvent, expected: Sequence[int]) -> None:
    if not isinstance(event, Completed):
        raise ContractBroken(f"the request beside it: {shown(event)}, not Completed")
    require_versions(event, expected)
