"""Long prompts on a real server: with room for little more than one step, and longer than a message can be."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any
from uuid import uuid4

import nats
import pytest
from e2e.harness.nats_server import EmbeddedServer
from role_jobs import check, finish, job, ledger
from role_tasks import Roles

from rljob_contract.tiny_models import tiny_model
from rljob_core import streams_budget
from rljob_core.config import JobConfig
from rljob_core.ports import Channel
from rljob_core.records import GroupAborted
from rljob_core.stream_names import StreamNames
from rljob_core.streams_budget import payload_bytes, trajectory_stream_bytes
from rljob_operator.reconcile.metrics import merged
from rljob_runtime.messaging.nats.store import NatsStore

PROMPT, LONGEST, BATCH = 8000, 200, 4 * 2


class RolesOnNats(Roles):
    """The roles on a real server.

    Args:
        clients: open already, except the first one, which is opened when the roles begin.
    """

    def __init__(self, config: JobConfig, model: Path, clients: list[NatsStore]) -> None:
        super().__init__(config, model)
        self.store: Any = clients[0]
        self._clients = clients[1:]
        self.trainer_kind: Any = lambda *_, **__: self._clients.pop()

    def connect(self) -> Any:
        return self._clients.pop()


@pytest.fixture
async def nats_server(tmp_path: Path) -> AsyncIterator[EmbeddedServer]:
    async with EmbeddedServer(tmp_path / "nats") as server:
        yield server


@pytest.fixture
async def connect(nats_server: EmbeddedServer) -> AsyncIterator[Callable[..., Awaitable[NatsStore]]]:
    """Makes clients, which are closed after the test."""
    made: list[NatsStore] = []

    async def client(names: StreamNames, size: int, *, opened: bool = True) -> NatsStore:
        store = NatsStore(
            nats_server.url, subject=names.subject, stream_prefix=names.prefix, trajectory_bytes=size
        )
        made.append(store)
        if opened:
            await store.open()
        return store

    yield client
    for store in made:
        await store.close()


@pytest.mark.timeout(400)  # what stands still does not end by itself
async def test_a_slow_response_is_stored_although_long_prompts_could_fill_the_stream(
    nats_server: EmbeddedServer,
    connect: Callable[..., Awaitable[NatsStore]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Scaled down: prompts are much longer than those for which the stream is made.
    monkeypatch.setattr(streams_budget, "PROMPT_TOKENS", 64)
    monkeypatch.setattr(streams_budget, "MINIMUM", 0)
    config = long_prompts(tmp_path, tiny_model(tmp_path / "model"))
    names = StreamNames(config.subject, config.stream_prefix)
    size = trajectory_stream_bytes(config.spec)
    step = BATCH * payload_bytes(prompt_tokens=PROMPT, response_tokens=LONGEST)
    clients = [await connect(names, size, opened=number > 0) for number in range(6)]
    await leave_room(nats_server, names, int(1.5 * step) - size)
    async with RolesOnNats(config, tmp_path / "model", clients) as roles:
        # The operator of a cluster enlarges the stream, where the coordinator may not.
        refused = await roles.until(lambda line: line.room_refused)
        assert refused.room_wanted > 1.5 * step
        assert merged(None, refused).stream_bytes == refused.room_wanted
        await finish(roles)
        await check(roles)


@pytest.mark.timeout(400)
async def test_only_prompts_that_no_message_can_carry_are_given_up(
    nats_server: EmbeddedServer, connect: Callable[..., Awaitable[NatsStore]], tmp_path: Path
) -> None:
    """Too long; and long once it is JSON."""
    questions = [f"{n} of them" for n in range(26)]
    questions[3], questions[5] = "x" * 1_000_000, "\1" * 300_000
    config = long_prompts(tmp_path, tiny_model(tmp_path / "model"), questions)
    names = StreamNames(config.subject, config.stream_prefix)
    clients = [await connect(names, 1 << 28, opened=number > 0) for number in range(6)]
    async with RolesOnNats(config, tmp_path / "model", clients) as roles:
        await finish(roles)
        found = {r.group: r for r in await ledger(roles.store) if isinstance(r, GroupAborted)}
        given_up = [r.detail for r in found.values() if r.reason == "PromptExhausted"]
        await check(roles)
    # Each row is planned at least once.
    assert all("PromptUnsendable: ValueError: it takes" in detail for detail in given_up)
    for size in ("1,000,514", "1,800,514"):
        assert any(size in detail for detail in given_up), given_up


def long_prompts(tmp_path: Path, model: Path, questions: Sequence[str] = ()) -> JobConfig:
    texts = questions or [f"{n} ".ljust(PROMPT, "x") for n in range(40)]
    rows = [json.dumps({"question": text, "answer": "1"}) for text in texts]
    (tmp_path / "prompts.jsonl").write_text("\n".join(rows))
    config = job(tmp_path, model, mode="BoundedAsync", maxStaleness=2)
    spec = config.spec.model_dump(mode="json", by_alias=True)
    spec["data"] |= {"source": "jsonl", "dataset": str(tmp_path / "prompts.jsonl")}
    spec["reward"] = {"functions": ["exact_match"]}
    spec["evaluation"] = None
    spec["rollout"]["sampling"]["maxTokens"] = LONGEST
    spec["rollout"]["engine"]["options"]["lengths"] = {
        "median": 8, "sigma": 2.0, "promptSigma": 0.1, "min": 1, "max": LONGEST,
    }  # fmt: skip
    return config.model_copy(update={"spec": type(config.spec).model_validate(spec)})


async def leave_room(server: EmbeddedServer, names: StreamNames, size: int) -> None:
    """Reserve all of the server's storage except so many bytes, as other jobs would."""
    connection = await nats.connect(server.url)
    context = connection.jetstream()
    storage = 1 << 40  # `render_config`'s default
    held = (await context.stream_info(names.stream(Channel.TRAJECTORIES))).config.max_bytes or 0
    await context.add_stream(
        name=f"others-{uuid4().hex}", subjects=["others"], max_bytes=storage - held - size
    )
    await connection.close()
