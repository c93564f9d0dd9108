"""A model's tokenizer and chat template, read from its Hugging Face folder without transformers or torch.

Loading takes milliseconds and a few megabytes, so the coordinator, rollout and reward processes each load their own.
The `tokenizers` library encodes and decodes, as in the fast tokenizers of `transformers.AutoTokenizer`; chats become
the tokens of its `apply_chat_template(tokenize=True)` (`tests/runtime/model/test_chat_templates.py`).
"""

from __future__ import annotations

import operator
import secrets
from collections.abc import Iterable, Mapping, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any

import jinja2
from tokenizers import AddedToken
from tokenizers import Tokenizer as FastTokenizer

from rljob_core.errors import SpecError
from rljob_runtime.model.folder_files import check_inside, read_settings, understood
from rljob_runtime.model.templates import LimitedTemplate, chat_environment
from rljob_runtime.storage.plain_files import read_plain

_ASSISTANT = f"\ue000{secrets.token_hex(16)}\ue001"
"""Stands for what the model said, which is never rendered nor tokenized again; no message can contain it."""
_LARGEST_TEMPLATE = 16 << 20
_ROLES = ("bos_token", "eos_token", "pad_token", "unk_token", "sep_token", "cls_token", "mask_token")


class Tokenizer:
    """Turns text into token ids and back, and chats into prompts.

    Args:
        folder: the model's folder, with `tokenizer.json` and the files beside it.
        template_arguments: `spec.data.chatTemplateKwargs`, which every chat is rendered with.

    Attributes:
        special_tokens: texts by role (`bos_token`, `eos_token`, …), which the chat template can use.
        stop_tokens: ids that end a response: the end-of-sequence token, and those in the model's generation settings.

    Raises:
        SpecError: the folder has no `tokenizer.json`, or a file in it cannot be read.
    """

    def __init__(self, folder: str | Path, *, template_arguments: Mapping[str, Any] | None = None) -> None:
        folder = Path(folder)
        check_inside(folder)
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
        with understood(folder):
            settings = _settings(folder)
            self.special_tokens = {role: text for role in _ROLES if (text := _token_text(settings.get(role)))}
            self._backend.add_special_tokens(self._undeclared(settings))
            self.stop_tokens = self._stop_tokens(folder)
            self._beginning = self._tokens_before()
            self._templates = _chat_templates(folder, settings)
        self._compiled = dict[str, LimitedTemplate]()
        self._template_arguments = dict(template_arguments or {})

    def encode(self, text: str) -> list[int]:
        """Return the token ids of a text that the model goes on with: after the special tokens that begin one.

        A text that starts with the begin-of-sequence token already gets no second one, and what a tokenizer puts
        behind a text (the end-of-sequence token, for training on documents) is left out: the model should go on.
        """
        begin = self.special_tokens.get("bos_token")
        written = bool(begin) and text.startswith(str(begin))
        return self.encode_piece(text) if written else [*self._beginning, *self.encode_piece(text)]

    def encode_piece(self, text: str) -> list[int]:
        """Return the token ids of a rendered chat, or of a text that continues others: nothing is put around it."""
        # Other than `encode`, this lets other threads run, and calculates no offsets: half the time for a long text.
        (encoding,) = self._backend.encode_batch_fast([text], add_special_tokens=False)
        ids: list[int] = encoding.ids
        return ids

    def decode(self, tokens: Iterable[int], *, skip_special_tokens: bool = True) -> str:
        """Return the text of token ids (any integers, also a NumPy array), by default without special tokens."""
        ids = tokens.tolist() if hasattr(tokens, "tolist") else list(tokens)
        text: str = self._backend.decode(ids, skip_special_tokens=skip_special_tokens)
        return text

    def completion(self, tokens: Iterable[int], *, skip_special_tokens: bool) -> str:
        """Return a response's text as rewards read it.

        Args:
            tokens: of the response.
            skip_special_tokens: `spec.reward.skipSpecialTokens`. If False, those that the model wrote are in the text,
                but for the last token if it is one that ended the response.
        """
        ids = [int(token) for token in tokens]
        if not skip_special_tokens and ids and ids[-1] in self.stop_tokens:
            ids.pop()
        return self.decode(ids, skip_special_tokens=skip_special_tokens)

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
        return special in self.special_tokens.values() or special in "".join(self._templates.values())

    def check_chat(self) -> None:
        """Check that the model has a chat template.

        Raises:
            SpecError: it has none.
        """
        self._template(has_tools=False)

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
        arguments = {
            "documents": None,
            "tools": None,
            **self.special_tokens,
            **self._template_arguments,
            "messages": messages,
            "add_generation_prompt": True,
        }
        if tools is not None:
            arguments["tools"] = list(tools)
        try:
            return self._template(has_tools=arguments["tools"] is not None).render(arguments)
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

    def _template(self, *, has_tools: bool) -> LimitedTemplate:
        """The template that renders chats, with tools or without."""
        name = "tool_use" if has_tools and "tool_use" in self._templates else "default"
        if name not in self._templates:
            raise SpecError(
                "spec.data.promptTemplate",
                "null asks for the tokenizer's chat template, and this model has none: write a template",
            )
        if name not in self._compiled:
            self._compiled[name] = LimitedTemplate(chat_environment, self._templates[name])
        return self._compiled[name]

    def _undeclared(self, settings: Mapping[str, Any]) -> list[AddedToken]:
        """Special tokens of the settings that are words of the vocabulary, and not special in tokenizer.json."""
        known = {token.content for token in self._backend.get_added_tokens_decoder().values()}
        texts = list[str | None](self.special_tokens.values())
        for field in ("extra_special_tokens", "additional_special_tokens"):
            given = settings.get(field) or []
            texts += map(_token_text, given.values() if isinstance(given, dict) else given)
        return [
            AddedToken(text, special=True, normalized=False)
            for text in dict.fromkeys(texts)
            if text and text not in known and self._backend.token_to_id(text) is not None
        ]

    def _tokens_before(self) -> list[int]:
        """What the tokenizer puts before a text."""
        encoding = self._backend.encode("a")
        before = takewhile(lambda pair: pair[1], zip(encoding.ids, encoding.special_tokens_mask, strict=True))
        return [number for number, _ in before]

    def _stop_tokens(self, folder: Path) -> frozenset[int]:
        """The end-of-sequence token's id and those of generation_config.json (or else config.json)."""
        stop = set[int]() if self.end_token is None else {self.end_token}
        for name in ("generation_config.json", "config.json"):
            ids = _read_json(folder / name).get("eos_token_id")
            if ids is not None:
                stop.update(map(operator.index, ids if isinstance(ids, list) else [ids]))
                break
        return frozenset(stop)


def _settings(folder: Path) -> Mapping[str, Any]:
    """tokenizer_config.json; older models have the special tokens in a file of their own."""
    settings = _read_json(folder / "tokenizer_config.json")
    if "added_tokens_decoder" in settings:
        return settings
    return {**_read_json(folder / "special_tokens_map.json"), **settings}


def _chat_templates(folder: Path, settings: Mapping[str, Any]) -> dict[str, str]:
    """Sources of the chat templates by name: files of their own, or the settings' entry (one, or several by name)."""
    files = {file.stem: file for file in (folder / "additional_chat_templates").glob("*.jinja")}
    if (file := folder / "chat_template.jinja").is_file():
        files["default"] = file
    if files:
        return {name: read_plain(file, limit=_LARGEST_TEMPLATE).decode() for name, file in files.items()}
    given = settings.get("chat_template") or _read_json(folder / "chat_template.json").get("chat_template")
    if isinstance(given, list):
        given = {entry["name"]: entry["template"] for entry in given}
    templates = given if isinstance(given, dict) else {} if given is None else {"default": given}
    if not all(isinstance(text, str) for text in templates.values()):
        raise TypeError("a chat template is no text")
    return templates


def _read_json(file: Path) -> Mapping[str, Any]:
    """A JSON object; empty where the file does not exist."""
    return read_settings(file) if file.is_file() else {}


def _token_text(token: Any) -> str | None:
    """A special token's text; older tokenizers describe it by an object."""
    text = token.get("content") if isinstance(token, dict) else token
    return text if isinstance(text, str) else None
