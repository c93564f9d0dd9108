"""What an engine says is checked: each lie costs its attempt, and nothing of it is trained on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from role_jobs import check, finish, job, ledger
from role_tasks import Roles

from rljob_contract.tiny_models import tiny_model
from rljob_core.ports import Completed, Engine, EngineEvent
from rljob_core.records import GroupAborted, SiblingReset


def _first(values: np.ndarray[Any, Any], value: float) -> np.ndarray[Any, Any]:
    changed = values.copy()
    changed[0] = value
    return changed


def _long(made: Completed) -> Completed:
    size = 400_000
    columns = {name: np.resize(getattr(made, name), size) for name in ("tokens", "logprobs", "versions")}
    return replace(made, **columns)


#: What the engine makes of the first attempt of a trajectory, and what is said of it.
LIES: dict[str, tuple[Callable[[Completed], Completed], str]] = {
    "g0.0": (_long, "it has 400000 tokens, where maxTokens is 512"),
    "g0.1": (
        lambda made: replace(made, tokens=_first(made.tokens, 2_000_000_000)),
        "token 0 is 2000000000; the model's token ids are 0 to ",
    ),
    "g1.0": (
        lambda made: replace(made, logprobs=_first(made.logprobs, np.nan)),
        "the log-probability of token 0 is nan, not a finite float32 and at most 0",
    ),
    "g1.1": (
        lambda made: replace(made, logprobs=_first(made.logprobs, 0.5)),
        "the log-probability of token 0 is 0.5, not a finite float32 and at most 0",
    ),
    "g2.0": (
        lambda made: replace(made, logprobs=np.append(made.logprobs, np.float32(-1))),
        " log-probabilities and ",
    ),
    "g2.1": (
        lambda made: replace(
            made, tokens=made.tokens[:0], logprobs=made.logprobs[:0], versions=made.versions[:0]
        ),
        "it has no tokens",
    ),
    "g3.0": (
        lambda made: replace(made, versions=made.versions + 70),
        "token 0 is of version 70, where the engine was given none after ",
    ),
    "g3.1": (
        lambda made: replace(made, versions=made.versions - 1),
        "token 0 is of version -1, where 0 is the oldest allowed",
    ),
}


class Liar:
    """An engine that lies about the first attempts of step 0."""

    def __init__(self, honest: Engine) -> None:
        self._honest = honest

    def __getattr__(self, name: str) -> Any:
        return getattr(self._honest, name)

    async def events(self) -> Sequence[EngineEvent]:
        return [self._altered(event) for event in await self._honest.events()]

    def _altered(self, event: EngineEvent) -> EngineEvent:
        trajectory, _, attempt = event.id.partition("@")
        if trajectory not in LIES or attempt != "1" or not isinstance(event, Completed):
            return event
        return LIES[trajectory][0](event)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("model"))


async def test_each_lie_is_the_failure_of_its_attempt(tmp_path: Path, model: Path) -> None:
    async with Roles(job(tmp_path, model, mode="Synchronous"), model, around=Liar) as roles:
        ended = asyncio.create_task(finish(roles))
        tasks = [ended, *roles.tasks.values()]
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            if task.done():
                task.result()
        await ended
    await check(roles)
    records = await ledger(roles.store)
    reset = {r.trajectory: r for r in records if isinstance(r, SiblingReset)}
    assert set(reset) == set(LIES)
    for trajectory, (_, words) in LIES.items():
        assert (reset[trajectory].reason, reset[trajectory].failure) == ("InvalidOutput", True)
        assert words in reset[trajectory].detail
        assert reset[trajectory].detail.startswith("engine a-")
    assert not [r for r in records if isinstance(r, GroupAborted) and r.reason == "PromptExhausted"]
