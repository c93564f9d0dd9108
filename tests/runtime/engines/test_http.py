"""The engine HTTP against a server that fails: no token twice, none with a version that did not make it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from completions_server import Completions, next_token, serving
from safetensors.torch import load_file
from tests.waiting import until_async

from rljob_contract.tiny_models import tiny_model
from rljob_core.errors import GenerationFailed, ResourceMissing, SpecError, WeightsRejected
from rljob_core.ports import Completed, Engine, Request, Stopped
from rljob_runtime.engines.registry import create_engine

RELOAD = {"reloadPath": "/load", "slots": 4, "timeoutSeconds": 60.0}
VLLM = {"slots": 4, "timeoutSeconds": 600.0}
PUBLISH = {"weights": "Publish", "slots": 4, "timeoutSeconds": 60.0}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("model"), context=4096)


@asynccontextmanager
async def engine_of(
    server: Completions, model: Path, options: dict[str, Any], *, url: str = ""
) -> AsyncIterator[Engine]:
    engine = create_engine("HTTP", model_path=model, options={**options, "url": url or server.url})
    try:
        await engine.start()
        yield engine
    finally:
        await engine.close()


def ask(name: str, length: int, *, temperature: float = 1.0, top_p: float = 1.0) -> Request:
    return Request(
        id=name,
        tokens=np.array([1, 2, 3], np.int32),
        temperature=temperature,
        top_p=top_p,
        max_tokens=length,
        stop_tokens=frozenset(),
        stop=(),
        seed=0,
    )


def expected(versions: list[int]) -> list[int]:
    context = [1, 2, 3]
    for version in versions:
        context.append(next_token(context, version))
    return context[3:]


async def one(engine: Engine) -> Completed | Stopped:
    events = await engine.events()
    assert len(events) == 1
    event = events[0]
    assert isinstance(event, Completed | Stopped)
    return event


async def until_tokens(engine: Engine, count: int) -> None:
    await until_async(lambda: engine.load().tokens >= count, every=0.001)


async def test_busy_servers_are_asked_again_and_broken_streams_gone_on_with(model: Path) -> None:
    async with serving(Completions(tempered=True)) as server, engine_of(server, model, RELOAD) as engine:
        await engine.swap(0, None, "Update")
        server.refusals, server.breaks = 2, 3
        engine.submit([ask("a", 20)])
        for number in range(3):
            await until_tokens(engine, 2 * number + 2)
            server.broken.set()
        done = await one(engine)
        assert isinstance(done, Completed)
        assert done.tokens.tolist() == expected([0] * 20)
        # Each stream goes on behind the two tokens of the one before.
        asked = [
            body for body in server.asked if body["max_tokens"] in range(2, 21)
        ]  # others ask what it can
        assert [len(body["prompt"]) for body in asked] == [3, 5, 7, 9]
        assert [body["max_tokens"] for body in asked] == [20, 18, 16, 14]
        assert len({body["seed"] for body in asked}) == 4


@pytest.mark.timeout(120)  # less than the engine's patience
async def test_workers_of_a_plain_vllm_server_report_that_the_sampler_is_not_ours(model: Path) -> None:
    async with serving(Completions(tempered=True)) as server, engine_of(server, model, VLLM) as engine:
        weights = list(load_file(model / "model.safetensors").items())
        await engine.swap(1, weights, "Update")
        assert len(server.loaded) == 1
        assert server.labels == ["loading", "1"]
        assert not server.paused
        engine.submit([ask("a", 5)])
        assert isinstance(await one(engine), Completed)
        assert "seed" in server.asked[-1]
        assert "vllm_xargs" not in server.asked[-1]


@pytest.mark.timeout(120)  # less than the engine's patience
async def test_a_server_that_was_left_paused_continues_and_gets_its_weights_again(model: Path) -> None:
    """As a rollout leaves it that dies after it has sent the version and before `/resume`."""
    async with (
        serving(Completions(label="3", paused=True, tempered=True)) as server,
        engine_of(server, model, VLLM) as engine,
    ):
        assert not server.paused
        assert server.labels == ["loading"]
        await engine.swap(0, None, "Update")
        assert server.loaded == [{"weights_path": str(model)}]
        assert server.labels == ["loading", "loading", "0"]
        engine.submit([ask("a", 5)])
        assert isinstance(await one(engine), Completed)


async def test_a_paused_server_that_others_feed_is_left_to_them(model: Path) -> None:
    options = {**PUBLISH, "timeoutSeconds": 0.5}
    async with serving(Completions(label="3", paused=True, tempered=True)) as server:
        with pytest.raises(ResourceMissing, match=r"options\.url: "):
            async with engine_of(server, model, options):
                pass
        assert server.paused
        assert server.labels == []


@pytest.mark.parametrize("options", [VLLM, RELOAD, PUBLISH])
async def test_a_server_that_ends_while_it_is_asked_what_it_can_may_come_back(
    model: Path, options: dict[str, Any]
) -> None:
    async with serving(Completions(label="3", lost=True)) as server:
        with pytest.raises(ResourceMissing, match=r"options\.url: the connection was lost"):
            async with engine_of(server, model, options):
                pass


async def test_each_token_has_the_version_that_made_it(model: Path) -> None:
    weights = list(load_file(model / "model.safetensors").items())
    async with (
        serving(Completions(tempered=True, pace=0.001)) as server,
        engine_of(server, model, RELOAD) as engine,
    ):
        await engine.swap(0, None, "Update")
        engine.submit([ask("a", 300)])
        await until_tokens(engine, 10)
        await engine.swap(1, weights, "Update")
        folder = Path(server.loaded[-1]["model_path"])
        assert len(list(folder.glob("*.safetensors"))) == len(weights)
        await until_tokens(engine, 150)
        await engine.swap(2, weights, "Update")
        assert not folder.exists()
        done = await one(engine)
        assert isinstance(done, Completed)
        assert set(done.versions) == {0, 1, 2}
        assert done.tokens.tolist() == expected(done.versions.tolist())


async def test_weights_of_another_model_are_refused_before_the_server_hears_of_them(model: Path) -> None:
    weights = load_file(model / "model.safetensors")
    name = sorted(weights)[0]
    wrong = [
        (weights | {name: weights[name][:1]}, f"tensor {name}: shape"),
        ({key: tensor for key, tensor in weights.items() if key != name}, f"tensor {name}: missing"),
        (weights | {"other": weights[name]}, "tensor other: the model has none"),
    ]
    async with serving(Completions(tempered=True)) as server, engine_of(server, model, RELOAD) as engine:
        await engine.swap(0, None, "Update")
        loaded = len(server.loaded)
        for tensors, message in wrong:
            with pytest.raises(WeightsRejected, match=message):
                await engine.swap(1, list(tensors.items()), "Update")
        assert len(server.loaded) == loaded
        assert engine.version == 0


async def test_a_server_that_was_restarted_ends_the_engine(model: Path) -> None:
    async with serving(Completions(tempered=True)) as server, engine_of(server, model, RELOAD) as engine:
        await engine.swap(3, None, "Update")
        server.label, server.version = "default", 0
        engine.submit([ask("a", 5)])
        with pytest.raises(GenerationFailed, match="version 0 and not 3: it was restarted"):
            await engine.events()
        assert [made.tokens.tolist() for made in await engine.progress({"a": 0})] == [[]]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"ours": False}, "restarted as another server"),
        ({"token_ids": False}, "the server sends no token ids"),
    ],
)
async def test_a_server_that_was_restarted_and_can_other_things_ends_the_engine(
    model: Path, change: dict[str, bool], message: str
) -> None:
    """At version 0, which a restarted server has as well."""
    async with serving(Completions(ours=True, breaks=1)) as server, engine_of(server, model, VLLM) as engine:
        await engine.swap(0, None, "Update")
        engine.submit([ask("a", 20)])
        await until_tokens(engine, 2)
        for name, value in change.items():
            setattr(server, name, value)
        server.broken.set()
        with pytest.raises(GenerationFailed, match=message):
            await engine.events()
        (made,) = await engine.progress({"a": 0})
        assert made.tokens.tolist() == expected([0, 0])


async def test_a_restarted_server_gets_our_sampler_again(model: Path) -> None:
    async with serving(Completions(ours=True, breaks=1)) as server, engine_of(server, model, VLLM) as engine:
        await engine.swap(0, None, "Update")
        assert server.installed == 1
        engine.submit([ask("a", 20)])
        await until_tokens(engine, 2)
        server.broken.set()
        done = await one(engine)
        assert isinstance(done, Completed)
        assert done.tokens.tolist() == expected([0] * 20)
        assert server.installed == 2


async def test_a_server_that_stays_away_ends_the_engine(model: Path) -> None:
    options = {**RELOAD, "timeoutSeconds": 2}
    async with serving(Completions(tempered=True)) as server, engine_of(server, model, options) as engine:
        await engine.swap(0, None, "Update")
        server.refusals = 1_000_000
        engine.submit([ask("a", 5)])
        with pytest.raises(GenerationFailed, match=r"could not be reached for 2 s: .*busy"):
            await engine.events()


async def test_published_weights_count_as_of_the_version_announced_before(model: Path) -> None:
    async with serving(Completions(label="1", version=1, tempered=True, pace=0.001)) as server:
        async with engine_of(server, model, PUBLISH) as engine:
            await engine.swap(1, None, "Update")
            engine.submit([ask("a", 400)])
            await until_tokens(engine, 20)
            server.label, server.version = "2", 2
            await engine.swap(2, None, "Update")
            engine.submit([ask("b", 5)])
            done = [await one(engine), await one(engine)]
            assert [(event.id, set(event.versions)) for event in done if isinstance(event, Completed)] == [
                ("b", {2}),
                ("a", {1}),
            ]
        assert server.loaded == []


async def test_a_version_that_nobody_publishes_is_not_used(model: Path) -> None:
    options = {**PUBLISH, "timeoutSeconds": 2}
    async with (
        serving(Completions(label="1", version=1, tempered=True)) as server,
        engine_of(server, model, options) as engine,
    ):
        await engine.swap(1, None, "Update")
        with pytest.raises(WeightsRejected, match="has version 1, and did not get 2"):
            await engine.swap(2, None, "Update")
        assert engine.version == 1


@pytest.mark.parametrize(
    ("tempered", "request_", "refused"),
    [
        (True, ask("a", 2, temperature=0.7), ""),
        (True, ask("a", 2, top_p=0.9), "truncation by topP"),
        (True, ask("a", 2, temperature=0.0, top_p=0.9), ""),
        (False, ask("a", 2, top_p=0.9), ""),
        (False, ask("a", 2, temperature=0.7), "before temperature"),
    ],
)
async def test_what_a_server_cannot_tell_is_not_asked_of_it(
    model: Path, tempered: bool, request_: Request, refused: str
) -> None:
    async with (
        serving(Completions(tempered=tempered)) as server,
        engine_of(server, model, RELOAD) as engine,
    ):
        await engine.swap(0, None, "Update")
        engine.submit([request_])
        event = await one(engine)
        if refused:
            assert isinstance(event, Stopped)
            assert event.failure
            assert refused in str(event)
        else:
            assert isinstance(event, Completed)


@pytest.mark.parametrize(
    ("state", "options", "message"),
    [
        (Completions(logprobs=False), RELOAD, r"options\.url: the server sends no log-probabilities"),
        (Completions(token_ids=False), RELOAD, r"options\.url: the server sends no token ids"),
        (
            Completions(logprob=-1.0),
            RELOAD,
            r"options\.url: .* 128 of 128 tokens were the likeliest one, where 47",
        ),
        (
            Completions(),
            {**RELOAD, "model": "other"},
            r"options\.model: the server has counting, and no 'other'",
        ),
        (Completions(development=False), VLLM, r"options\.weights: .*VLLM_SERVER_DEV_MODE=1"),
        (Completions(), {**RELOAD, "versionPath": "/nowhere"}, r"options\.weights: .*versionPath"),
        (Completions(), {**RELOAD, "apiKeyVariable": "NO_SUCH_KEY"}, r"apiKeyVariable: .*no NO_SUCH_KEY"),
    ],
)
async def test_a_server_that_will_not_do_is_refused(
    model: Path, state: Completions, options: dict[str, Any], message: str
) -> None:
    async with serving(replace(state)) as server:
        with pytest.raises(SpecError, match=message):
            async with engine_of(server, model, options):
                pass


async def test_no_server_is_refused(model: Path) -> None:
    async with serving(Completions()) as server:
        pass
    options = {**RELOAD, "timeoutSeconds": 0.5}
    with pytest.raises(ResourceMissing, match=r"options\.url: .* could not be reached"):
        async with engine_of(server, model, options):
            pass
