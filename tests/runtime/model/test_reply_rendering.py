"""Messages that answer the model are rendered by its chat template, without the messages before them."""

from __future__ import annotations

from pathlib import Path

import pytest

from rljob_contract.tiny_models import tiny_model
from rljob_core.errors import SpecError
from rljob_runtime.model.tokenizer import Tokenizer

CHATML = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}<end>\n{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
HINT = [{"role": "user", "content": "lower"}]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tiny_model(tmp_path / "model")


def with_template(folder: Path, template: str) -> Tokenizer:
    (folder / "chat_template.jinja").write_text(template)
    return Tokenizer(folder)


def test_the_models_message_is_closed_by_its_own_last_token_or_by_the_template(folder: Path) -> None:
    tokenizer = with_template(folder, CHATML)
    (end,) = tokenizer.stop_tokens
    assert tokenizer.render_reply(HINT, last=end) == "\n<user>lower<end>\n<assistant>"
    assert tokenizer.render_reply(HINT, last=5) == "<end>\n<user>lower<end>\n<assistant>"


def test_the_pieces_are_the_whole_chat(folder: Path) -> None:
    tokenizer = with_template(folder, CHATML)
    (end,) = tokenizer.stop_tokens
    asked = [{"role": "user", "content": "guess"}]
    pieces = tokenizer.render_chat(asked) + "7<end>" + tokenizer.render_reply(HINT, last=end)
    assert pieces == tokenizer.render_chat([*asked, {"role": "assistant", "content": "7"}, *HINT])


def test_a_message_may_have_any_character(folder: Path) -> None:
    tokenizer = with_template(folder, CHATML)
    said = "a\ue000b\ue001c"
    reply = tokenizer.render_reply([{"role": "user", "content": said}], last=5)
    assert reply == f"<end>\n<user>{said}<end>\n<assistant>"


def test_templates_that_cannot_continue_are_refused(folder: Path) -> None:
    with pytest.raises(SpecError, match="leaves out an earlier message"):
        with_template(folder, "{{ messages[-1].content }}").render_reply(HINT, last=0)
    (folder / "chat_template.jinja").unlink()
    with pytest.raises(SpecError, match="this model has none"):
        Tokenizer(folder).render_reply(HINT, last=0)
