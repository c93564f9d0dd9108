"""A change of `spec.pipeline` in the configuration file is noticed, however the file is replaced."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.night import some
from tests.waiting import in_time

from rljob_core.config import JobConfig
from rljob_core.spec import PipelineSpec, RLJobSpec
from rljob_runtime.process.config_watch import lost_sites, pipeline_changes, spec_changes


def text(pipeline: dict[str, Any], **spec: Any) -> str:
    config = JobConfig(
        namespace="default",
        job="j",
        uid="u1",
        spec=RLJobSpec.model_validate(
            {
                "steps": 4,
                "model": {"uri": "/m"},
                "data": {"dataset": "chain_sum"},
                "rollout": {"pools": [{"name": "a"}]},
                "pipeline": pipeline,
                **spec,
            }
        ),
        weights_uri="/w",
        checkpoint_uri="/c",
        trainer_log_uri="/t",
    )
    return config.model_dump_json(by_alias=True)


def bound(staleness: int) -> dict[str, Any]:
    return {"mode": "BoundedAsync", "maxStaleness": staleness}


class Volume:
    """A ConfigMap's files as a kubelet keeps them: `config.json` leads through `..data`, which it swaps."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._number = 0
        self.config = folder / "config.json"
        self.config.symlink_to("..data/config.json")

    def write(self, content: str) -> None:
        self._number += 1
        version = self._folder / f"..{self._number}"
        version.mkdir()
        (version / "config.json").write_text(content)
        aside = self._folder / "..data_tmp"
        aside.symlink_to(version.name)
        aside.replace(self._folder / "..data")


@pytest.fixture
def volume(tmp_path: Path) -> Volume:
    found = Volume(tmp_path)
    found.write(text(bound(1)))
    return found


@pytest.fixture
async def seen(volume: Volume) -> AsyncIterator[asyncio.Queue[PipelineSpec]]:
    """What is reported, as it comes."""
    queue: asyncio.Queue[PipelineSpec] = asyncio.Queue()

    async def follow() -> None:
        async for pipeline in pipeline_changes(volume.config, PipelineSpec.model_validate(bound(1))):
            queue.put_nowait(pipeline)

    task = asyncio.create_task(follow())
    yield queue
    assert not task.done(), "it goes on without end"
    task.cancel()


async def test_a_coordinator_is_told_of_every_field_once(volume: Volume) -> None:
    began = JobConfig.model_validate_json(volume.config.read_text()).spec
    changes = spec_changes(volume.config, began)

    async def following() -> RLJobSpec:
        return await in_time(anext(changes))

    volume.write(text(bound(1), backoffLimit=7))
    first = await following()
    assert (first.backoff_limit, first.pipeline) == (7, began.pipeline)
    volume.write(text(bound(1), backoffLimit=7) + "\n")  # the same, written in another way
    volume.write(text(bound(2), backoffLimit=8))
    second = await following()
    assert (second.backoff_limit, second.pipeline.bound) == (8, 2)
    await changes.aclose()


async def test_a_coordinator_is_told_which_sites_are_lost(tmp_path: Path) -> None:
    file = tmp_path / "lost-sites.json"
    file.write_text('["east"]')
    changes = lost_sites(tmp_path / "config.json")

    async def following() -> tuple[str, ...]:
        return await in_time(anext(changes))

    assert await following() == ("east",)
    file.write_text("[")  # it is being replaced
    waiting = asyncio.create_task(following())
    await asyncio.sleep(1.5)
    assert not waiting.done()
    file.unlink()
    assert await waiting == ()
    await changes.aclose()


async def test_a_swapped_link_is_noticed_and_the_same_content_is_not_reported(
    volume: Volume, seen: asyncio.Queue[PipelineSpec]
) -> None:
    await asyncio.sleep(1.2)  # a look at what it was started with
    volume.write(text(bound(1)))
    volume.write(text(bound(1), steps=9))  # another field: the operator's business
    await asyncio.sleep(1.2)
    assert seen.empty()
    volume.write(text(bound(3)))
    assert (await in_time(seen.get())).max_staleness == 3
    volume.write(text(bound(3), steps=7))
    volume.write(text({"mode": "Synchronous"}))
    assert (await in_time(seen.get())).mode == "Synchronous"
    volume.write(text(bound(1)))  # back again is a change as well
    assert (await in_time(seen.get())).max_staleness == 1
    assert seen.empty()


@pytest.mark.parametrize("between", some(["half", "gone", "empty", "other", "invalid"], 2))
async def test_what_is_not_whole_is_passed_over(
    volume: Volume, seen: asyncio.Queue[PipelineSpec], between: str
) -> None:
    new = text(bound(2))
    if between == "gone":
        volume.config.unlink()
    else:
        broken = {
            "half": new[: len(new) // 2],
            "empty": "",
            "other": "[]",
            "invalid": new.replace('"maxStaleness":2', '"maxStaleness":-2'),
        }
        assert broken[between] != new
        volume.write(broken[between])
    await asyncio.sleep(1.5)
    assert seen.empty()
    if between == "gone":
        volume.config.symlink_to("..data/config.json")
    volume.write(new)
    assert (await in_time(seen.get())).max_staleness == 2
