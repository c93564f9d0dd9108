"""Chats become the tokens of `apply_chat_template(tokenize=True)`, by templates of the kinds that models have."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, decoders, models, pre_tokenizers, processors
from tokenizers import Tokenizer as FastTokenizer
from transformers import PreTrainedTokenizerFast

from rljob_core.errors import SpecError
from rljob_core.spec import DataSpec
from rljob_runtime.data.prompts import chat_tokenizer, prompt_encoder
from rljob_runtime.model.tokenizer import Tokenizer

FAMILIES = {
    "chatml": """
        {%- for message in messages %}
        {{- '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}
        {%- endfor %}
        {%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}""",
    "llama3": """
        {{- bos_token }}
        {%- set date = date_string if date_string is defined else strftime_now('%Y') %}
        {{- '<|start_header_id|>system<|end_header_id|>\n\nToday: ' + date + '<|eot_id|>' }}
        {%- for message in messages %}
        {{- '<|start_header_id|>' ~ message.role ~ '<|end_header_id|>\n\n' ~ message.content | trim ~ '<|eot_id|>' }}
        {%- endfor %}
        {%- if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}""",
    "gemma": """
        {{- bos_token }}
        {%- for message in messages %}
        {%- set role = 'model' if message['role'] == 'assistant' else message['role'] %}
        {{- '<start_of_turn>' + role + '\n' + message['content'] | trim + '<end_of_turn>\n' }}
        {%- endfor %}
        {%- if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}""",
    "mistral": """
        {{- bos_token }}
        {%- for message in messages %}
        {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('alternate') }}{% endif %}
        {%- if message['role'] == 'user' %}{{ '[INST] ' + message['content'] + ' [/INST]' }}
        {%- else %}{{ ' ' + message['content'] + eos_token }}{% endif %}
        {%- endfor %}""",
    "llama2": """
        {%- for message in messages if message.role != 'assistant' or message.content is not none %}
        {%- if message.role == 'user' %}{{ bos_token + '[INST] <<SYS>>\n<</SYS>>\n\n' + message.content + ' [/INST]' }}
        {%- else %}{{ ' ' ~ message.content ~ ' ' ~ eos_token }}{% endif %}
        {%- endfor %}""",
    "qwen": """
        {%- if tools %}{{ '<|im_start|>system\n' }}
        {%- for tool in tools %}{{ tool | tojson }}{% endfor %}{{ '<|im_end|>\n' }}{% endif %}
        {%- set ns = namespace(last=messages | length - 1) %}
        {%- for message in messages %}
        {%- set content = message.content if message.content is string else '' %}
        {%- if '</think>' in content and loop.index0 < ns.last %}
        {%- set content = content.split('</think>')[-1] %}
        {%- endif %}
        {{- '<|im_start|>' + message.role + '\n' + content + '<|im_end|>\n' }}
        {%- endfor %}
        {%- if add_generation_prompt %}
        {{- '<|im_start|>assistant\n' }}
        {%- if enable_thinking is defined and enable_thinking is false %}{{ '<think>\n\n</think>\n\n' }}{% endif %}
        {%- endif %}""",
    "deepseek": """
        {%- if not add_generation_prompt is defined %}{% set add_generation_prompt = false %}{% endif %}
        {{- bos_token }}
        {%- for message in messages %}
        {%- if message['role'] == 'user' %}{{ '<|User|>' + message['content'] }}{% endif %}
        {%- if message['role'] == 'assistant' and message['content'] is not none %}
        {{- '<|Assistant|>' + message['content'].split('</think>')[-1] + eos_token }}
        {%- endif %}
        {%- endfor %}
        {%- if add_generation_prompt %}{{ '<|Assistant|><think>\n' }}{% endif %}""",
    "phi": """
        {%- for message in messages %}
        {%- if message.content is none %}{% continue %}{% endif %}
        {{- '<|' + message.role + '|>\n' + message.content + '<|end|>\n' }}
        {%- endfor %}
        {%- if add_generation_prompt %}{{ '<|assistant|>\n' }}{% else %}{{ eos_token }}{% endif %}""",
    "smollm": """
        {%- for message in messages %}
        {%- if message.role == 'assistant' %}
        {%- generation %}{{ '<|im_start|>assistant\n' ~ message.content ~ '<|im_end|>\n' }}{% endgeneration %}
        {%- else %}{{ '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}{% endif %}
        {%- endfor %}
        {%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}""",
    "harmony": """
        {%- macro turn(role, channel, text) %}{{ '<|start|>' + role }}
        {%- if channel %}{{ '<|channel|>' + channel }}{% endif %}{{ '<|message|>' + text + '<|end|>' }}{% endmacro %}
        {{- turn('system', '', 'Reasoning: ' + (reasoning_effort or 'medium') + strftime_now(' %Y')) }}
        {%- for message in messages %}
        {%- if message.role == 'user' %}{{ turn('user', '', message.content) }}
        {%- else %}{{ turn('assistant', 'final', message.content or '') }}{% endif %}
        {%- endfor %}
        {%- if add_generation_prompt %}{{ '<|start|>assistant' }}{% endif %}""",
}
TURNS = (
    "start_header_id",
    "end_header_id",
    "eot_id",
    "User",
    "Assistant",
    "user",
    "assistant",
    "end",
    "start",
    "channel",
)
MARKS = [
    *(
        "<s>",
        "</s>",
        "[INST]",
        "[/INST]",
        "<start_of_turn>",
        "<end_of_turn>",
        "<think>",
        "</think>",
        "<|im_start|>",
    ),
    *("<|im_end|>", "<|message|>", *(f"<|{turn}|>" for turn in TURNS)),
]
CHAT = [
    {"role": "user", "content": "Is 2 < 3 & é?"},
    {"role": "assistant", "content": "<think>hm</think>Yes."},
    {"role": "user", "content": " And 5? "},
]
NULL = [CHAT[0], {"role": "assistant", "content": None}, CHAT[2]]
TAKE_NO_NULL = {"chatml", "mistral"}
"""Whose templates add a text and a null, which is a TypeError."""


def reference(
    folder: Path, *, template: str | None = None, added: str = "<s> $A </s>"
) -> PreTrainedTokenizerFast:
    """Write a tokenizer of bytes into a folder, as transformers does."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = FastTokenizer(models.BPE({text: number for number, text in enumerate(alphabet)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in MARKS])
    ends = [(text, backend.token_to_id(text)) for text in ("<s>", "</s>")]
    backend.post_processor = processors.TemplateProcessing(single=added, special_tokens=ends)
    made = PreTrainedTokenizerFast(
        tokenizer_object=backend, bos_token="<s>", eos_token="</s>", chat_template=template
    )
    made.save_pretrained(folder)
    return made


@pytest.mark.parametrize("family", FAMILIES)
def test_a_chat_has_the_tokens_that_transformers_gives_it(family: str, tmp_path: Path) -> None:
    theirs = reference(tmp_path, template=FAMILIES[family].strip())
    for arguments in ({}, {"enable_thinking": False, "reasoning_effort": "low", "date_string": "1 May 2026"}):
        data = DataSpec(source="jsonl", dataset="x", prompt_template=None, chat_template_kwargs=arguments)
        ours = chat_tokenizer(tmp_path, data)
        encode = prompt_encoder(data, ours)
        for chat in (CHAT, CHAT[:1], NULL):
            given: dict[str, Any] = {"add_generation_prompt": True, "return_dict": False, **arguments}
            if chat is NULL and family in TAKE_NO_NULL:
                with pytest.raises(SpecError, match="refuses the messages"):
                    ours.render_chat(chat)
                continue
            expected = theirs.apply_chat_template(chat, tokenize=True, **given)
            assert encode(ours.render_chat(chat)) == expected


def test_a_text_begins_as_the_tokenizer_begins_one_and_never_ends(tmp_path: Path) -> None:
    reference(tmp_path)
    tokenizer = Tokenizer(tmp_path)
    begin, end = map(tokenizer.encode_piece, ("<s>", "</s>"))
    assert tokenizer.encode("2+2=") == begin + tokenizer.encode_piece("2+2=")
    assert tokenizer.encode("<s>2+2=") == tokenizer.encode("2+2=")
    assert tokenizer.encode("2+2=</s>")[-1:] == end  # as it is written

    reference(tmp_path, added="$A </s>")
    assert Tokenizer(tmp_path).encode("2") == tokenizer.encode_piece("2")


def test_a_reward_reads_special_tokens_that_the_model_wrote(tmp_path: Path) -> None:
    reference(tmp_path)
    tokenizer = Tokenizer(tmp_path)
    response = tokenizer.encode_piece("<think>hm</think>7</s>")
    assert tokenizer.completion(response, skip_special_tokens=True) == "hm7"
    assert tokenizer.completion(response, skip_special_tokens=False) == "<think>hm</think>7"
    assert tokenizer.completion(response[:-2], skip_special_tokens=False) == "<think>hm</think>"


def test_tools_have_a_template_of_their_own(tmp_path: Path) -> None:
    templates = {"default": "{{ messages[0].content }}", "tool_use": "{{ tools | tojson(indent=2) }}"}
    theirs = reference(tmp_path, template=templates)  # type: ignore[arg-type]
    ours, tools = Tokenizer(tmp_path), [{"type": "function", "function": {"name": "add<"}}]
    for given in (tools, None):
        expected = theirs.apply_chat_template(CHAT, tools=given, tokenize=False, add_generation_prompt=True)
        assert ours.render_chat(CHAT, tools=given) == expected


def test_a_chat_s_own_arguments_cannot_be_replaced(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"chatTemplateKwargs: messages cannot be set"):
        chat_tokenizer(tmp_path, DataSpec(dataset="x", chat_template_kwargs={"messages": []}))
