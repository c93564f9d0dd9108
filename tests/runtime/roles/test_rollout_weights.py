"""Engines whose weight store does not answer keep their version, report it in their heartbeat, and catch up later."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest
from role_jobs import check, finish, job
from role_tasks import Roles
from tests.waiting import in_time

from rljob_contract.tiny_models import tiny_model
from rljob_core.errors import RLJobError, StoreUnavailable, WeightsRejected
from rljob_core.messages import ENGINE_SIGNAL, ENGINE_SIGNALS, EngineSignal
from rljob_core.ports import WeightManifest
from rljob_runtime.roles.rollout import weight_updates
from rljob_runtime.weights.create import open_store, open_transport
from rljob_runtime.weights.store import StoredWeights


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weight_updates, "RETRY_SECONDS", 0.05)
    monkeypatch.setattr(weight_updates, "LONGEST_RETRY_SECONDS", 1.0)  # however long a test takes


class Troubled(StoredWeights):
    """A store with a trouble that comes at a version and can be mended."""

    trouble: RLJobError | None = None
    from_version = 0

    def __init__(self, uri: str) -> None:
        super().__init__(open_transport("Files", uri=uri))
        self.asked = 0
        self.refused = asyncio.Event()
        self._loop = asyncio.get_running_loop()

    def manifest(self, key: str) -> WeightManifest:
        trouble = (
            self.trouble
        )  # read once: this is a thread of its own, and who is informed below may mend it
        if trouble is not None and int(key[1:9]) >= self.from_version:
            self.asked += 1
            self._loop.call_soon_threadsafe(self.refused.set)
            raise trouble
        return super().manifest(key)


async def signals(roles: Roles, engine: str, done: Callable[[EngineSignal], bool]) -> EngineSignal:
    """The first signal of an engine of which `done` is true."""
    async for key, value in roles.store.watch_signals():
        if key.startswith(f"{ENGINE_SIGNALS}{engine}.") and value:
            signal = ENGINE_SIGNAL.validate_json(value)
            if done(signal):
                return signal
    raise AssertionError


@pytest.mark.parametrize(
    ("trouble", "draining"),
    [(StoreUnavailable("no route"), False), (WeightsRejected("v2 rests on v1"), True)],
    ids=lambda value: type(value).__name__,
)
async def test_an_engine_stays_on_its_version_and_catches_up(
    tmp_path: Path, model: Path, trouble: RLJobError, draining: bool
) -> None:
    config = job(tmp_path, model, mode="BoundedAsync", maxStaleness=1)
    stores = {pod: Troubled(config.weights_uri) for pod in ("a-0", "a-1")}
    stores["a-0"].trouble, stores["a-0"].from_version = trouble, 2
    async with Roles(config, model, weights=stores.__getitem__) as roles:
        stuck = await in_time(signals(roles, "a-0", lambda s: bool(s.stuck)))
        assert stuck.stuck_detail == str(trouble)
        assert (stuck.version, stuck.draining) == (1, draining) or stuck.version == 0
        # The other one's work goes on, and takes over what waited here.
        await in_time(roles.until(lambda m: m.version >= 4))
        stores["a-0"].refused.clear()
        await in_time(stores["a-0"].refused.wait())  # a second apart; steps may be faster
        assert stores["a-0"].asked > 1
        stores["a-0"].trouble = None
        well = await in_time(signals(roles, "a-0", lambda s: not s.stuck and s.version >= 4))
        assert not well.draining
        assert [swap.version for swap in well.swaps] == sorted({swap.version for swap in well.swaps})
        assert well.swaps[-1].version == well.version
        assert all(swap.began > well.started and swap.seconds >= 0 for swap in well.swaps)
        await finish(roles)
    await check(roles)


async def test_no_engine_can_reach_the_store_for_a_while(tmp_path: Path, model: Path) -> None:
    """What the bound admits is generated; then everything waits, and goes on."""
    config = job(tmp_path, model, mode="BoundedAsync", maxStaleness=2)
    stores = {pod: Troubled(config.weights_uri) for pod in ("a-0", "a-1")}
    for store in stores.values():
        store.trouble = StoreUnavailable("no route")
    async with Roles(config, model, weights=stores.__getitem__) as roles:
        # Versions up to the bound need nothing newer than the initial model.
        await in_time(roles.until(lambda m: m.version >= 3))
        versions = [await signals(roles, pod, lambda s: bool(s.stuck)) for pod in stores]
        assert [s.version for s in versions] == [0, 0]
        assert not [task for name, task in roles.tasks.items() if task.done()]
        for store in stores.values():
            store.trouble = None
        await finish(roles)
    await check(roles)


async def test_an_engine_is_not_ready_before_it_has_weights(tmp_path: Path, model: Path) -> None:
    config = job(tmp_path, model, mode="BoundedAsync", maxStaleness=1)
    late = Troubled(config.weights_uri)
    stores = {
        "a-0": open_store("Files", uri=config.weights_uri),
        "a-1": open_store("Files", uri=config.weights_uri),
        "a-2": late,
    }
    async with Roles(config, model, weights=stores.__getitem__) as roles:
        await in_time(roles.until(lambda m: m.version >= 1))
        late.trouble = StoreUnavailable("no route")
        ready = asyncio.Event()
        roles.rollout("a-2", ready=ready.set)
        await in_time(late.refused.wait())
        assert not ready.is_set()
        late.trouble = None
        await in_time(ready.wait())
        await finish(roles)
    await check(roles)
