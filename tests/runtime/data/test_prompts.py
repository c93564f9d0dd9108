"""Prompts: order, templates, files, and the model's tokenizer."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
from tokenizers import Regex, decoders, models, pre_tokenizers, processors
from tokenizers import Tokenizer as FastTokenizer

from rljob_core.config import JobConfig
from rljob_core.errors import SpecError
from rljob_core.spec import DataSpec, RLJobSpec
from rljob_runtime.data.prompts import PromptSource, open_prompts
from rljob_runtime.model.tokenizer import Tokenizer
from rljob_runtime.rewards.job_items import JobItems

SUMS = {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 2}
CHAT = "{% for m in messages %}<{{ m['role'] }}>{{ m['content'] }}{{ eos_token }}{% endfor %}<assistant>"


def source(model: Path | str = "", *, path: str = "spec.data", **data: Any) -> PromptSource:
    return PromptSource(DataSpec.model_validate(data), model_uri=str(model), path=path)


def sums(**data: Any) -> PromptSource:
    return source(dataset="chain_sum", **{"options": SUMS, **data})


def config(
    *, data: dict[str, Any], evaluation: dict[str, Any] | None, model: Path | str = "model"
) -> JobConfig:
    spec = RLJobSpec.model_validate(
        {
            "steps": 1,
            "model": {"uri": str(model)},
            "data": data,
            "evaluation": evaluation,
            "rollout": {"pools": [{"name": "local"}]},
        }
    )
    return JobConfig(
        namespace="default",
        job="job",
        uid="uid",
        spec=spec,
        weights_uri="w",
        checkpoint_uri="c",
        trainer_log_uri="t",
    )


def jsonl(file: Path, rows: list[dict[str, Any]]) -> str:
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(file)


def save_tokenizer(folder: Path, *, chat: str | None = None, begin: bool = False, **files: Any) -> Path:
    """A character-level tokenizer as transformers writes it."""
    folder.mkdir(exist_ok=True)
    words = ["<pad>", "<end>", "<s>", *"0123456789+-=<>aeiorstu ", "<turn>"]
    backend = FastTokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="<pad>"))
    backend.add_special_tokens(["<pad>", "<end>", "<s>", "<turn>"])
    backend.pre_tokenizer = pre_tokenizers.Split(Regex("."), behavior="isolated")
    backend.decoder = decoders.Fuse()
    if begin:
        backend.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 2)])
    backend.enable_truncation(4)
    backend.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": {"__type": "AddedToken", "content": "<s>", "special": True},
        "eos_token": "<end>",
        "pad_token": "<pad>",
    }
    if chat is not None:
        settings["chat_template"] = chat
    for name, content in {"tokenizer_config.json": settings, **files}.items():
        (folder / name).write_text(json.dumps(content), encoding="utf-8")
    return folder


# ---------------------------------------------------------------------------------------- reasoning-gym


def test_generated_prompts_continue_without_end_and_are_the_same_in_every_process() -> None:
    here = sums()
    indices = [0, 1, 499, 500, 501, 123_456, 7]
    program = (
        "import json, sys; from rljob_core.spec import DataSpec; from rljob_runtime.data.prompts import PromptSource;"
        "data, indices = json.loads(sys.argv[1]); s = PromptSource(DataSpec.model_validate(data), model_uri='');"
        "print(json.dumps([s.item(i) for i in indices]))"
    )
    data = {"dataset": "chain_sum", "options": SUMS}
    environment = {**os.environ, "PYTHONHASHSEED": "77"}
    done = subprocess.run(
        [sys.executable, "-c", program, json.dumps([data, indices])],
        capture_output=True,
        check=True,
        env=environment,
        text=True,
    )
    assert json.loads(json.dumps([here.item(i) for i in indices])) == json.loads(done.stdout)
    assert not done.stderr
    assert len({here.text(i) for i in range(2000)}) > 1000


def test_neighbouring_seeds_share_no_run_of_items() -> None:
    first, second = sums(seed=1), sums(seed=2)
    assert [first.text(i) for i in range(1, 9)] != [second.text(i) for i in range(8)]
    assert [first.text(i) for i in range(8)] != [second.text(i) for i in range(8)]


def test_the_template_sees_fields_and_metadata() -> None:
    prompts = sums(promptTemplate="{{ metadata.expression | replace(' ', '') }}= {{ question[:5] }}\n")
    item = prompts.item(3)
    assert prompts.text(3) == item["metadata"]["expression"].replace(" ", "") + "= State"


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("{{ qestion }}", r"'qestion' is undefined.*question, answer, metadata.*metadata\.expression"),
        ("{{ metadata.expr }}", r"no attribute 'expr'.*metadata\.expression"),
        ("{{ question", "line 1"),
        ("{{ question.__class__.__mro__ }}", "unsafe|undefined"),
        ("{{ question + 1 }}", "does not render"),
    ],
)
def test_a_template_that_does_not_fit_is_refused_at_start_up(template: str, message: str) -> None:
    with pytest.raises(SpecError, match=f"spec.data.promptTemplate: .*{message}"):
        sums(promptTemplate=template)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"dataset": "chain_sums"}, r"spec\.data\.dataset: .*did you mean chain_sum"),
        ({"options": {"max_term": 3}}, r"spec\.data\.options\.max_term: .*did you mean max_terms"),
        ({"options": {"max_terms": 1}}, r"spec\.data\.options: .*max_terms must be >= min_terms"),
        ({"options": {"max_terms": "two"}}, r"spec\.data\.options: "),
        ({"options": {"seed": 4}}, r"spec\.data\.options\.seed: write spec\.data\.seed"),
    ],
)
def test_a_wrong_task_names_what_to_write(data: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        source(**{"dataset": "chain_sum", "options": {}, **data})


def test_a_task_that_differs_between_processes_asks_for_one_hash_seed() -> None:
    program = (
        "from rljob_core.spec import DataSpec; from rljob_runtime.data.prompts import PromptSource;"
        "print(PromptSource(DataSpec(dataset='ransom_note'), model_uri='').text(5))"
    )

    def run(seed: str) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        return subprocess.run(
            [sys.executable, "-c", program], check=False, capture_output=True, env=environment, text=True
        )

    assert "PYTHONHASHSEED=0" in run("random").stderr
    assert run("0").stdout == run("0").stdout != ""


# ---------------------------------------------------------------------------------------- files


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_every_epoch_of_a_file_is_another_permutation(tmp_path: Path, kind: str) -> None:
    rows = [{"question": f"q{i}", "answer": str(i), "metadata": {"level": i % 3}} for i in range(20)]
    file = tmp_path / f"rows.{kind}"
    if kind == "jsonl":
        jsonl(file, rows)
    else:
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), file)
    data = {"source": kind, "dataset": str(file), "promptTemplate": "{{ question }} {{ metadata.level }}"}
    prompts, again, other = source(**data), source(**data), source(**data, seed=9)
    epochs = [[prompts.item(e * 20 + i)["answer"] for i in range(20)] for e in range(3)]
    assert all(sorted(epoch, key=int) == [row["answer"] for row in rows] for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 3
    assert [again.text(i) for i in range(60)] == [prompts.text(i) for i in range(60)]
    assert [other.text(i) for i in range(20)] != [prompts.text(i) for i in range(20)]
    number = int(prompts.item(5)["answer"])
    assert prompts.text(5) == f"q{number} {number % 3}"
    assert [entry.name for entry in tmp_path.iterdir()] == [file.name]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "there is no file"),
        ("", "is empty"),
        ("\n\n", "no rows"),
        ("{oops", "cannot be read as jsonl: line 1: "),
        ('{"question": "1"}\n\n[1]\n', "line 3: a row is an object"),
        ('{"question": "1", "answer": NaN}\n', "line 1: NaN is no JSON"),
    ],
)
def test_a_file_that_gives_no_items_is_refused(tmp_path: Path, content: str | None, message: str) -> None:
    file = tmp_path / "rows.jsonl"
    if content is not None:
        file.write_text(content, encoding="utf-8")
    with pytest.raises(SpecError, match=rf"spec\.data\.dataset: .*({message})"):
        source(source="jsonl", dataset=str(file))


def test_values_are_exactly_what_the_file_says(tmp_path: Path) -> None:
    """No row's values depend on those of other rows, and no field appears that a row does not have."""
    answers = [
        42,
        0.5,
        "007",
        "1.50",
        "true",
        "null",
        "2024-01-02",
        None,
        True,
        12345678901234567890,
        ["a", 1],
        {},
    ]
    rows = [{"question": str(number), "answer": answer} for number, answer in enumerate(answers)]
    rows += [{"question": str(len(rows)), "only here": [{"a": 1}, {"b": None}]}]
    for text in ("\n".join(map(json.dumps, rows)), json.dumps(rows)):
        file = tmp_path / "rows.jsonl"
        file.write_text("\ufeff" + text, encoding="utf-8")
        found = source(source="jsonl", dataset=str(file), promptTemplate="{{ question }}").items
        items = sorted(
            (found.item(number) for number in range(len(rows))), key=lambda row: int(row["question"])
        )
        assert [[*map(repr, row.items())] for row in items] == [[*map(repr, row.items())] for row in rows]


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("{{ context }}=", "'context' is null"),
        ("{{ context | trim }}=", "'context' is null"),
        ("{{ question ~ context }}", "'context' is null"),
        ("{{ metadata.source }}", "'metadata.source' is null"),
        ("{% if context is none %}a{% endif %}{% if context %}b{% endif %}", "a"),
        ("{{ context or 'a' }}{{ context | default('b') }}{{ metadata | tojson }}", 'ab{"source": null}'),
    ],
)
def test_null_is_never_written_into_a_prompt(tmp_path: Path, template: str, expected: str) -> None:
    row = {"question": "1", "context": None, "metadata": {"source": None}}
    data = {"source": "jsonl", "dataset": jsonl(tmp_path / "r.jsonl", [row]), "promptTemplate": template}
    if "is null" not in expected:
        assert source(**data).text(0) == expected
        return
    with pytest.raises(SpecError, match=expected):
        source(**data)


@pytest.mark.parametrize(
    ("message", "words"),
    [
        ({"question": None}, "'question' is null"),
        ({"messages": None}, "'messages' is null"),
        ({"messages": [{"role": "user", "content": None}]}, "has no content"),
    ],
)
def test_null_is_never_written_into_a_chat(tmp_path: Path, message: dict[str, Any], words: str) -> None:
    model = save_tokenizer(tmp_path / "model", chat=CHAT)
    file = jsonl(
        tmp_path / "q.jsonl", [{"question": "1", "messages": [{"role": "user", "content": "1"}]}, message]
    )
    prompts = source(model, source="jsonl", dataset=file, promptTemplate=None, onBadRow="Skip")
    assert prompts.left_out.startswith("1 of 2 rows are left out: ")
    assert prompts.left_out.endswith(f"{words} (row 2)")
    assert prompts.text(7) == "<user>1<end><assistant>"


def test_rows_that_are_left_out_have_no_number_in_any_process(tmp_path: Path) -> None:
    rows = [{"question": "1" * n, "answer": None if n % 3 else str(n)} for n in range(1, 31)]
    (tmp_path / "data").mkdir()
    jsonl(tmp_path / "data" / "a.jsonl", rows[:20])
    jsonl(tmp_path / "data" / "b.jsonl", rows[20:])
    data = {
        "source": "jsonl",
        "dataset": str(tmp_path / "data"),
        "onBadRow": "Skip",
        "filter": {"maxPromptTokens": 20},
    }
    job = config(data=data, evaluation=None, model=save_tokenizer(tmp_path / "model"))
    training, _ = open_prompts(job)
    assert training.left_out.startswith(
        "24 of 30 rows are left out: `answer`, which exact_match reads, is null (rows 1 of a.j"
    )
    assert "the prompt has more than 20 tokens (rows 1 of b.jsonl, 2 of b.jsonl," in training.left_out
    assert training.scan is not None
    training.encode = lambda text: pytest.fail(f"{text!r} is encoded again")
    assert max(training.scan.sizes) > 20
    assert training.tokens_above(20) == {}, "the filter has counted what is long"
    epoch = [training.item(index)["answer"] for index in range(6)]
    assert sorted(epoch, key=int) == ["3", "6", "9", "12", "15", "18"]
    scored = JobItems(job)
    assert [scored.item(index, held_out=False) for index in range(20)] == [
        training.item(index) for index in range(20)
    ]


def test_an_empty_parquet_file_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "rows.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"question": pyarrow.array([], pyarrow.string())}), file)
    with pytest.raises(SpecError, match="no rows"):
        source(source="parquet", dataset=str(file))


def test_files_take_no_options(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"spec\.data\.options: jsonl takes none: remove shuffle"):
        source(
            source="jsonl",
            dataset=jsonl(tmp_path / "r.jsonl", [{"question": "1"}]),
            options={"shuffle": True},
        )


# ---------------------------------------------------------------------------------------- evaluation


def test_held_out_prompts_are_the_training_data_under_another_seed() -> None:
    data = {"dataset": "chain_sum", "options": SUMS, "promptTemplate": "{{ metadata.expression }}"}
    training, held_out = open_prompts(config(data=data, evaluation={}))
    assert [training.text(i) for i in range(50)] != [held_out.text(i) for i in range(50)]
    assert held_out.text(0) == sums(seed=1_000_003, promptTemplate="{{ metadata.expression }}").text(0)
    assert all(held_out.sets[0].item(i)["metadata"]["num_terms"] == 2 for i in range(50))


def test_what_evaluation_gives_is_laid_over_the_data(tmp_path: Path) -> None:
    file = jsonl(tmp_path / "held-out.jsonl", [{"question": "why", "answer": "so"}])
    given = {"data": {"source": "jsonl", "dataset": file, "options": {}}}
    _, held_out = open_prompts(config(data={"dataset": "chain_sum", "options": SUMS}, evaluation=given))
    assert held_out.text(3) == "why"


def test_held_out_sets_are_numbered_one_after_the_other_and_take_over_what_they_do_not_give(
    tmp_path: Path,
) -> None:
    file = jsonl(tmp_path / "held-out.jsonl", [{"question": "why", "answer": "so"}])
    sets = [{"name": "own"}, {"name": "sums", "data": {"source": "reasoning-gym", "dataset": "chain_sum"}}]
    given = {"data": {"source": "jsonl", "dataset": file, "options": {}}, "sets": sets}
    job = config(data={"dataset": "chain_sum", "options": SUMS}, evaluation=given)
    _, held_out = open_prompts(job)
    assert held_out.asked == (1, 200)
    assert held_out.text(0) == "why"
    assert held_out.text(100_007) == source(dataset="chain_sum", seed=1_000_003).text(7)
    scored = JobItems(job)
    assert scored.item(0, held_out=True) == {"question": "why", "answer": "so"}
    assert scored.item(100_007, held_out=True) is None  # the scoring processes generate it
    assert [items.generated is None for items in scored.setup.held_out] == [True, False]


def test_errors_of_the_held_out_data_name_it() -> None:
    given = {"data": {"dataset": "chain_summ"}}
    with pytest.raises(SpecError, match=r"^spec\.evaluation\.data\.dataset: "):
        open_prompts(config(data={"dataset": "chain_sum"}, evaluation=given))


def test_rows_that_are_trained_on_are_not_held_out(tmp_path: Path) -> None:
    data = {"source": "jsonl", "dataset": jsonl(tmp_path / "r.jsonl", [{"question": "1"}])}
    with pytest.raises(SpecError, match=r"spec\.evaluation\.data\.dataset: give another file"):
        open_prompts(config(data=data, evaluation={}))


# ---------------------------------------------------------------------------------------- tokenizer


def test_without_a_template_the_tokenizer_renders_the_chat(tmp_path: Path) -> None:
    model = save_tokenizer(tmp_path / "model", chat=CHAT)
    rows = [{"question": "1+1"}, {"question": "1+1"}]
    prompts = source(model, source="jsonl", dataset=jsonl(tmp_path / "q.jsonl", rows), promptTemplate=None)
    assert prompts.text(0) == "<user>1+1<end><assistant>"
    chat = [{"role": "system", "content": "a"}, {"role": "user", "content": "2"}]
    file = jsonl(tmp_path / "m.jsonl", [{"messages": chat}])
    assert source(model, source="jsonl", dataset=file, promptTemplate=None).text(0) == (
        "<system>a<end><user>2<end><assistant>"
    )


@pytest.mark.parametrize(
    ("chat", "row", "message"),
    [
        (None, {"question": "1"}, r"spec\.data\.promptTemplate: .*this model has none"),
        (CHAT, {"prompt": "1"}, r"spec\.data\.dataset: .*`messages` or `question`; .* has prompt"),
        ("{{ raise_exception('no turns') }}", {"question": "1"}, "refuses the messages: no turns"),
        (
            "{{ 'Q: ' + messages[0].content }}",
            {"messages": [{"role": "assistant", "content": None, "tool_calls": [{}]}]},
            "refuses the messages: TypeError",
        ),
        (CHAT, {"messages": "Q"}, "`messages` must be a list of objects"),
    ],
)
def test_a_chat_that_cannot_be_rendered_is_refused(
    tmp_path: Path, chat: str | None, row: dict[str, Any], message: str
) -> None:
    model = save_tokenizer(tmp_path / "model", chat=chat)
    with pytest.raises(SpecError, match=message):
        source(model, source="jsonl", dataset=jsonl(tmp_path / "q.jsonl", [row]), promptTemplate=None)


@pytest.mark.parametrize("begin", [False, True])
def test_tokens_and_texts_are_those_of_transformers(tmp_path: Path, begin: bool) -> None:
    from transformers import AutoTokenizer

    folder = save_tokenizer(tmp_path / "model", chat=CHAT, begin=begin)
    theirs, ours = AutoTokenizer.from_pretrained(folder), Tokenizer(folder)
    for text in ("12+34=", "tree <end> house", ""):
        tokens = theirs(text, truncation=False)["input_ids"]
        assert ours.encode(text) == tokens
        assert ours.decode(tokens) == theirs.decode(tokens, skip_special_tokens=True)
    messages = [{"role": "user", "content": "1+1"}]
    expected = theirs.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert ours.render_chat(messages) == expected
    assert ours.end_token == theirs.eos_token_id
    assert ours.stop_tokens == {theirs.eos_token_id}


def test_a_begin_token_that_the_template_wrote_is_not_doubled(tmp_path: Path) -> None:
    tokenizer = Tokenizer(save_tokenizer(tmp_path / "model", begin=True))
    assert tokenizer.encode("1")[0] == 2
    assert tokenizer.encode("<s>1") == tokenizer.encode("1")


@pytest.mark.parametrize("name", ["generation_config.json", "config.json"])
def test_the_models_own_end_tokens_stop_too(tmp_path: Path, name: str) -> None:
    folder = save_tokenizer(tmp_path / "model", **{name: {"eos_token_id": [27, 1]}})
    assert Tokenizer(folder).stop_tokens == {1, 27}


def test_a_chat_template_may_have_its_own_file(tmp_path: Path) -> None:
    folder = save_tokenizer(tmp_path / "model")
    (folder / "chat_template.jinja").write_text("{{ messages[0]['content'] }}!", encoding="utf-8")
    assert Tokenizer(folder).render_chat([{"role": "user", "content": "1"}]) == "1!"


@pytest.mark.parametrize(("name", "content"), [("other.json", "{}"), ("tokenizer.json", "{")])
def test_a_folder_without_a_readable_tokenizer_is_refused(tmp_path: Path, name: str, content: str) -> None:
    (tmp_path / name).write_text(content, encoding="utf-8")
    with pytest.raises(SpecError, match=r"spec\.model\.uri: .*tokenizer\.json"):
        Tokenizer(tmp_path)


def test_reading_prompts_loads_no_heavy_library(tmp_path: Path) -> None:
    model = save_tokenizer(tmp_path / "model")
    program = (
        "import sys; import rljob_runtime.data.prompts, rljob_runtime.rewards.registry, rljob_runtime.rewards.process;"
        "from rljob_runtime.model.tokenizer import Tokenizer; Tokenizer(sys.argv[1]).encode('1');"
        "heavy = {'torch', 'transformers', 'datasets', 'reasoning_gym', 'math_verify', 'sympy', 'matplotlib'};"
        "sys.exit(str(heavy & set(sys.modules)) if heavy & set(sys.modules) else 0)"
    )
    subprocess.run([sys.executable, "-c", program, str(model)], check=True)
