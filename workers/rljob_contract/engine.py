"""The contract of the port `Engine`: requests and responses, new weights, and the handover to another engine.

Requests here have no stop tokens, so that a response is as long as it may be; an engine that ends responses by itself
must be given options under which it does not.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from rljob_contract.check import Contract, ContractBroken, require
from rljob_contract.engine_requests import (
    COLUMNS,
    LOOK,
    ask,
    completed,
    gather,
    generating,
    require_columns,
    require_versions,
    runs,
    shown,
    upto,
    use,
    versions,
)
from rljob_contract.engine_subject import EngineSubject
from rljob_core.errors import GenerationFailed, WeightsRejected
from rljob_core.ports import Completed, Engine, EngineEvent, Stopped
from rljob_core.trajectory import FinishReason
from rljob_runtime.engines.output_checks import OutputLimits, output_fault

# ------------------------------------------------------------------------------------------ requests and responses

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


# ------------------------------------------------------------------------------------------ new weights

SWAPS = Contract[EngineSubject]()


@SWAPS.check
async def update_goes_on_under_the_new_weights(subject: EngineSubject) -> None:
    """Under `Update` running responses continue, and each token carries the version that produced it.

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
                f"versions of {event.id!r} are {runs(spans)}, not some {old}, then {new}",
            )


@SWAPS.check
async def keep_ends_what_runs_and_then_swaps(subject: EngineSubject) -> None:
    """Under `Keep` running responses end with the old weights, and new requests wait for the new ones.

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
        require_versions(done["old"], [old] * (subject.longest // 4))
        require_versions(done["new"], [old + 1] * 5)


@SWAPS.check
async def restart_stops_what_runs(subject: EngineSubject) -> None:
    """Under `Restart` running responses are stopped, and waiting requests are generated with the new weights.

    swap(…, "Restart") reports Stopped(reason="Restarted", failure=False) for each request that was running.
    """
    async with subject.engine() as engine:
        old = await use(engine, inflight="Restart")
        running = [str(number) for number in range(engine.slots)]
        engine.submit([*(ask(name, subject.endless) for name in running), ask("waiting", 4)])
        await generating(engine)
        while engine.load().running < engine.slots:  # noqa: ASYNC110
            await asyncio.sleep(LOOK)
        await engine.swap(old + 1, None, "Restart")
        done = await gather(engine, [*running, "waiting"])
        for name in running:
            require(
                done[name] == Stopped(id=name, reason="Restarted", failure=False),
                f"{name!r} was running: {shown(done[name])}, not Stopped('Restarted', failure=False)",
            )
        waited = done["waiting"]
        if not isinstance(waited, Completed):
            raise ContractBroken(f"'waiting' was not running: {shown(waited)}, not Completed")
        require_versions(waited, [old + 1] * 4)


@SWAPS.check
async def weights_that_do_not_verify_change_nothing(subject: EngineSubject) -> None:
    """Weights that fail verification leave the old ones in use.

    Read all tensors before using any: reading raises WeightsRejected, which swap() passes on.
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
            raise ContractBroken("swap() has returned although reading a tensor raised WeightsRejected")
        require(engine.version == version, f"the version is {engine.version}, not {version} as before")
        engine.submit([ask("a", 3)])
        require_versions((await completed(engine, ["a"]))["a"], [version] * 3)


# ------------------------------------------------------------------------------------------ the handover

HANDOVER = Contract[EngineSubject]()


@HANDOVER.check
async def another_engine_goes_on_as_if_nothing_had_happened(subject: EngineSubject) -> None:
    """Another engine continues a response from any token, and gives the response that the first would have given.

    Prefill Request.inherited after the prompt, continue with the random number of the next token, and report the whole
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
                require_columns(done, length)
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
                require_versions(done, [old] * tokens + [new] * (length - tokens))


@HANDOVER.check
async def progress_returns_running_responses_that_are_long_enough(subject: EngineSubject) -> None:
    """progress() returns running responses that are long enough, and no others.

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
            f"of {engine.slots} requests that run and one that waits it reports {', '.join(sorted(found)) or 'none'}",
        )
        few = await engine.progress({"0": 10 * length})
        require(
            not few,
            f"it reports a response of {len(few[0].tokens) if few else 0} tokens as of {10 * length}",
        )
        done = await completed(engine, names)
        for name, made in found.items():
            size = len(made.tokens)
            require(0 < size <= length, f"the beginning of a response of {length} tokens has {size}")
            require_columns(made, size)
            for column in COLUMNS:
                require(
                    getattr(made, column).tolist() == getattr(done[name], column)[:size].tolist(),
                    f"{column} of what {name!r} had made are not the first of what it has made in the end",
                )
        left = await engine.progress(dict.fromkeys(names, 0))
        require(not left, "it reports responses that have ended")


@HANDOVER.check
async def a_closed_engine_still_returns_its_progress(subject: EngineSubject) -> None:
    """A closed engine still returns its progress, and another engine continues from it.

    Keep the running responses after close(): progress() is asked once more, and load().tokens counts all that was made.
    """
    length = subject.longest // 4
    async with subject.engine_to_close() as engine, subject.engine() as successor:
        await use(engine)
        await use(successor)
        names = ["a", "b"][: engine.slots]
        earlier = engine.load().tokens
        engine.submit([ask(name, length, seed=seed) for seed, name in enumerate(names)])
        await generating(engine)
        while engine.load().running < len(names):  # noqa: ASYNC110
            await asyncio.sleep(LOOK)
        await engine.close()
        left = {made.id: made for made in await engine.progress(dict.fromkeys(names, 0))}
        require(
            set(left) == set(names), f"of {', '.join(names)} it reports {', '.join(sorted(left)) or 'none'}"
        )
        generated = sum(len(made.tokens) for made in left.values())
        counted = engine.load().tokens - earlier
        require(generated == counted, f"it reports {generated} tokens, and load() {counted}")
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


@HANDOVER.check
async def a_closed_engine_says_so(subject: EngineSubject) -> None:
    """A closed engine raises GenerationFailed to every caller that waits or calls it again.

    close() ends a swap() and an events() that are waiting, and is itself called any number of times.
    """
    async with subject.engine_to_close() as engine:
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


ENGINE = Contract[EngineSubject](*GENERATION, *SWAPS, *HANDOVER)
