"""What is vLLM's own: the same tokens as the engine Torch, weights in place, an end with its owner.

A start takes a minute or two, so tests share three: an engine, one over two workers, and a server. Tests that end one
of them are the last ones in the file. A start that hangs, and an owner that is killed, have a process of their own.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import urllib.request
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import pytest_asyncio
from adapter_versions import AdapterVersion, check_generates_merged
from prometheus_client.parser import text_string_to_metric_families
from safetensors.torch import load_file, save_file
from tests.waiting import until_async
from vllm_processes import START_SECONDS, family, is_there, vllm_server

from rljob_core import worker_protocol
from rljob_core.errors import GenerationFailed, WeightsRejected
from rljob_core.ports import Completed, Engine, EngineEvent, Progress, Request, Stopped
from rljob_core.trajectory import FinishReason
from rljob_runtime.engines.registry import create_engine
from rljob_runtime.engines.vllm.engine import VllmEngine
from rljob_runtime.model.tokenizer import Tokenizer
from rljob_runtime.telemetry.catalogue import CATALOGUE
from rljob_runtime.telemetry.recorder import Recorder
from rljob_runtime.telemetry.serve import MetricsServer

SLOTS = 8
pytestmark = [
    pytest.mark.timeout(1800),
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.xdist_group("vllm"),  # else several processes start the engine
]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine(vllm_model: Path, started: list[psutil.Process]) -> AsyncIterator[Engine]:
    """One for all tests; each puts it at version 0, with the initial weights. It counts what a role would serve."""
    before = {process.pid for process in family(os.getpid())}
    engine = create_engine(
        "vLLM", model_path=vllm_model, options={"slots": SLOTS, "threads": 1, "kvCacheGiB": 0.25}
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(worker_protocol.METRICS_ADDRESS, "127.0.0.1:0")
        await engine.start()
    started += [process for process in family(os.getpid()) if process.pid not in before]
    yield engine
    await engine.close()


@pytest.fixture(scope="module")
def started() -> list[psutil.Process]:
    """The processes of the engine that tests share."""
    return []


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def split(vllm_model: Path) -> AsyncIterator[tuple[Engine, list[psutil.Process]]]:
    """An engine whose layers are split over two workers, and its processes."""
    before = {process.pid for process in family(os.getpid())}
    options = {"slots": 2, "threads": 1, "kvCacheGiB": 0.25, "tensorParallelSize": 2}
    engine = create_engine("vLLM", model_path=vllm_model, options=options)
    await engine.start()
    yield engine, [process for process in family(os.getpid()) if process.pid not in before]
    await engine.close()


@pytest.fixture(scope="module")
def plain_server(vllm_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server without our extension, as docs/engines.md has one started; where.

    Its model asks for another distribution than jobs do, as most published ones.
    """
    folder = tmp_path_factory.mktemp("server")
    model = shutil.copytree(vllm_model, folder / "model")
    declared = {"top_k": 2, "min_p": 0.3, "repetition_penalty": 1.8, "temperature": 0.5}
    (model / "generation_config.json").write_text(json.dumps(declared))
    with vllm_server(model, folder / "log", ours=False) as url:
        yield url


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def torch_engine(vllm_model: Path) -> AsyncIterator[Engine]:
    options = {"slots": SLOTS, "threads": 1, "device": "cpu"}
    engine = create_engine("Torch", model_path=vllm_model, options=options)
    await engine.start()
    yield engine
    await engine.close()


def ask(name: str, length: int, **changes: Any) -> Request:
    given: dict[str, Any] = {
        "temperature": 1.0,
        "top_p": 1.0,
        "stop_tokens": frozenset(),
        "stop": (),
        "seed": 0,
    }
    prompt = changes.pop("prompt", (5, 17, 3, 9))
    return Request(id=name, tokens=np.array(prompt, np.int32), max_tokens=length, **(given | changes))


async def test_vllm_s_own_metrics_are_served_with_those_of_the_role(engine: Engine) -> None:
    await engine.swap(0, None, "Update")
    engine.submit([ask("counted", 20)])
    await gather(engine, 1)
    server = MetricsServer(Recorder(CATALOGUE["rollout"]), "127.0.0.1:0", {})
    try:
        text = await asyncio.to_thread(read, f"http://{server.address}/metrics")
    finally:
        server.stop()
    found = {
        sample.name: sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    assert found["vllm:generation_tokens_total"] > 0
    assert {
        "vllm:kv_cache_usage_perc",
        "vllm:num_requests_running",
        "vllm:num_preemptions_total",
    } <= found.keys()
    assert "rljob_rollout_tokens_total" in found


def read(url: str) -> str:
    with urllib.request.urlopen(url, timeout=START_SECONDS) as answer:
        return str(answer.read().decode())


async def gather(engine: Engine, count: int) -> dict[str, EngineEvent]:
    found: list[EngineEvent] = []
    while len(found) < count:
        found.extend(await engine.events())
    return {event.id: event for event in found}


async def until_tokens(engine: Engine, more: int) -> None:
    before = engine.load().tokens
    await until_async(lambda: engine.load().tokens >= before + more, every=0.001)


def changed(model: Path, factor: float) -> list[tuple[str, Any]]:
    """Weights of another version."""
    weights = load_file(model / "model.safetensors")
    return [(name, tensor if "norm" in name else tensor * factor) for name, tensor in weights.items()]


def same(one: EngineEvent, other: EngineEvent) -> None:
    assert isinstance(one, Completed), one
    assert isinstance(other, Completed), other
    assert one.tokens.tolist() == other.tokens.tolist()
    assert one.finish is other.finish
    np.testing.assert_allclose(one.logprobs, other.logprobs, atol=2e-4)


@pytest.mark.smoke
@pytest.mark.parametrize("factor", [None, 1.3])
async def test_tokens_are_those_of_the_engine_torch(
    engine: Engine, torch_engine: Engine, vllm_model: Path, factor: float | None
) -> None:
    requests = [
        ask("plain", 80, seed=1),
        ask("sharp", 80, seed=2, temperature=0.6),
        ask("flat", 80, seed=3, temperature=1.4, prompt=range(1, 40)),
        ask("nucleus", 80, seed=4, temperature=0.8, top_p=0.7),
        ask("greedy", 80, temperature=0.0),
        ask("token", 200, seed=6, stop_tokens=frozenset({2, 11, 30})),
        ask("string", 200, seed=7, stop=("a", "zz")),
        ask("sibling", 80, seed=8, prompt=range(1, 40)),
        ask("later", 40, seed=2**63 + 11),  # waits for a slot
    ]
    weights = None if factor is None else changed(vllm_model, factor)
    answers = []
    for one in (torch_engine, engine):
        await one.swap(0, weights, "Update")
        one.submit(requests)
        answers.append(await gather(one, len(requests)))
    for request in requests:
        same(answers[0][request.id], answers[1][request.id])
    ended = [answers[1][name] for name in ("token", "string")]
    assert [event.finish for event in ended if isinstance(event, Completed)] == [FinishReason.STOP] * 2
    decode = Tokenizer(vllm_model).decode
    assert isinstance(ended[1], Completed)
    assert decode(ended[1].tokens).endswith(("a", "zz"))


@pytest.mark.smoke
async def test_what_runs_through_a_swap_is_what_torch_makes_of_it(
    engine: Engine, torch_engine: Engine, vllm_model: Path
) -> None:
    """From the first token of the new weights on, with keys and values of the new weights."""
    await engine.swap(0, None, "Update")
    engine.submit([ask(str(seed), 400, seed=seed) for seed in range(4)])
    await until_tokens(engine, 200)
    new = changed(vllm_model, 1.3)
    await engine.swap(1, new, "Update")
    done = await gather(engine, 4)
    await torch_engine.swap(1, new, "Update")
    differ = []
    for seed in range(4):
        event = done[str(seed)]
        assert isinstance(event, Completed)
        old = int((event.versions == 0).sum())
        assert 0 < old < 400
        assert event.versions.tolist() == [0] * old + [1] * (400 - old)
        made = Progress(event.id, event.tokens[:old], event.logprobs[:old], event.versions[:old])
        torch_engine.submit([ask(event.id, 400, seed=seed, inherited=made)])
        again = await gather(torch_engine, 1)
        try:
            same(again[event.id], event)
        except AssertionError as error:
            differ.append(error)
    # Engines round differently: of some 100,000 draws one falls between two tokens.
    assert len(differ) <= 1, differ


@pytest.mark.smoke
async def test_a_prefix_computed_with_old_weights_is_not_used_with_new_ones(
    engine: Engine, torch_engine: Engine, vllm_model: Path
) -> None:
    prompt = [1 + number % 40 for number in range(700)]
    for version, factor in [(0, 1.0), (1, 1.3), (2, 0.8)]:
        weights = changed(vllm_model, factor)
        for one in (torch_engine, engine):
            await one.swap(version, weights, "Update")
            one.submit([ask(str(seed), 20, seed=seed, prompt=prompt) for seed in range(3)])
        expected, found = await gather(torch_engine, 3), await gather(engine, 3)
        for name, event in found.items():
            same(expected[name], event)


@pytest.mark.smoke
async def test_weights_of_another_model_change_nothing(
    engine: Engine, torch_engine: Engine, vllm_model: Path
) -> None:
    await engine.swap(0, None, "Update")
    weights = load_file(vllm_model / "model.safetensors")
    name = "model.layers.0.mlp.down_proj.weight"
    for wrong, message in [
        (weights | {name: weights[name].T.contiguous()}, "shape"),
        ({key: tensor for key, tensor in weights.items() if key != name}, "missing"),
        (weights | {"model.more": weights[name]}, "none of that name"),
    ]:
        with pytest.raises(WeightsRejected, match=message):
            await engine.swap(1, list(wrong.items()), "Update")
    assert engine.version == 0
    await torch_engine.swap(0, None, "Update")
    for one in (engine, torch_engine):
        one.submit([ask("a", 30, seed=3)])
    same((await gather(torch_engine, 1))["a"], (await gather(engine, 1))["a"])


@pytest.mark.smoke
async def test_a_folder_without_all_weights_is_not_taken_for_a_version(
    engine: Engine, torch_engine: Engine, vllm_model: Path, tmp_path: Path
) -> None:
    """Neither an empty one, as another machine would see it, nor one of a model with fewer layers."""
    assert isinstance(engine, VllmEngine)
    weights = load_file(vllm_model / "model.safetensors")
    for name in ("empty", "shallow"):
        (tmp_path / name).mkdir()
    shallow = {key: tensor for key, tensor in weights.items() if ".layers.1." not in key}
    assert 0 < len(shallow) < len(weights)
    save_file(shallow, tmp_path / "shallow" / "model.safetensors")
    await engine.swap(0, None, "Update")
    for folder, message in [
        ("empty", "holds no weights"),
        ("shallow", r"lacks weights of model\.layers\.1\."),
    ]:
        with pytest.raises(Exception, match=message):
            await engine._replace(1, tmp_path / folder)
    for one in (engine, torch_engine):
        await one.swap(1, changed(vllm_model, 1.3), "Update")
        one.submit([ask("a", 30, seed=3)])
    same((await gather(torch_engine, 1))["a"], (await gather(engine, 1))["a"])


async def test_adapters_that_a_trainer_published_are_merged(
    engine: Engine, plain_server: str, vllm_model: Path, tmp_path: Path
) -> None:
    """In process, and on a server that knows nothing of adapters either."""
    published = AdapterVersion(vllm_model, tmp_path)
    await check_generates_merged(engine, published)
    server = behind(plain_server, vllm_model)
    await server.start()
    try:
        await check_generates_merged(server, published)
    finally:
        await server.close()


def behind(url: str, model: Path) -> Engine:
    """An engine that asks the server without seeds, of which a CPU's dies."""
    return create_engine("HTTP", model_path=model, options={"slots": 2, "url": url, "seeds": False})


async def test_a_server_without_our_extension_takes_weights_all_the_same(
    torch_engine: Engine, plain_server: str, vllm_model: Path
) -> None:
    """Also one that a dead rollout has left paused."""
    for pause in (False, True):
        if pause:
            call = urllib.request.Request(f"{plain_server}/pause?mode=abort", method="POST")
            (await asyncio.to_thread(urllib.request.urlopen, call, timeout=300.0)).close()
        server = behind(plain_server, vllm_model)
        await server.start()
        try:
            for version, weights in [(0, None), (1, changed(vllm_model, 1.3))]:
                for one in (torch_engine, server):
                    await one.swap(version, weights, "Update")
                    one.submit([ask("greedy", 80, temperature=0.0)])
                same((await gather(torch_engine, 1))["greedy"], (await gather(server, 1))["greedy"])
        finally:
            await server.close()


@pytest.mark.smoke
async def test_what_does_not_fit_fails_alone(engine: Engine) -> None:
    await engine.swap(0, None, "Update")
    engine.submit([ask("long", 4096), ask("strange", 3, prompt=[1, 10_000]), ask("good", 3)])
    done = await gather(engine, 3)
    for name, reason in [("long", "PromptTooLong"), ("strange", "UnknownToken")]:
        event = done[name]
        assert isinstance(event, Stopped)
        assert event.failure
        assert event.reason == reason
    assert isinstance(done["good"], Completed)


@pytest.mark.smoke
async def test_what_is_cancelled_on_its_way_to_vllm_is_not_generated(engine: Engine) -> None:
    """At every point at which it may be; vLLM is paused, so that nothing ends by itself."""
    assert isinstance(engine, VllmEngine)
    await engine.swap(0, None, "Update")
    await engine._llm.pause_generation(mode="keep", clear_cache=False)
    try:
        for turns in range(12):
            name = f"after {turns}"
            engine.submit([ask(name, 4000)])
            for _ in range(turns):
                await asyncio.sleep(0)
            engine.cancel([name])
        while engine._llm.output_processor.has_unfinished_requests():  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    finally:
        await engine._llm.resume_generation()
    engine.submit([ask("good", 3)])
    assert isinstance((await gather(engine, 1))["good"], Completed)


@pytest.mark.smoke
async def test_step_times_are_measured(engine: Engine) -> None:
    await engine.swap(0, None, "Update")
    for batch in (1, 2, 4, SLOTS):
        engine.submit([ask(str(number), 150, seed=number) for number in range(batch)])
        await gather(engine, batch)
    profile = engine.load().profile
    assert profile is not None
    assert profile.steps > 300
    assert 0 < profile.step(batch=1, context=100) <= profile.step(batch=SLOTS, context=100 * SLOTS) < 10.0


OWNER = """
    import asyncio, sys
    from pathlib import Path
    import numpy as np
    from rljob_core.ports import Request
    from rljob_runtime.engines.registry import create_engine

    async def main() -> None:
        engine = create_engine(
            "vLLM", model_path=Path(sys.argv[1]), options={"slots": 2, "threads": 1, "kvCacheGiB": 0.25}
        )
        await engine.start()
        await engine.swap(0, None, "Update")
        tokens = np.array([1, 2, 3], np.int32)
        engine.submit([Request("a", tokens, 1.0, 1.0, 4000, frozenset(), (), 0)])
        while not engine.load().tokens:
            await asyncio.sleep(0.01)
        print("generating", flush=True)
        await asyncio.to_thread(sys.stdin.readline)

    if __name__ == "__main__":
        asyncio.run(main())
"""


async def test_no_process_outlives_its_owner(vllm_model: Path, tmp_path: Path) -> None:
    script = tmp_path / "owner.py"
    script.write_text(textwrap.dedent(OWNER))
    owner = begin([sys.executable, str(script), str(vllm_model)], tmp_path / "log")
    try:
        await said(owner, b"generating")
        started = family(owner.pid)
        assert len(started) >= 2  # vLLM's core and a worker
        owner.send_signal(signal.SIGKILL)
        await until_async(lambda: not any(map(is_there, started)), "end of vLLM's processes")
    finally:
        owner.kill()
        owner.communicate()


FROZEN = """
    import asyncio, multiprocessing, os, signal, sys
    from pathlib import Path
    from rljob_core.errors import GenerationFailed
    from rljob_runtime.engines.registry import create_engine

    async def freeze():
        while not (processes := multiprocessing.active_children()):
            await asyncio.sleep(0.01)
        for process in processes:
            os.kill(process.pid, signal.SIGSTOP)
            print("frozen", process.pid, flush=True)

    async def main():
        options = {"slots": 1, "threads": 1, "kvCacheGiB": 0.25, "startSeconds": float(sys.argv[2])}
        engine = create_engine("vLLM", model_path=Path(sys.argv[1]), options=options)
        freezing = asyncio.create_task(freeze())
        try:
            await engine.start()
        except GenerationFailed as error:
            print("failed", error, flush=True)
        freezing.cancel()

    if __name__ == "__main__":
        asyncio.run(main())
"""


@pytest.mark.nightly
async def test_a_start_that_hangs_ends_and_so_does_the_process(vllm_model: Path, tmp_path: Path) -> None:
    script = tmp_path / "frozen.py"
    script.write_text(textwrap.dedent(FROZEN))
    # On a busy machine vLLM's imports alone can take the whole time, before there is a process that could hang.
    for seconds in (30, 120, 480):
        owner = begin([sys.executable, str(script), str(vllm_model), str(seconds)], tmp_path / "log")
        started: list[psutil.Process] = []
        try:
            line = await said(owner, b"frozen", f"did not start within {seconds} s".encode())
            if line.startswith(b"frozen"):
                started = family(owner.pid)
                await said(owner, f"did not start within {seconds} s".encode())
            assert await asyncio.to_thread(owner.wait, START_SECONDS) == 0
            assert [process for process in started if is_there(process)] == []
        finally:
            owner.kill()
            owner.communicate()
            for process in filter(is_there, started):
                process.kill()
        if started:
            return
    pytest.fail("vLLM started no process that could be frozen")


def begin(command: list[str], log: Path) -> subprocess.Popen[bytes]:
    with log.open("wb") as errors:
        return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors)


async def said(process: subprocess.Popen[bytes], *words: bytes) -> bytes:
    """The first line of a process that has one of these words."""
    assert process.stdout is not None
    while line := await asyncio.to_thread(process.stdout.readline):
        if any(word in line for word in words):
            return line
    raise AssertionError(f"it ended without saying {words}")


async def test_layers_split_over_two_workers_give_the_same(
    engine: Engine, split: tuple[Engine, list[psutil.Process]], vllm_model: Path
) -> None:
    for version, weights in [(0, None), (1, changed(vllm_model, 1.3))]:
        for one in (engine, split[0]):
            await one.swap(version, weights, "Update")
            one.submit([ask("a", 40, seed=4), ask("b", 40, temperature=0.0)])
        expected, found = await gather(engine, 2), await gather(split[0], 2)
        for name, event in found.items():
            same(expected[name], event)


# ---------------------------------------------------------------------------------------------- after these, none runs


async def test_an_engine_whose_processes_were_killed_says_so(
    split: tuple[Engine, list[psutil.Process]],
) -> None:
    engine, processes = split
    await engine.swap(0, None, "Update")
    before = engine.load().tokens
    engine.submit([ask("a", 4000), ask("b", 4000)])
    await until_tokens(engine, 50)
    for process in processes:
        process.kill()
    with pytest.raises(GenerationFailed, match="died"):
        await engine.events()
    made = await engine.progress({"a": 1, "b": 1})
    assert sum(len(one.tokens) for one in made) == engine.load().tokens - before >= 50
    with pytest.raises(GenerationFailed, match="died"):
        await engine.swap(1, None, "Update")


async def test_a_closed_engine_leaves_no_process(engine: Engine, started: list[psutil.Process]) -> None:
    """Though it was generating."""
    await engine.swap(0, None, "Update")
    engine.submit([ask("a", 4000)])
    await until_tokens(engine, 1)
    assert len(started) >= 2  # vLLM's core and a worker
    await engine.close()
    await until_async(lambda: not any(map(is_there, started)), "end of vLLM's processes")
