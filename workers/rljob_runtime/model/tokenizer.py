"""A model's tokenizer and chat template, read from its Hugging Face folder without transformers or torch.

Loading takes milliseconds and a few megabytes, so the coordinator, rollout and reward processes each load their own.
The `tokenizers` library encodes and decodes, as in the fast tokenizers of `transformers.AutoTokenizer`.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import jinja2
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer as FastTokenizer

from rljob_core.errors import SpecError

_ASSISTANT = f"\ue000{secrets.token_hex(16)}\ue001"
"""Stands for what the model said, which is never rendered nor tokenized again; no message can contain it."""
_ROLES = ("bos_token", "eos_token", "pad_token", "unk_token", "sep_token", "cls_token", "mask_token")


class Tokenizer:
    """Turns text into token ids and back, and chats into prompts.

    Args:
        folder: the model's folder, with `tokenizer.json` and the files beside it.

    Attributes:
        special_tokens: texts by role (`bos_token`, `eos_token`, …), which the chat template can use.
        stop_tokens: ids that end a response: the end-of-sequence token, and those in the model's generation settings.

    Raises:
        SpecError: the folder has no `tokenizer.json`, or a file in it cannot be read.
    """

    def __init__(self, folder: str | Path) -> None:
        folder = Path(folder)
        source = folder / "tokenizer.json"
        if not source.is_file():
            raise SpecError(
                "spec.model.uri",
                f"{folder} has no tokenizer.json: save a fast tokenizer there with transformers' save_pretrained",
            )
        try:
            self._backend = FastTokenizer.from_file(str(source))
        except Exception as error:  # the library raises bare Exception
            raise SpecError("spec.model.uri", f"{source} does not load: {error}") from error
        # Engines pad by themselves, and a prompt must not be cut silently.
        self._backend.no_padding()
        self._backend.no_truncation()
        settings = _read_json(folder / "tokenizer_config.json")
        self.special_tokens = {role: text for role in _ROLES if (text := _token_text(settings.get(role)))}
        self.stop_tokens = self._stop_tokens(folder)
        self._chat_source = _chat_template(folder, settings)

    def encode(self, text: str) -> list[int]:
        """Return the token ids of a prompt, with the special tokens that the model's tokenizer puts around a text.

        A text that starts with the begin-of-sequence token already (chat templates write it) gets no second one.
        """
        begin = self.special_tokens.get("bos_token")
        written = bool(begin) and text.startswith(str(begin))
        ids: list[int] = self._backend.encode(text, add_special_tokens=not written).ids
        return ids

    def encode_piece(self, text: str) -> list[int]:
        """Return the token ids of a text that continues others, without special tokens around it."""
        ids: list[int] = self._backend.encode(text, add_special_tokens=False).ids
        return ids

    def decode(self, tokens: Iterable[int]) -> str:
        """Return the text of token ids (any integers, also a NumPy array), without special tokens."""
        ids = tokens.tolist() if hasattr(tokens, "tolist") else list(tokens)
        text: str = self._backend.decode(ids, skip_special_tokens=True)
        return text

    def name(self, token: int) -> str:
        """Return how the vocabulary writes a token; `<id>` for an id that it does not have."""
        return self._backend.id_to_token(token) or f"<{token}>"

    @property
    def end_token(self) -> int | None:
        """Id of the end-of-sequence token; None if there is none."""
        text = self.special_tokens.get("eos_token")
        return None if text is None else self._backend.token_to_id(text)

    def uses(self, special: str) -> bool:
        """Whether a special token has a role, or the chat template writes it."""
        return special in self.special_tokens.values() or special in (self._chat_source or "")

    def check_chat(self) -> jinja2.Template:
        """The chat template.

        Raises:
            SpecError: the model has none.
        """
        if self._chat is None:
            raise SpecError(
                "spec.data.promptTemplate",
                "null asks for the tokenizer's chat template, and this model has none: write a template",
            )
        return self._chat

    def render_chat(
        self, messages: Sequence[Mapping[str, Any]], *, tools: Sequence[Mapping[str, Any]] | None = None
    ) -> str:
        """Render the prompt for the assistant's next turn after `messages` (each with `role` and `content`).

        Args:
            messages: of the chat.
            tools: that the assistant may call, as JSON schemas of functions.

        Raises:
            SpecError: the model has no chat template, or the template refuses the messages.
        """
        chat = self.check_chat()
        try:
            return chat.render(
                messages=messages,
                tools=None if tools is None else list(tools),
                add_generation_prompt=True,
                **self.special_tokens,
            )
        except jinja2.TemplateError as error:
            raise SpecError(
                "spec.data", f"the model's chat template refuses the messages: {error}"
            ) from error

    def render_reply(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        last: int,
        tools: Sequence[Mapping[str, Any]] | None = None,
    ) -> str:
        """Render what follows the assistant's message when `messages` answer it, up to the assistant's next one.

        Args:
            messages: at least one, each with `role` and `content`.
            last: the last token of the assistant's message, which may be the one that ends messages.
            tools: of the chat, as in `render_chat`.

        Raises:
            SpecError: as `render_chat`; or the template does not append the messages to the ones before.
        """
        before = [{"role": "user", "content": "."}, {"role": "assistant", "content": _ASSISTANT}]
        whole = self.render_chat([*before, *messages], tools=tools)
        _, found, behind = whole.rpartition(_ASSISTANT)
        if not found:
            raise SpecError(
                "spec.rollout.environment",
                "the model's chat template leaves out an earlier message: return text",
            )
        ending = self.name(last)
        return behind.removeprefix(ending) if last in self.stop_tokens else behind

    @cached_property
    def _chat(self) -> jinja2.Template | None:
        """The compiled template, in the environment that transformers gives to chat templates."""
        if self._chat_source is None:
            return None
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols]
        )
        # Jinja's own filter would escape HTML characters.
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _raise_exception
        return environment.from_string(self._chat_source)

    def _stop_tokens(self, folder: Path) -> frozenset[int]:
        """The end-of-sequence token's id and those of generation_config.json (or else config.json)."""
        stop = set[int]() if self.end_token is None else {self.end_token}
        for name in ("generation_config.json", "config.json"):
            ids = _read_json(folder / name).get("eos_token_id")
            if ids is not None:
                stop.update(ids if isinstance(ids, list) else [ids])
                break
        return frozenset(stop)


def _chat_template(folder: Path, settings: Mapping[str, Any]) -> str | None:
    """Source of the chat template: its own file, or the settings' entry (one template, or several with a `default`)."""
    file = folder / "chat_template.jinja"
    if file.is_file():
        return file.read_text(encoding="utf-8")
    template = settings.get("chat_template")
    if isinstance(template, list):
        return {entry["name"]: entry["template"] for entry in template}.get("default")
    return template


def _read_json(file: Path) -> dict[str, Any]:
    """A JSON object; empty where the file does not exist."""
    if not file.is_file():
        return {}
    try:
        value: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise SpecError("spec.model.uri", f"{file} is not JSON: {error}") from error
    return value


def _token_text(token: Any) -> str | None:
    """A special token's text; older tokenizers describe it by an object."""
    text = token.get("content") if isinstance(token, dict) else token
    return text if isinstance(text, str) else None


def _to_json(value: Any, *, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)
