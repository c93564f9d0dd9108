"""Programs that speak OpenAI's chat completions, each in an episode of its own."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from obedient_environment import client_of, start
from tests.waiting import until_async

from rljob_core.errors import EnvironmentFailed, SpecError
from rljob_core.ports import ModelTurn
from rljob_runtime.environments.client import EnvironmentClient, EpisodePlayer
from rljob_runtime.environments.messages import EncodedObservation

BEGINNING = """
import json, os, sys, threading, time
import httpx2 as httpx
import openai
from openai import OpenAI

client = OpenAI()
KEY = os.environ["OPENAI_API_KEY"]
http = httpx.Client(base_url=os.environ["OPENAI_BASE_URL"], headers={"Authorization": f"Bearer {KEY}"})
asked = sys.stdin.read()
messages = [{"role": "user", "content": asked}]


def ask(**more):
    return client.chat.completions.create(model="policy", messages=messages, **more)


def give(score):
    assert http.post("/score", json={"score": score}).status_code == 200


def refusal(**more):
    try:
        ask(**more)
    except openai.APIStatusError as error:
        return [error.status_code, error.code, error.body["message"]]
"""
ADD = {
    "type": "function",
    "function": {
        "name": "add",
        "parameters": {"type": "object", "properties": {"a": {"type": "number"}, "b": {"type": "number"}}},
    },
}


def said(text: str, *, truncated: bool = False) -> ModelTurn:
    return ModelTurn(text, [1, 2, 3], truncated=truncated, context_tokens=7)


@asynccontextmanager
async def agents(folder: Path, program: str, **options: Any) -> AsyncIterator[EnvironmentClient]:
    file = folder / "agent.py"
    file.write_text(BEGINNING + program)
    command = {"command": ["python", str(file)], **options}
    client = client_of("agent", options=command, timeoutSeconds=120)
    await client.start()
    try:
        yield client
    finally:
        await client.close()


async def written(file: Path) -> str:
    """What a program has written into a file, once it has."""
    return await until_async(lambda: file.read_text() if file.exists() else "")


def first_of(player: EpisodePlayer) -> EncodedObservation:
    assert player.first is not None
    return player.first


def contents(observation: EncodedObservation | None) -> list[Any]:
    assert observation is not None
    assert observation.messages is not None
    return [message["content"] for message in observation.messages]


@pytest.mark.smoke
async def test_a_program_talks_to_the_model_and_gives_its_score(tmp_path: Path) -> None:
    program = """
answer = ask()
assert answer.usage.total_tokens == 10 and answer.choices[0].finish_reason == "stop"
messages += [answer.choices[0].message, {"role": "user", "content": "higher"}]
said = "".join(c.choices[0].delta.content or "" for c in ask(stream=True) if c.choices)
give(float(said))
"""
    async with agents(tmp_path, program) as client:
        assert client.observes_first
        player = await client.open(start())
        assert first_of(player) == EncodedObservation(messages=({"role": "user", "content": "?"},))
        assert contents(await player.react(said("3"))) == ["higher"]
        assert await player.react(said("0.5")) is None
        assert await player.score(truncated=False) == 0.5


async def test_what_cannot_be_answered_is_refused_in_words_and_costs_nothing(tmp_path: Path) -> None:
    program = """
refused = [
    refusal(n=4),
    refusal(logprobs=True),
    refusal(stop=["x"]),
    refusal(tool_choice="required"),
    refusal(tools=[{"type": "web_search"}]),
]
try:
    client.chat.completions.create(model="gpt-4o", messages=messages)
except openai.NotFoundError as error:
    refused.append([error.status_code, error.code, error.body["message"]])
stranger = OpenAI(api_key="sk-of-another-episode", max_retries=0)
try:
    stranger.chat.completions.create(model="policy", messages=messages)
except openai.AuthenticationError as error:
    refused.append([error.status_code, error.code, error.body["message"]])
for body in (b"{", b"[]", b'{"model": "policy", "messages": []}', b"x" * (17 << 20)):
    answer = http.post("/chat/completions", content=body)
    refused.append([answer.status_code, answer.json()["error"]["message"]])
for path in ("/embeddings", "/score"):
    answer = http.post(path, json={"score": "high"})
    refused.append([answer.status_code, answer.json()["error"]["message"]])
assert [m.id for m in client.models.list()] == ["policy"]
assert client.models.retrieve("policy").owned_by == "rljob"
episode = http.get("/episode").json()
assert (episode["prompt"], episode["item"], episode["seed"]) == (asked, {"answer": 3}, 11)
messages[0]["content"] = json.dumps(refused)
ask(temperature=0, max_tokens=5, seed=1)
"""
    async with agents(tmp_path, program) as client:
        player = await client.open(start(seed=11, item={"answer": 3}))
        (shown,) = contents(first_of(player))
        refused = json.loads(shown)
        assert await player.react(said("7")) is None
        assert await player.score(truncated=False) == 0
    assert [one[0] for one in refused] == [400, 400, 400, 400, 400, 404, 401, 400, 400, 400, 413, 404, 400]
    words = ["one choice", "trainer alone", "sampling.stop", "as it likes", "has the type `function`"]
    words += [
        "has the model 'policy'",
        "not the key",
        "not JSON",
        "not a JSON object",
        "one message at least",
    ]
    words += ["Too Large", "POST /v1/embeddings", "NUMBER"]
    for one, word in zip(refused, words, strict=True):
        assert word in one[-1], one


async def test_tools_reach_the_model_and_its_calls_reach_the_agent(tmp_path: Path) -> None:
    program = f"""
TOOLS = [{ADD!r}]
answer = ask(tools=TOOLS).choices[0]
assert answer.finish_reason == "tool_calls" and answer.message.content == "I add.", answer
(call,) = answer.message.tool_calls
result = str(sum(json.loads(call.function.arguments).values()))
messages += [answer.message, {{"role": "tool", "tool_call_id": call.id, "content": result}}]
(call,) = [c for chunk in ask(tools=TOOLS, stream=True) for c in chunk.choices[0].delta.tool_calls or ()]
give(float(json.loads(call.function.arguments)["a"]))
"""
    call = '<tool_call>\n{"name": "add", "arguments": {"a": %s, "b": 4}}\n</tool_call>'
    async with agents(tmp_path, program) as client:
        player = await client.open(start())
        assert first_of(player).tools == (ADD,)
        observed = await player.react(said("I add." + call % 3))
        assert observed == EncodedObservation(
            messages=({"role": "tool", "content": "7", "tool_call_id": "call_1_1"},), tools=(ADD,)
        )
        assert await player.react(said(call % 0.25)) is None
        assert await player.score(truncated=False) == 0.25


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            "messages[0] = {'role': 'user', 'content': 'compacted'}",
            r"messages\[0\], of the user, is not what it was",
        ),
        ("messages[1] = {'role': 'assistant', 'content': '4'}", r"messages\[1\], of the assistant, is not"),
        ("del messages[1:]", "it has 1 messages, and there were 2 before"),
        ("more = {'tools': [ADD]}", "the tools are not those of the request before"),
    ],
)
async def test_an_agent_that_rewrites_its_history_fails_in_words(
    tmp_path: Path, change: str, words: str
) -> None:
    program = f"""
ADD, more = {ADD!r}, {{}}
messages += [ask().choices[0].message]
{change}
if len(messages) > 1:
    messages.append({{"role": "user", "content": "go on"}})
found = refusal(**more)
assert found[:2] == [400, "history_rewritten"] and "branches" in found[2], found
time.sleep(600)
"""
    async with agents(tmp_path, program) as client:
        player = await client.open(start())
        with pytest.raises(
            EnvironmentFailed, match=f"EnvironmentRaised: agent, react: HistoryRewritten: {words}"
        ):
            await player.react(said("3"))


async def test_a_client_that_lost_its_connection_gets_the_answer_it_waited_for(tmp_path: Path) -> None:
    program = f"""
def lose(**more):
    try:
        client.with_options(timeout=1, max_retries=0).chat.completions.create(
            model="policy", messages=messages, **more
        )
    except openai.APITimeoutError:
        pass


lose()
lose(stream=True)
open({str(tmp_path / "lost")!r}, "w").write("twice")
body = {{"model": "policy", "messages": messages}}
found = http.post("/chat/completions", json=body, timeout=600).json()
again = http.post("/chat/completions", json=body, headers={{"x-stainless-retry-count": "1"}}).json()
assert found["choices"] == again["choices"]
messages += [again["choices"][0]["message"], {{"role": "user", "content": "next"}}]
ask()
"""
    async with agents(tmp_path, program) as client:
        player = await client.open(start())
        await written(tmp_path / "lost")
        assert contents(await player.react(said("3"))) == ["next"]
        assert await player.react(said("4")) is None


async def test_requests_are_answered_one_after_the_other(tmp_path: Path) -> None:
    program = f"""
def send(said):
    body = {{"model": "policy", "messages": [{{"role": "user", "content": said}}]}}
    answer = http.post("/chat/completions", json=body, timeout=600)
    if answer.status_code == 400:
        open({str(tmp_path / "refused")!r}, "w").write(answer.json()["error"]["code"])
    else:
        messages[0]["content"] = said
        messages.append(answer.json()["choices"][0]["message"])


threads = [threading.Thread(target=send, args=[said]) for said in ("one", "other")]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
messages.append({{"role": "user", "content": "next"}})
ask()
"""
    async with agents(tmp_path, program) as client:
        player = await client.open(start())
        assert await written(tmp_path / "refused") == "request_out_of_turn"
        assert contents(await player.react(said("3"))) == ["next"]  # the one that was first goes on
        assert await player.react(said("4")) is None


async def test_a_request_after_the_end_is_refused_and_the_program_gives_its_score(tmp_path: Path) -> None:
    program = """
messages += [ask().choices[0].message, {"role": "user", "content": "again"}]
first, second = refusal(), refusal()
assert first == second and first[:2] == [400, "context_length_exceeded"], (first, second)
give(0.75)
sys.exit(1)  # what it makes of the end is its own affair
"""
    async with agents(tmp_path, program) as client:
        player = await client.open(start())
        assert contents(await player.react(said("3"))) == ["again"]
        assert await player.score(truncated=True) == 0.75


@pytest.mark.parametrize(
    ("program", "words"),
    [
        ("sys.exit(0)", "AgentEnded: it has ended before its first request: exit code 0"),
        (
            "raise LookupError('no tool')",
            "AgentEnded: it has ended before its first request: .*LookupError: no tool",
        ),
    ],
)
async def test_a_program_that_asks_nothing_fails(tmp_path: Path, program: str, words: str) -> None:
    async with agents(tmp_path, program) as client:
        with pytest.raises(EnvironmentFailed, match=f"EnvironmentRaised: agent, open: {words}"):
            await client.open(start())


async def test_a_program_reaches_no_other_machine_and_no_other_process(tmp_path: Path) -> None:
    program = """
import socket
found = []
for address in (("192.0.2.1", 80), ("127.0.0.2", int(asked_port))):
    try:
        socket.create_connection(address, timeout=30).close()
        found.append("connected")
    except OSError as error:
        found.append(type(error).__name__)
messages[0]["content"] = json.dumps(found)
ask()
"""
    listening = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.2", 0)
    port = listening.sockets[0].getsockname()[1]
    async with listening, agents(tmp_path, f"asked_port = {port}\n{program}") as client:
        player = await client.open(start())
        (found,) = contents(first_of(player))
        assert json.loads(found) == ["OSError", "ConnectionRefusedError"]
        assert await player.react(said("3")) is None


@pytest.mark.parametrize(
    ("options", "field", "words"),
    [
        ({"command": []}, "command", "write a list"),
        ({"command": ["no-such-program"]}, "command", "there is no program 'no-such-program'"),
        ({"command": ["python"], "model": ""}, "model", "write a name"),
        ({"command": ["python"], "toolCalls": "XML"}, "toolCalls", "write one of Hermes, Json, None"),
        ({"command": ["python"], "plainText": 1}, "plainText", "write true or false"),
        ({}, "", "does not take them: missing a required argument: 'command'"),
    ],
)
async def test_options_are_checked_before_anything_starts(
    options: dict[str, Any], field: str, words: str
) -> None:
    client = client_of("agent", options=options)
    try:
        with pytest.raises(SpecError, match=words) as refused:
            await client.start()
        assert refused.value.path == "spec.rollout.environment.options" + (f".{field}" if field else "")
    finally:
        await client.close()
