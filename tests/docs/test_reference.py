"""The reference pages are what the code says, leave nothing out, and say something of everything."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from invocation import rljob

from rljob_cli.manifest.fields import built_in_options, tree
from rljob_cli.reference.command import pages
from rljob_cli.reference.metrics_page import meanings_of
from rljob_core.messages import StepMetrics
from rljob_core.messages.metrics import PoolSpeed, StepStats
from rljob_core.records import PipelineSet
from rljob_runtime.engines.registry import ENGINES
from rljob_runtime.training.losses.registry import LOSSES
from rljob_runtime.training.registry import BACKENDS

CHECKOUT = Path(__file__).parents[2]
DOCS = CHECKOUT / "docs"


@pytest.mark.parametrize("name", ["fields.md", "options.md", "metrics.md"])
def test_a_page_is_as_the_code_has_it(name: str) -> None:
    assert (DOCS / "reference" / name).read_text(encoding="utf-8") == pages()[name], (
        "write it again: make crds"
    )


def test_check_says_which_page_is_old_and_writes_nothing(tmp_path: Path) -> None:
    assert rljob("reference", "--output", tmp_path).code == 0
    assert rljob("reference", "--output", tmp_path, "--check").code == 0
    (tmp_path / "options.md").write_text("old")
    (tmp_path / "metrics.md").unlink()
    ended = rljob("reference", "--output", tmp_path, "--check")
    assert ended.code == 1
    assert [line.rpartition("/")[2] for line in ended.errors] == [
        "metrics.md: is not as the code has it",
        "options.md: is not as the code has it",
        "to write them again: make crds",
    ] or len(ended.errors) == 3
    assert (tmp_path / "options.md").read_text() == "old"


def test_every_key_of_a_metrics_line_has_a_meaning() -> None:
    for kind in (StepMetrics, StepStats, PoolSpeed, PipelineSet):
        keys = {field.name for field in dataclasses.fields(kind)} - {"kind"}
        assert keys - meanings_of(kind).keys() == set(), kind.__name__


def test_every_field_and_option_is_on_a_page() -> None:
    fields, options = pages()["fields.md"], pages()["options.md"]
    for field in tree().walk():
        if field.path.startswith(("spec.", "status.")) and not field.owner:
            assert f"`{field.name}`" in fields
    for noun, registry in (("Engine", ENGINES), ("Backend", BACKENDS)):
        for name, model in built_in_options(registry).items():
            (section,) = [text for text in options.split("\n## ") if text.startswith(f"{noun} {name}\n")]
            for key, option in model.model_fields.items():
                assert f"| `{option.alias or key}` |" in section


def test_the_page_of_losses_has_each_of_ours() -> None:
    page = (DOCS / "losses.md").read_text(encoding="utf-8")
    ours = [name for name, offering in LOSSES.offers().items() if offering == ["rljob itself"]]
    assert [
        line.removeprefix("## ") for line in page.splitlines() if line.removeprefix("## ") in ours
    ] == ours
