"""The part of the engine contract about closing an engine, and other engines that continue its responses."""

from __future__ import annotations

import asyncio

import numpy as np

from rljob_contract.check import Contract, require
from rljob_contract.engine_requests import (
    COLUMNS,
    LOOK,
    ask,
    completed,
    generating,
    require_columns,
    require_versions,
    upto,
    use,
)
from rljob_contract.engine_subject import EngineSubject
from rljob_core.errors import GenerationFailed
from rljob_core.ports import Engine

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
