"""Prompts are rendered once, beside the event loop, and sent once with all siblings of a message."""

from __future__ import annotations

import asyncio
import threading

import pytest

from rljob_core.messages import ENGINE_WORK, EngineWorkBatch, Generate
from rljob_core.messages.limits import MESSAGE_BYTES
from rljob_core.trajectory import group_of
from rljob_runtime.roles.coordinator.prompt_texts import WORK_BYTES, EngineMessage, PromptTexts


class Rendered:
    """Prompts of so many characters, and which of them were rendered."""

    def __init__(self, characters: int) -> None:
        self.characters = characters
        self.asked: list[tuple[int, bool]] = []

    def __call__(self, prompt: int, held_out: bool) -> str:
        assert threading.current_thread() is not threading.main_thread()
        self.asked.append((prompt, held_out))
        return f"{prompt}{held_out}".ljust(self.characters, ".")


async def test_a_prompt_is_rendered_once_for_all_who_ask_and_again_once_others_took_its_room() -> None:
    rendered = Rendered(1000)
    texts = PromptTexts(rendered, room=2500)  # of two texts
    found = await asyncio.gather(*(texts.get(0, held_out=False) for _ in range(3)))
    assert {one.text[:6] for one in found} == {"0False"}
    for prompt, held_out in ((0, True), (0, False), (1, False), (0, False), (0, True)):
        await texts.get(prompt, held_out=held_out)
    assert rendered.asked == [(0, False), (0, True), (1, False), (0, True)]


@pytest.mark.parametrize("text", ["x" * MESSAGE_BYTES, "\ud800"])
async def test_a_prompt_that_no_message_can_carry_raises(text: str) -> None:
    with pytest.raises(ValueError, match=r"bytes of the 983,040 of a message|surrogates not allowed"):
        await PromptTexts(lambda *_: text).get(0, held_out=False)


@pytest.mark.parametrize(
    ("characters", "siblings", "messages"),
    [(100, 16, 1), (150_000, 16, 2), (800_000, 16, 4), (982_528, 2, 8)],
)
async def test_siblings_of_a_message_share_their_text(characters: int, siblings: int, messages: int) -> None:
    texts = PromptTexts(Rendered(characters - 2))  # with its quotes
    work = [Generate(f"g{p}.{s}", 1, p, 0, "sampled", s) for p in range(4) for s in range(siblings)]
    sent, message = list[EngineWorkBatch](), EngineMessage(1)
    for item in work:
        text = await texts.get(item.prompt, held_out=False)
        if not message.add(item, text):
            sent.append(ENGINE_WORK.validate_json(data := message.data()))
            assert len(data) <= (MESSAGE_BYTES if len(sent[-1].texts) == 1 else WORK_BYTES)
            message = EngineMessage(1)
            assert message.add(item, text)
    sent.append(ENGINE_WORK.validate_json(message.data()))
    items = [item for batch in sent for item in batch.items]
    assert items == work
    assert len(sent) == messages
    for batch in sent:
        assert batch.texts.keys() == {group_of(i.trajectory) for i in batch.items if isinstance(i, Generate)}
