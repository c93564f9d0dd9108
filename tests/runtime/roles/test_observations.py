"""What an environment says is read as tokens; what it makes a tokenizer or a chat template raise is its own fault."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rljob_contract.tiny_models import tiny_model
from rljob_core.errors import EnvironmentFailed
from rljob_core.ports import Completed
from rljob_core.trajectory import FinishReason
from rljob_runtime.environments.messages import EncodedObservation
from rljob_runtime.model.tokenizer import Tokenizer
from rljob_runtime.roles.rollout.observations import ObservationReader

VOCABULARY = 300


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("model"))


def completed(name: str, *, version: int = 1) -> Completed:
    tokens = np.array([65, 66], np.int32)
    return Completed(name, tokens, np.zeros(2, np.float32), np.full(2, version, np.int32), FinishReason.STOP)


@pytest.mark.parametrize(
    ("template", "messages", "words"),
    [
        ("{{ messages[-1].content.upper }}{{ 1 / 0 }}", "hint", "ZeroDivisionError"),
        ("{{ messages[-1].content }}", "hint", "leaves out an earlier message"),
    ],
)
async def test_whatever_a_chat_template_raises_is_the_fault_of_one_episode(
    tmp_path: Path, template: str, messages: str, words: str
) -> None:
    folder = tiny_model(tmp_path / "model")
    (folder / "chat_template.jinja").write_text(template)
    reader = ObservationReader(Tokenizer(folder), vocabulary=VOCABULARY)
    observation = EncodedObservation(messages=({"role": "user", "content": messages},))
    with pytest.raises(EnvironmentFailed, match=f"EnvironmentInvalid: .*{words}"):
        await reader.tokens_of(observation, last=3, room=60)


async def test_a_panic_of_the_tokenizer_is_the_fault_of_one_episode(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class PanicException(BaseException):
        pass

    def panic(*_: object) -> str:
        raise PanicException("index out of bounds")

    tokenizer = Tokenizer(model)
    monkeypatch.setattr(tokenizer, "decode", panic)
    monkeypatch.setattr(tokenizer, "encode_piece", panic)
    reader = ObservationReader(tokenizer, vocabulary=VOCABULARY)
    with pytest.raises(EnvironmentFailed, match=r"EnvironmentInvalid: .*index out of bounds"):
        await reader.turn_of(completed("g0.0@1"), read=1)
    with pytest.raises(EnvironmentFailed, match=r"EnvironmentInvalid: .*index out of bounds"):
        await reader.tokens_of(EncodedObservation(text="lower"), last=3, room=60)


async def test_what_leaves_no_token_for_a_response_is_not_encoded_to_its_end(model: Path) -> None:
    reader = ObservationReader(Tokenizer(model), vocabulary=VOCABULARY)

    async def read(room: int, **observation: Any) -> int | None:
        tokens = await reader.tokens_of(EncodedObservation(**observation), last=3, room=room)
        return None if tokens is None else len(tokens)

    size = await read(1000, text="lower")
    assert size
    assert [await read(room, text="lower") for room in (size, size + 1)] == [None, size]
    assert [await read(room, tokens=(1, 2)) for room in (2, 3)] == [None, 2]
    assert await read(60, text="lower " * 100_000) is None
    assert await read(60, tokens=(VOCABULARY,) * 60) is None


@pytest.mark.parametrize(
    ("observation", "words"),
    [
        ({"text": "go" * 30}, "leaves no token for a response: prompt and maxTokens are 60"),
        ({"tokens": tuple([1] * 60)}, "leaves no token for a response"),
        ({"tokens": (VOCABULARY,)}, f"observed token {VOCABULARY}"),
        ({"text": ""}, "the first observation is empty"),
        ({"messages": ({"role": "user", "content": "go"},)}, "this model has none"),
    ],
)
async def test_what_is_said_first_leaves_room_for_a_response(
    model: Path, observation: dict[str, Any], words: str
) -> None:
    reader = ObservationReader(Tokenizer(model), vocabulary=VOCABULARY)
    with pytest.raises(EnvironmentFailed, match=f"EnvironmentInvalid: .*{words}"):
        await reader.first_tokens_of(EncodedObservation(**observation), room=60)
    assert len(await reader.first_tokens_of(EncodedObservation(text="go" * 29), room=60)) == 58
