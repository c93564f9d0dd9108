"""What every engine does, whatever computes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.torch import load_file
from tiny_models import tiny_model

from rljob_core.errors import GenerationFailed, SpecError, WeightsRejected
from rljob_core.ports import Completed, Engine, EngineEvent, Progress, Request, Stopped
from rljob_core.trajectory import Finish
from rljob_runtime.engines import create_engine

SLOTS = 4
#: Tokens of a response that does not end before the test has done what it does meanwhile.
ENDLESS = 90_000
OPTIONS: dict[str, dict[str, Any]] = {
    "Torch": {"slots": SLOTS, "threads": 1, "device": "cpu"},
    "Emulated": {
        "slots": SLOTS,
        "stepSeconds": 0.004,  # as real ones take: what is asked for is still generated when a test acts
        # Longer than any request allows: responses are as long as maxTokens, as those of a model that never stops.
        "lengths": {"median": 100_000.0, "sigma": 0.0, "promptSigma": 0.0, "max": 100_000},
    },
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("model"), context=100_000)


@pytest.fixture(params=list(OPTIONS))
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
async def engine(kind: str, model: Path) -> AsyncIterator[Engine]:
    engine = create_engine(kind, model_path=model, options=OPTIONS[kind])
    await engine.start()
    yield engine
    await engine.close()


@pytest.fixture
async def successor(kind: str, model: Path) -> AsyncIterator[Engine]:
    """Another engine of that kind, at a later version of the same weights."""
    engine = create_engine(kind, model_path=model, options=OPTIONS[kind])
    await engine.start()
    await engine.swap(3, None, "Update")
    yield engine
    await engine.close()


def ask(
    name: str,
    length: int,
    *,
    seed: int = 0,
    prompt: Sequence[int] = (1, 2, 3),
    temperature: float = 1.0,
    inherited: Progress | None = None,
) -> Request:
    return Request(
        id=name,
        tokens=np.array(prompt, np.int32),
        temperature=temperature,
        top_p=1.0,
        max_tokens=length,
        stop_tokens=frozenset(),
        stop=(),
        seed=seed,
        inherited=inherited,
    )


async def gather(engine: Engine, count: int) -> dict[str, EngineEvent]:
    """So many events, by id; fails on a second one of the same id."""
    found: list[EngineEvent] = []
    while len(found) < count:
        found.extend(await engine.events())
    by_id = {event.id: event for event in found}
    assert len(by_id) == len(found) == count
    return by_id


async def generating(engine: Engine) -> None:
    """Until tokens come out."""
    before = engine.load().tokens
    while engine.load().tokens == before:  # noqa: ASYNC110  an engine announces responses, not tokens
        await asyncio.sleep(0.001)


def versions(event: EngineEvent) -> list[int]:
    assert isinstance(event, Completed), event
    return [int(version) for version in event.versions]


async def test_responses_have_what_was_asked_for(engine: Engine) -> None:
    assert engine.version == -1
    await engine.swap(0, None, "Update")
    assert engine.version == 0
    engine.submit([ask("a", 5), ask("b", 1)])
    for name, event in (await gather(engine, 2)).items():
        length = {"a": 5, "b": 1}[name]
        assert isinstance(event, Completed)
        assert event.finish is Finish.LENGTH
        for array, dtype in (
            (event.tokens, np.int32),
            (event.logprobs, np.float32),
            (event.versions, np.int32),
        ):
            assert array.shape == (length,)
            assert array.dtype == dtype
        assert (event.logprobs < 0).all()
        assert versions(event) == [0] * length


async def test_more_than_its_slots_wait_their_turn(engine: Engine) -> None:
    await engine.swap(0, None, "Update")
    assert engine.slots == SLOTS
    first, *names = [str(number) for number in range(3 * SLOTS + 1)]
    endless = [f"{first}.{number}" for number in range(SLOTS)]
    engine.submit([ask(name, ENDLESS) for name in endless])
    engine.submit([ask(name, 20 + int(name), seed=int(name)) for name in names])
    assert engine.load().waiting + engine.load().running == 4 * SLOTS
    await generating(engine)
    assert engine.load().running == SLOTS
    assert engine.load().waiting == 3 * SLOTS
    engine.cancel(endless)
    done = await gather(engine, 3 * SLOTS)
    assert {name: len(versions(event)) for name, event in done.items()} == {n: 20 + int(n) for n in names}
    assert (engine.load().running, engine.load().waiting) == (0, 0)


async def test_a_response_depends_on_prompt_and_seed_alone(engine: Engine) -> None:
    await engine.swap(0, None, "Update")
    engine.submit([ask("alone", 30, seed=7)])
    alone = (await gather(engine, 1))["alone"]
    engine.submit([ask(str(number), 10 + 7 * number, seed=number, prompt=range(1, 9)) for number in range(6)])
    engine.submit([ask("again", 30, seed=7)])
    again = (await gather(engine, 7))["again"]
    assert isinstance(alone, Completed)
    assert isinstance(again, Completed)
    assert alone.tokens.tolist() == again.tokens.tolist()


async def test_update_goes_on_under_the_new_weights(engine: Engine) -> None:
    await engine.swap(0, None, "Update")
    engine.submit([ask("a", 600), ask("b", 900)])
    await generating(engine)
    await engine.swap(3, None, "Update")
    assert engine.version == 3
    for event in (await gather(engine, 2)).values():
        spans = versions(event)
        assert set(spans) == {0, 3}
        assert spans == sorted(spans)


async def test_keep_ends_what_runs_and_then_swaps(engine: Engine, model: Path) -> None:
    await engine.swap(0, None, "Keep")
    engine.submit([ask("old", 300)])
    await generating(engine)
    swap = asyncio.create_task(engine.swap(1, list(load_file(model / "model.safetensors").items()), "Keep"))
    await asyncio.sleep(0)
    engine.submit([ask("new", 5)])
    assert not swap.done()
    await swap
    assert engine.version == 1
    done = await gather(engine, 2)
    assert set(versions(done["old"])) == {0}
    assert set(versions(done["new"])) == {1}


async def test_restart_stops_what_runs(engine: Engine) -> None:
    await engine.swap(0, None, "Restart")
    engine.submit([ask(str(number), ENDLESS if number < SLOTS else 4) for number in range(SLOTS + 1)])
    await generating(engine)
    await engine.swap(1, None, "Restart")
    done = await gather(engine, SLOTS + 1)
    for number in range(SLOTS):
        assert done[str(number)] == Stopped(id=str(number), reason="Restarted", failure=False)
    assert set(versions(done[str(SLOTS)])) == {1}


async def test_what_is_cancelled_is_forgotten(engine: Engine) -> None:
    await engine.swap(0, None, "Update")
    engine.submit([ask(str(number), ENDLESS) for number in range(SLOTS)])
    engine.submit([ask("waiting", 5), ask("next", 6)])
    await generating(engine)
    engine.cancel([*map(str, range(SLOTS)), "waiting", "unknown"])
    assert list(await gather(engine, 1)) == ["next"]
    assert (engine.load().running, engine.load().waiting) == (0, 0)


async def test_the_same_id_again_takes_the_place_of_the_first(engine: Engine) -> None:
    await engine.swap(0, None, "Update")
    engine.submit([ask("a", ENDLESS), ask("b", 50)])
    await generating(engine)
    engine.submit([ask("a", 7)])
    done = await gather(engine, 2)
    assert len(versions(done["a"])) == 7


async def test_weights_that_do_not_verify_change_nothing(engine: Engine) -> None:
    def altered() -> Iterator[tuple[str, Any]]:
        raise WeightsRejected("digest")
        yield

    await engine.swap(0, None, "Update")
    with pytest.raises(WeightsRejected, match="digest"):
        await engine.swap(1, altered(), "Update")
    assert engine.version == 0
    engine.submit([ask("a", 3)])
    assert versions((await gather(engine, 1))["a"]) == [0, 0, 0]


def upto(done: EngineEvent, tokens: int) -> Progress:
    """A response as it was when it had so many tokens."""
    assert isinstance(done, Completed)
    return Progress(done.id, done.tokens[:tokens], done.logprobs[:tokens], done.versions[:tokens])


@pytest.mark.parametrize("temperature", [0.0, 1.0])
async def test_another_engine_goes_on_as_if_nothing_had_happened(
    engine: Engine, successor: Engine, temperature: float
) -> None:
    length = 60
    await engine.swap(0, None, "Update")
    engine.submit([ask(str(n), length, seed=n, temperature=temperature) for n in range(SLOTS)])
    whole = await gather(engine, SLOTS)
    stops = dict(zip(map(str, range(SLOTS)), [0, 1, length // 2, length - 1], strict=True))
    for name, tokens in stops.items():
        made = upto(whole[name], tokens)
        successor.submit([ask(name, length, seed=int(name), temperature=temperature, inherited=made)])
    for name, done in (await gather(successor, SLOTS)).items():
        before = whole[name]
        assert isinstance(before, Completed)
        assert isinstance(done, Completed)
        tokens = stops[name]
        assert done.tokens.tolist() == before.tokens.tolist()
        assert done.logprobs[:tokens].tolist() == before.logprobs[:tokens].tolist()
        np.testing.assert_allclose(done.logprobs, before.logprobs, atol=1e-4)
        assert versions(done) == [0] * tokens + [3] * (length - tokens)
        assert (done.tokens.dtype, done.logprobs.dtype, done.versions.dtype) == (
            np.int32,
            np.float32,
            np.int32,
        )


async def test_what_is_generating_tells_how_far_it_has_come(engine: Engine) -> None:
    await engine.swap(0, None, "Update")
    requests = [ask(str(number), 400, seed=number) for number in range(SLOTS + 1)]
    engine.submit(requests)
    await generating(engine)
    await engine.swap(1, None, "Update")
    found = {p.id: p for p in await engine.progress({r.id: 1 for r in requests} | {"unknown": 1})}
    assert set(found) == set(map(str, range(SLOTS)))  # one has no slot yet
    assert await engine.progress({"0": 400, "1": len(found["1"].tokens) + 1000}) == []
    done = await gather(engine, SLOTS + 1)
    for name, made in found.items():
        size = len(made.tokens)
        assert 0 < size < 400
        for column in ("tokens", "logprobs", "versions"):
            assert getattr(made, column).tolist() == getattr(done[name], column)[:size].tolist()
    assert await engine.progress({r.id: 0 for r in requests}) == []


async def test_nothing_is_lost_of_an_engine_that_is_closed(engine: Engine, successor: Engine) -> None:
    await engine.swap(0, None, "Update")
    engine.submit([ask("a", 500, seed=5), ask("b", 500, seed=6)])
    await generating(engine)
    await engine.close()
    left = await engine.progress({"a": 1, "b": 1})
    assert sum(len(made.tokens) for made in left) == engine.load().tokens
    assert [made.id for made in left] == ["a", "b"]
    generated = engine.load().tokens
    successor.submit([ask(made.id, 500, seed=5 + n, inherited=made) for n, made in enumerate(left)])
    done = await gather(successor, 2)
    assert successor.load().tokens == 2 * 500 - generated
    for made in left:
        event = done[made.id]
        assert isinstance(event, Completed)
        assert event.tokens[: len(made.tokens)].tolist() == made.tokens.tolist()


async def test_a_request_that_inherits_all_that_it_may_have_fails_alone(engine: Engine) -> None:
    await engine.swap(0, None, "Update")
    engine.submit([ask("whole", 4)])
    made = upto((await gather(engine, 1))["whole"], 4)
    engine.submit([ask("none left", 4, inherited=made), ask("good", 4)])
    done = await gather(engine, 2)
    event = done["none left"]
    assert isinstance(event, Stopped)
    assert event.failure
    assert event.reason.startswith("NothingLeft: ")
    assert versions(done["good"]) == [0] * 4


async def test_an_empty_request_fails_alone(engine: Engine) -> None:
    await engine.swap(0, None, "Update")
    engine.submit([ask("empty", 3, prompt=()), ask("none", 0), ask("good", 3)])
    done = await gather(engine, 3)
    for name in ("empty", "none"):
        event = done[name]
        assert isinstance(event, Stopped)
        assert event.failure
        assert event.reason.startswith("EmptyRequest: ")
    assert versions(done["good"]) == [0, 0, 0]


async def test_a_closed_engine_says_so(engine: Engine) -> None:
    await engine.swap(0, None, "Update")
    engine.submit([ask("a", ENDLESS)])
    await generating(engine)
    swap = asyncio.create_task(engine.swap(1, None, "Keep"))
    await asyncio.sleep(0)
    await engine.close()
    with pytest.raises(GenerationFailed, match="closed"):
        await swap
    with pytest.raises(GenerationFailed, match="closed"):
        await engine.swap(1, None, "Update")
    with pytest.raises(GenerationFailed, match="closed"):
        await engine.events()


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("vLLM", {}, r"spec\.rollout\.engine\.name: 'vLLM' is unknown: write one of Torch, Emulated"),
        ("Torch", {"slot": 1}, r"spec\.rollout\.engine\.options\.slot: .*slots"),
        ("Torch", {"slots": "8"}, r"spec\.rollout\.engine\.options\.slots: .*integer"),
        ("Emulated", {"lengths": {"sigma": 0.1}}, r"options\.lengths: .*promptSigma"),
    ],
)
def test_what_no_engine_understands_is_refused(
    name: str, options: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(SpecError, match=message):
        create_engine(name, model_path=tmp_path, options=options)
