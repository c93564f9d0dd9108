"""Environments that raise, hang, lie and die: each costs its own episode, and says what it did."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import psutil
import pytest
from obedient_environment import Place, client_of, said, start
from tests.waiting import until_async
from user_modules import user_module

from rljob_core.errors import EnvironmentFailed, ResourceMissing, SpecError
from rljob_core.ports import ModelTurn
from rljob_runtime.environments.client import EnvironmentClient
from rljob_runtime.environments.messages import EncodedObservation


@pytest.mark.smoke
async def test_every_fault_is_named_and_costs_its_own_episode(client: EnvironmentClient) -> None:
    bystander = await client.open(start())
    faults = {
        "raise": "EnvironmentRaised: NAME, react: ZeroDivisionError: division by zero",
        "exit": "EnvironmentRaised: NAME, react: SystemExit: 3",
        "die": "EnvironmentCrashed: NAME, react: it ended its process: exit code 7",
        "10 MB": "EnvironmentInvalid: NAME returned an observation ",
        "no UTF-8": "EnvironmentInvalid: NAME returned an observation that cannot be: ",
        "bytes": "EnvironmentInvalid: NAME returned an observation that cannot be: text: ",
        "a string": "EnvironmentInvalid: NAME returned str, not a TurnObservation or None",
        "nothing": "EnvironmentInvalid: NAME returned an observation with nothing: give one of text, messages, tokens",
        "two": "EnvironmentInvalid: NAME returned an observation with text and tokens: give one of ",
        "negative": "EnvironmentInvalid: NAME returned an observation that cannot be: tokens.0: ",
        "floats": "EnvironmentInvalid: NAME returned tokens that are no whole numbers: ",
        "no role": "EnvironmentInvalid: NAME returned messages that cannot be: a message has `role` and `content`",
        "connect": "EnvironmentRaised: NAME, react: PermissionError: ",
        "1 MiB": "EnvironmentInvalid: NAME, react: a reply of 10",
        "no content": "EnvironmentInvalid: NAME, react: Value error, a message has `role` and `content`",
    }
    answers = await asyncio.gather(*(said(client, text) for text in faults))
    for found, expected in zip(answers, faults.values(), strict=True):
        assert isinstance(found, str)
        before, _, after = expected.partition("NAME")
        assert found.startswith(before)
        assert found.partition(":Obedient")[2].startswith(after), found
    good = ("end", "text", "tokens", "messages", "secret")
    assert await asyncio.gather(*(said(client, text) for text in good)) == [
        None,
        EncodedObservation(text="it is 7"),
        EncodedObservation(tokens=(1, 2)),
        EncodedObservation(messages=({"role": "user", "content": "warmer"},)),
        EncodedObservation(text="[]"),
    ]
    killed = await said(client, "kill itself")
    assert str(killed).partition("react: ")[2].startswith("it ended its process: exit code 137 (SIGKILL"), (
        killed
    )
    assert await bystander.score(truncated=False) == 0.25
    for seed, words in (
        (1, "returned the score nan"),
        (2, "returned str as a score"),
        (3, "the score 1e+07"),
        (4, "NoneType"),
    ):
        episode = await client.open(start(seed=seed))
        with pytest.raises(EnvironmentFailed, match=f"EnvironmentInvalid: .*{words.replace('+', '.')}"):
            await episode.score(truncated=True)
    with pytest.raises(EnvironmentFailed, match=r"EnvironmentRaised: .*, open: LookupError: no game"):
        await client.open(start(13))
    episode = await client.open(start(14))
    with pytest.raises(EnvironmentFailed, match="opened no episode, but None"):
        await episode.score(truncated=False)


async def test_a_call_that_hangs_is_ended_and_a_closed_episode_leaves_no_process(module: str) -> None:
    client = client_of(f"{module}:Obedient", timeoutSeconds=3)
    before = len(psutil.Process().children(recursive=True))  # of other tests: a NATS server
    await client.start()
    try:
        answers = await asyncio.gather(said(client, "hang"), said(client, "wait"))
        assert all(str(answer).endswith("react: it took longer than 3 s") for answer in answers), answers
        assert all(str(answer).startswith("EnvironmentTimeout: ") for answer in answers)
        waiting = await client.open(start())
        call = asyncio.create_task(waiting.react(ModelTurn("end", [1], truncated=False)))
        await asyncio.sleep(0)
        call.cancel()
        waiting.close()
        # The server, its fork server and resource tracker; and of the episodes none.
        await until_async(lambda: len(psutil.Process().children(recursive=True)) <= before + 3)
    finally:
        await client.close()


async def test_a_lost_server_costs_the_episodes_that_it_played_and_no_later_one(module: str) -> None:
    place = Place()
    client = client_of(f"{module}:Obedient", place=place)
    await client.start()
    try:
        idle, episode = await client.open(start()), await client.open(start())
        waiting = asyncio.create_task(episode.react(ModelTurn("wait", [1], truncated=False)))
        await asyncio.sleep(0.2)
        os.kill(place.pid, signal.SIGKILL)
        with pytest.raises(EnvironmentFailed, match="EnvironmentLost: the environment server ended") as lost:
            await waiting
        assert lost.value.blamed
        with pytest.raises(EnvironmentFailed, match="EnvironmentLost: ") as lost:
            await idle.score(truncated=False)
        assert not lost.value.blamed  # it waited for the model
        assert await said(client, "end") is None
    finally:
        await client.close()


@pytest.mark.parametrize(
    ("name", "options", "field", "words"),
    [
        ("nowhere:Game", {}, "name", "nowhere cannot be imported: ModuleNotFoundError"),
        ("MODULE:Missing", {}, "name", "has no class 'Missing'"),
        ("MODULE:Closed", {}, "name", "it has no method `async def open(self, start)`"),
        ("MODULE:Obedient", {"size": 3}, "options", "unexpected keyword argument 'size'"),
        ("MODULE:Refusing", {}, "", "cannot be made: RuntimeError: no board"),
        ("Unheard", {}, "name", "'Unheard' is unknown"),
    ],
)
async def test_what_cannot_be_loaded_is_refused_by_its_field(
    module: str, name: str, options: dict[str, object], field: str, words: str
) -> None:
    client = client_of(name.replace("MODULE", module), options=options)
    try:
        with pytest.raises(SpecError) as refused:
            await client.start()
    finally:
        await client.close()
    assert not isinstance(refused.value, ResourceMissing)
    assert refused.value.path == f"spec.rollout.environment.{field}".rstrip(".")
    assert words in refused.value.message


async def test_a_module_that_ends_its_process_is_blamed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = user_module(tmp_path, monkeypatch, "import os\nos._exit(9)\n")
    client = client_of(f"{module}:Game")
    try:
        with pytest.raises(SpecError, match="while it was made: it ended its process: exit code 9"):
            await client.start()
    finally:
        await client.close()


async def test_an_environment_that_speaks_first_says_something(module: str) -> None:
    client = client_of(f"{module}:Speaking", timeoutSeconds=60)
    await client.start()
    try:
        assert client.observes_first
        assert (await client.open(start(1))).first == EncodedObservation(text="go")
        with pytest.raises(
            EnvironmentFailed, match=r"EnvironmentInvalid: .* returned NoneType, not a TurnObs"
        ):
            await client.open(start())
    finally:
        await client.close()
    client = client_of(f"{module}:Silent", timeoutSeconds=60)
    await client.start()
    try:
        with pytest.raises(
            EnvironmentFailed, match=r"EnvironmentInvalid: .* opened Silent, which has no method `begin`"
        ):
            await client.open(start(1))
    finally:
        await client.close()
