"""The torch engine against `model.generate` and plain forwards of the same weights."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer, MambaConfig, MambaForCausalLM, T5Config

from rljob_contract.tiny_models import ARCHITECTURES, tiny_model
from rljob_core.errors import GenerationFailed, SpecError, WeightsRejected
from rljob_core.ports import Completed, EngineEvent, Request, Stopped
from rljob_core.trajectory import FinishReason
from rljob_runtime.engines.random_stream import draw, stream
from rljob_runtime.engines.stops import Mark, StopTable
from rljob_runtime.engines.torch.engine import TorchEngine
from rljob_runtime.engines.torch.model import SlotModel
from rljob_runtime.engines.torch.options import TorchEngineOptions
from rljob_runtime.engines.torch.sampler import sample

Start = Callable[..., Awaitable[TorchEngine]]


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)  # more of them only wait for each other, where every core is testing something


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Three versions of a model whose distributions are far from uniform and from each other."""
    folder = tmp_path_factory.mktemp("models")
    return [tiny_model(folder / str(seed), context=1024, seed=seed, spread=0.4) for seed in range(3)]


@pytest.fixture
async def start() -> AsyncIterator[Start]:
    engines: list[TorchEngine] = []

    async def start(path: Path, *, decode: Any = None, **options: Any) -> TorchEngine:
        options = {"slots": 8, "threads": 1, "device": "cpu", **options}
        engine = TorchEngine(path, options=TorchEngineOptions(**options), decode=decode)
        engines.append(engine)
        await engine.start()
        await engine.swap(0, None, "Update")
        return engine

    yield start
    for engine in engines:
        await engine.close()


def prompt(length: int, *, seed: int = 0) -> NDArray[np.int32]:
    return np.random.default_rng(seed).integers(1, 40, size=length, dtype=np.int32)


def ask(name: str, tokens: NDArray[np.int32], **changes: Any) -> Request:
    request = Request(
        id=name,
        tokens=tokens,
        temperature=1.0,
        top_p=1.0,
        max_tokens=20,
        stop_tokens=frozenset(),
        stop=(),
        seed=0,
    )
    return replace(request, **changes)


async def gather(engine: TorchEngine, count: int) -> dict[str, EngineEvent]:
    found: dict[str, EngineEvent] = {}
    while len(found) < count:
        found.update({event.id: event for event in await engine.events()})
    return found


async def complete(engine: TorchEngine, requests: Sequence[Request]) -> dict[str, Completed]:
    engine.submit(requests)
    found = await gather(engine, len(requests))
    assert all(isinstance(event, Completed) for event in found.values()), found
    return found  # type: ignore[return-value]


async def tokens_more(engine: TorchEngine, count: int) -> None:
    """Until so many further tokens have come out."""
    goal = engine.load().tokens + count
    while engine.load().tokens < goal:  # noqa: ASYNC110  an engine announces responses, not tokens
        await asyncio.sleep(0.001)


def weights(path: Path) -> list[tuple[str, Any]]:
    return list(load_file(path / "model.safetensors").items())


@cache
def reference(path: Path) -> Any:
    # Eager attention: the only one that caps Gemma 2's scores in every version of transformers.
    return AutoModelForCausalLM.from_pretrained(path, attn_implementation="eager").eval()


def logprobs(path: Path, asked: Request, done: Completed, *, temperature: float = 1.0) -> NDArray[np.float32]:
    """Of the response's tokens, by one forward over the whole sequence."""
    model = reference(path)
    sequence = torch.tensor(np.concatenate([asked.tokens, done.tokens])).long()
    with torch.inference_mode():
        distribution = torch.log_softmax(model(sequence[None]).logits[0] / temperature, -1)
    first = len(asked.tokens)
    chosen = distribution[first - 1 : -1].gather(1, sequence[first:, None])
    return chosen[:, 0].numpy()


# ---------------------------------------------------------------------------------------------- what it says


@pytest.mark.parametrize("architecture", ARCHITECTURES)
async def test_equals_generate_and_a_plain_forward(architecture: str, start: Start, tmp_path: Path) -> None:
    path = tiny_model(tmp_path, architecture=architecture, context=400, spread=0.4)
    model = reference(path)
    # Fewer slots than requests, so that they join and leave; longer together than the first cache.
    engine = await start(path, slots=3)
    sizes = [(5, 40), (1, 130), (30, 17), (12, 40), (140, 25), (5, 33)]
    greedy = [
        ask(f"g{n}", prompt(p, seed=n), max_tokens=m, temperature=0.0, stop_tokens=frozenset({0}))
        for n, (p, m) in enumerate(sizes)
    ]
    sampled = [ask(f"s{n}", prompt(p, seed=n % 4), max_tokens=m, seed=n) for n, (p, m) in enumerate(sizes)]
    requests = [request for pair in zip(greedy, sampled, strict=True) for request in pair]
    done = await complete(engine, requests)
    for request in requests:
        np.testing.assert_allclose(
            done[request.id].logprobs, logprobs(path, request, done[request.id]), atol=1e-4
        )
    for request in greedy:
        given = torch.tensor(request.tokens).long()[None]
        expected = model.generate(
            given, attention_mask=torch.ones_like(given), do_sample=False, max_new_tokens=request.max_tokens
        )
        response = done[request.id]
        assert response.tokens.tolist() == expected[0, given.shape[1] :].tolist()
        assert response.finish is (FinishReason.STOP if response.tokens[-1] == 0 else FinishReason.LENGTH)


async def test_logprobs_are_tempered_and_not_truncated(models: list[Path], start: Start) -> None:
    engine = await start(models[0])
    requests = [
        ask(str(n), prompt(6, seed=n), temperature=t, top_p=p, seed=n)
        for n, (t, p) in enumerate([(0.5, 1.0), (2.0, 0.6), (0.7, 0.9), (1.0, 1.0)])
    ]
    for name, response in (await complete(engine, requests)).items():
        request = requests[int(name)]
        expected = logprobs(models[0], request, response, temperature=request.temperature)
        np.testing.assert_allclose(response.logprobs, expected, atol=1e-4)


async def test_a_sample_does_not_depend_on_neighbours_or_on_when_it_joins(
    models: list[Path], start: Start
) -> None:
    engine = await start(models[0], slots=3)
    siblings = [ask(f"s{n}", prompt(9), seed=n, max_tokens=50) for n in range(6)]
    crowd = [
        ask(
            f"c{n}",
            prompt(3 * n + 1, seed=n),
            seed=100 + n,
            top_p=0.5,
            temperature=0.3 * n,
            max_tokens=5 + 9 * n,
        )
        for n in range(7)
    ]
    alone = {}
    for request in siblings:
        alone.update(await complete(engine, [request]))
    mixed = [request for pair in zip(crowd, siblings, strict=False) for request in pair]
    together = await complete(engine, mixed)
    for request in siblings:
        assert together[request.id].tokens.tolist() == alone[request.id].tokens.tolist()
        np.testing.assert_allclose(together[request.id].logprobs, alone[request.id].logprobs, atol=1e-4)
    assert len({tuple(response.tokens.tolist()) for response in alone.values()}) == len(siblings)


def test_samples_follow_the_distribution() -> None:
    rows = 40_000
    logits = torch.tensor([1.0, 0.0, -1.0, 2.0, -30.0])
    uniform = draw(np.array([stream(seed) for seed in range(rows)], np.uint64))
    for temperature, top_p, allowed in (
        (1.0, 1.0, [0, 1, 2, 3]),
        (0.5, 1.0, [0, 1, 2, 3]),
        (1.0, 0.7, [0, 3]),
    ):
        tokens, scores = sample(
            logits.expand(rows, -1),
            uniform=uniform,
            temperature=np.full(rows, temperature, np.float32),
            top_p=np.full(rows, top_p, np.float32),
        )
        full = torch.softmax(logits / temperature, -1).numpy()
        kept = np.array([full[token] if token in allowed else 0.0 for token in range(5)])
        counts = np.bincount(tokens, minlength=5) / rows
        np.testing.assert_allclose(counts, kept / kept.sum(), atol=0.01)
        np.testing.assert_allclose(scores, np.log(full)[tokens], atol=1e-5)


def test_streams_are_uniform_and_independent() -> None:
    states = np.array([stream(seed) for seed in range(500)], np.uint64)
    drawn = np.stack([draw(states) for _ in range(200)])
    assert drawn.min() > 0
    assert drawn.max() <= 1
    np.testing.assert_allclose(np.histogram(drawn, bins=20, range=(0, 1))[0] / drawn.size, 0.05, atol=0.005)
    assert abs(np.corrcoef(drawn[:-1].ravel(), drawn[1:].ravel())[0, 1]) < 0.02  # in time
    assert (
        abs(np.corrcoef(drawn[:, :-1].ravel(), drawn[:, 1:].ravel())[0, 1]) < 0.02
    )  # between neighbouring seeds


# ---------------------------------------------------------------------------------------------- swaps


async def running_through_swaps(
    engine: TorchEngine, models: list[Path]
) -> tuple[list[Request], dict[str, Completed]]:
    """Responses that started under the first model and ended under the third, one of which joined in between."""
    requests = [
        ask(str(n), prompt(4 + 5 * (n // 2), seed=n // 2), seed=n, max_tokens=500 + n) for n in range(6)
    ]
    second, third = weights(models[1]), weights(models[2])
    engine.submit(requests[:5])
    await tokens_more(engine, 5 * 30)
    await engine.swap(1, second, "Update")
    engine.submit(requests[5:])
    await tokens_more(engine, 5 * 40)
    await engine.swap(2, third, "Update")
    found = await gather(engine, len(requests))
    done = {name: event for name, event in found.items() if isinstance(event, Completed)}
    assert len(done) == len(requests), found
    assert {version for event in done.values() for version in event.versions.tolist()} == {0, 1, 2}
    return requests, done


def distances(models: list[Path], request: Request, done: Completed) -> NDArray[np.float32]:
    """Of each log-probability from that of the weights of its recorded version, on the whole prefix."""
    by_version = np.stack([logprobs(path, request, done) for path in models])
    expected: NDArray[np.float32] = by_version[done.versions, np.arange(len(done.tokens))]
    return np.abs(done.logprobs - expected)


async def test_each_token_is_of_the_weights_recorded_for_it(models: list[Path], start: Start) -> None:
    engine = await start(models[0])
    requests, done = await running_through_swaps(engine, models)
    for request in requests:
        assert distances(models, request, done[request.id]).max() < 1e-4


async def test_a_cache_that_is_kept_is_of_the_older_weights(models: list[Path], start: Start) -> None:
    engine = await start(models[0], recompute_cache=False)
    requests, done = await running_through_swaps(engine, models)
    for request in requests[:5]:
        versions = done[request.id].versions
        away = distances(models, request, done[request.id])
        assert away[versions == 0].max() < 1e-4
        assert away[versions == 2].max() > 1e-2


async def test_none_goes_back_to_the_initial_weights(models: list[Path], start: Start) -> None:
    engine = await start(models[0])
    request = ask("a", prompt(5), temperature=0.0)
    initial = (await complete(engine, [request]))["a"]
    await engine.swap(1, weights(models[1]), "Restart")
    other = (await complete(engine, [request]))["a"]
    await engine.swap(2, None, "Restart")
    again = (await complete(engine, [request]))["a"]
    assert initial.tokens.tolist() == again.tokens.tolist() != other.tokens.tolist()
    assert again.versions.tolist() == [2] * 20


async def test_weights_of_another_model_are_rejected_whole(models: list[Path], start: Start) -> None:
    engine = await start(models[0])
    request = ask("a", prompt(5), temperature=0.0)
    before = (await complete(engine, [request]))["a"]
    good = weights(models[1])
    name = "model.norm.weight"
    for wrong, message in (
        ([*good, ("model.unknown", torch.zeros(1))], "model.unknown: the model has none"),
        ([(n, t) for n, t in good if n != name], f"{name}: missing"),
        ([(n, torch.zeros(3) if n == name else t) for n, t in good], f"{name}: shape"),
    ):
        with pytest.raises(WeightsRejected, match=message):
            await engine.swap(1, wrong, "Update")
    assert engine.version == 0
    after = (await complete(engine, [request]))["a"]
    np.testing.assert_array_equal(after.logprobs, before.logprobs)


# ---------------------------------------------------------------------------------------------- ends


async def test_stop_strings_and_tokens_end_a_response(models: list[Path], start: Start) -> None:
    engine = await start(models[0])
    free = (await complete(engine, [ask("a", prompt(5), max_tokens=60)]))["a"]
    tokenizer = AutoTokenizer.from_pretrained(models[0])
    string = tokenizer.decode(free.tokens[15:18])
    assert len(string) == 3
    end = next(n for n in range(60) if string in tokenizer.decode(free.tokens[:n]))
    token = int(free.tokens[10])
    done = await complete(
        engine,
        [
            ask("string", prompt(5), max_tokens=60, stop=("never there", string)),
            ask("token", prompt(5), max_tokens=60, stop_tokens=frozenset({token})),
            ask("both", prompt(5), max_tokens=60, stop=(string,), stop_tokens=frozenset({token})),
            ask("neither", prompt(5), max_tokens=60, stop=("never there",)),
        ],
    )
    first = free.tokens.tolist().index(token) + 1
    lengths = {"string": end, "token": first, "both": min(end, first), "neither": 60}
    for name, length in lengths.items():
        assert done[name].tokens.tolist() == free.tokens[:length].tolist()
        assert done[name].finish is (FinishReason.LENGTH if name == "neither" else FinishReason.STOP)


def test_a_stop_string_may_end_within_a_token_or_a_character() -> None:
    pieces = ["", "ab", "b\nc", "\n", " x", "é"[:0]]
    raw = [*(piece.encode() for piece in pieces), "é".encode()[:1], "é".encode()[1:]]

    def decode(tokens: Sequence[int]) -> str:
        return b"".join(raw[token] for token in tokens).decode(errors="replace")

    table = StopTable(vocabulary=len(raw), decode=lambda: decode)
    blank = table.ending(frozenset({5}), ("b\n", "é"))
    assert table.ending(frozenset({5}), ("b\n", "é")) == blank
    marks = table.marks[blank]
    assert [marks[token] for token in range(6)] == [
        Mark.NOTHING, Mark.NOTHING, Mark.MAYBE, Mark.MAYBE, Mark.NOTHING, Mark.STOP,
    ]  # fmt: skip
    completed = {(1, 3): True, (1, 2): True, (4, 3): False, (1, 6): False, (1, 6, 7): True, (4, 7): False}
    for tokens, expected in completed.items():
        assert table.completed(blank, np.array(tokens)) is expected
    assert not table.marks[0].any()


# ---------------------------------------------------------------------------------------------- failures


async def test_what_does_not_fit_fails_alone(models: list[Path], start: Start) -> None:
    engine = await start(models[0], max_length=64)
    engine.submit(
        [
            ask("long", prompt(50), max_tokens=15),
            ask("fits", prompt(50), max_tokens=14),
            ask("unknown", np.array([1, 10_000], np.int32)),
        ]
    )
    done = await gather(engine, 3)
    long, unknown, fits = done["long"], done["unknown"], done["fits"]
    assert isinstance(long, Stopped)
    assert long.failure
    assert str(long).startswith("PromptTooLong: a prompt of 50 tokens and maxTokens 15 pass the 64 tokens")
    assert isinstance(unknown, Stopped)
    assert unknown.failure
    assert unknown.reason == "UnknownToken"
    assert isinstance(fits, Completed)
    assert len(fits.tokens) == 14


async def test_weights_without_finite_probabilities_fail_what_they_generate(
    models: list[Path], start: Start
) -> None:
    engine = await start(models[0])
    before = await complete(engine, [ask("a", prompt(5)), ask("b", prompt(7))])
    broken = [(name, torch.full_like(tensor, torch.nan)) for name, tensor in weights(models[0])]
    await engine.swap(1, broken, "Update")
    engine.submit([ask("a", prompt(5)), ask("b", prompt(7))])
    for event in (await gather(engine, 2)).values():
        assert isinstance(event, Stopped)
        assert event.failure
        assert str(event) == "NotFinite: version 1 gives no finite probabilities"
    await engine.swap(2, weights(models[0]), "Update")
    after = await complete(engine, [ask("a", prompt(5)), ask("b", prompt(7))])
    for name in "ab":
        assert after[name].tokens.tolist() == before[name].tokens.tolist()


async def test_an_error_while_computing_is_reported_and_outlived(models: list[Path], start: Start) -> None:
    def decode(tokens: Sequence[int]) -> str:
        if len(tokens) > 4:
            raise RuntimeError("no more than four")
        return "x" * len(tokens)

    engine = await start(models[0], decode=decode)
    engine.submit([ask("a", prompt(5), stop=("xxxxxxxx",)), ask("b", prompt(5))])
    for event in (await gather(engine, 2)).values():
        assert isinstance(event, Stopped)
        assert event.failure
        assert str(event) == "EngineFailed: RuntimeError: no more than four"
    assert len((await complete(engine, [ask("b", prompt(5))]))["b"].tokens) == 20


async def test_half_replaced_weights_end_the_engine(models: list[Path], start: Start) -> None:
    engine = await start(models[0])
    unusable = [(name, tensor.numpy()) for name, tensor in weights(models[1])]
    engine.submit([ask("a", prompt(5), max_tokens=1000)])
    with pytest.raises(GenerationFailed, match="the engine died: TypeError"):
        await engine.swap(1, unusable, "Update")
    assert engine.version == 0
    with pytest.raises(GenerationFailed, match="the engine died: TypeError"):
        await engine.events()


@pytest.mark.parametrize(
    ("lengths", "rows"),
    [
        ((2, 2, 7, 7), [4, 4, 2, 2, 2, 2, 2]),
        ((2, 2, 7, 7, 5, 5), [4, 4, 4, 4, 4, 4, 4]),
        ((2, 7, 7, 7, 5), [4, 4, 3, 3, 3, 3, 3, 1, 1, 1, 1, 1]),
    ],
    ids=["nobody waits", "they double the batch", "it would not double the batch"],
)
async def test_rows_without_a_sequence_are_soon_filled_or_left_out(
    lengths: Sequence[int],
    rows: list[int],
    models: list[Path],
    start: Start,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A step costs as much as it has rows."""
    decode, computed = SlotModel.decode, list[int]()

    def counted(model: SlotModel, tokens: NDArray[np.int64], **where: Any) -> Any:
        computed.append(len(tokens))
        return decode(model, tokens, **where)

    monkeypatch.setattr(SlotModel, "decode", counted)
    engine = await start(models[0], slots=4)
    asked = [ask(str(n), prompt(5, seed=n), max_tokens=length) for n, length in enumerate(lengths)]
    done = await complete(engine, asked)
    assert computed == rows
    assert [len(done[str(n)].tokens) for n in range(len(lengths))] == list(lengths)


async def test_step_times_are_measured(models: list[Path], start: Start) -> None:
    engine = await start(models[0])
    assert engine.load().profile is None
    for batch in (1, 2, 3):
        await complete(engine, [ask(f"{batch}-{n}", prompt(5), max_tokens=60) for n in range(batch)])
    profile = engine.load().profile
    assert profile is not None
    assert profile.steps >= 3 * 60
    assert 0 < profile.step(batch=1, context=30) <= profile.step(batch=3, context=90)


async def test_half_precision_is_close(models: list[Path], start: Start) -> None:
    engine = await start(models[0], dtype="bfloat16")
    request = ask("a", prompt(5), max_tokens=40)
    done = (await complete(engine, [request]))["a"]
    away = np.abs(done.logprobs - logprobs(models[0], request, done))
    assert 1e-4 < away.mean() < 0.2


async def test_folders_that_it_cannot_serve_are_refused(start: Start, tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"spec\.model\.uri: .*holds no config\.json"):
        await start(tmp_path)
    T5Config(num_layers=1, d_model=8).save_pretrained(tmp_path / "t5")
    save_file({}, tmp_path / "t5" / "model.safetensors")
    with pytest.raises(SpecError, match=r"spec\.model\.uri: .*holds no causal language model"):
        await start(tmp_path / "t5")
    mamba = MambaForCausalLM(MambaConfig(vocab_size=16, hidden_size=8, num_hidden_layers=1))
    mamba.save_pretrained(tmp_path / "mamba")
    with pytest.raises(SpecError, match=r"spec\.model\.uri: MambaForCausalLM takes no position_ids"):
        await start(tmp_path / "mamba")
