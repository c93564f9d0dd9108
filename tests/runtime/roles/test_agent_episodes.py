"""Agents in the real roles: what the engine reads and what is trained are the tokens of the chat, rendered once."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from episode_jobs import agent_episodes
from role_jobs import check, finish, ledger
from role_tasks import Roles
from test_episodes import Recorded, Watched
from tests.night import some
from tests.waiting import HANG, in_time

from rljob_contract.tiny_models import tiny_model
from rljob_core.config import JobConfig
from rljob_core.ports import Request, TrainingSample
from rljob_core.records import SiblingReset
from rljob_core.trajectory import Source
from rljob_runtime.model.tokenizer import Tokenizer

TEMPLATE = (
    "{% for tool in tools or [] %}{{ tool.function.name }}.{% endfor %}"
    "{% for m in messages %}{{ m.role }}:{{ m.content }}<end>{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)
AGENT = """
import json, os, sys, urllib.request

TOOLS = [{"type": "function", "function": {"name": "add", "parameters": {}}}]


def post(path, body):
    headers = {"Authorization": f"Bearer {os.environ['OPENAI_API_KEY']}", "Content-Type": "application/json"}
    url = os.environ["OPENAI_BASE_URL"] + path
    return json.load(urllib.request.urlopen(urllib.request.Request(url, json.dumps(body).encode(), headers)))


messages = [{"role": "user", "content": "sum " + sys.argv[1]}]
for turn in (1, 2):
    try:
        answer = post("/chat/completions", {"model": "policy", "messages": messages, "tools": TOOLS})
    except urllib.error.HTTPError:
        break  # no tokens are left
    messages += [answer["choices"][0]["message"], {"role": "user", "content": "again"}]
post("/score", {"score": turn})
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tiny_model(tmp_path_factory.mktemp("model"))
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    return folder


def job_of_agents(folder: Path, model: Path, **pipeline: Any) -> JobConfig:
    (folder / "agent.py").write_text(AGENT)
    return agent_episodes(folder, model, ["python", str(folder / "agent.py"), "{prompt}"], **pipeline)


@pytest.mark.nightly
@pytest.mark.parametrize("inflight", some(["Update", "Restart"], 1))
async def test_agents_are_trained_on_the_very_tokens_of_the_engine_though_one_dies(
    tmp_path: Path, model: Path, inflight: str
) -> None:
    config = job_of_agents(tmp_path, model, inflight=inflight)
    trained: list[TrainingSample] = []
    asked: dict[str, Request] = {}
    async with Roles(
        config,
        model,
        around=lambda engine: Recorded(engine, asked),
        around_backend=lambda backend: Watched(backend, trained),
    ) as roles:
        finished = asyncio.create_task(finish(roles))
        await in_time(roles.until(lambda line: line.version >= 1), 2 * HANG)
        await roles.kill("a-0")
        roles.rollout("a-1")
        await in_time(finished, 4 * HANG)
    await check(roles)
    tokenizer = Tokenizer(model)
    (end,) = tokenizer.stop_tokens
    planned = 0
    for sample in trained:
        trajectory = sample.trajectory
        name = f"{trajectory.id}@{trajectory.attempt}"
        turns = [i for i, s in enumerate(trajectory.segments) if s.source is Source.MODEL]
        assert trajectory.score == len(turns)
        for number, index in enumerate(turns, 1):
            before = np.concatenate([s.tokens for s in trajectory.segments[:index]])
            assert np.array_equal(asked[f"{name}/{number}"].tokens, before)
            assert all(
                not s.loss_mask.any() for s in trajectory.segments[:index] if s.source is not Source.MODEL
            )
        assert all(
            s.loss_mask.all() and (s.versions >= 0).all() for s in (trajectory.segments[i] for i in turns)
        )
        opening = tokenizer.decode(np.concatenate([s.tokens for s in trajectory.segments[: turns[0]]]))
        assert opening.startswith("add.user:sum ")
        assert opening.endswith("assistant:")
        planned += trajectory.segments[0].source is Source.PROMPT
        if len(turns) == 2:
            last = trajectory.segments[turns[0]].tokens[-1]
            closed = [] if last == end else [end]
            expected = [
                *closed,
                *tokenizer.encode_piece("user:again"),
                end,
                *tokenizer.encode_piece("assistant:"),
            ]
            assert list(trajectory.segments[turns[1] - 1].tokens) == expected
    assert planned == len(trained)
    resets = {(r.reason, r.failure) for r in await ledger(roles.store) if isinstance(r, SiblingReset)}
    assert not {reason for reason, failure in resets if failure}
