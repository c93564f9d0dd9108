"""The example of docs/weights.md prints what the page shows, and its fragments are valid."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from page_example import check_example
from ruamel.yaml import YAML

from rljob_core.spec import WeightsSpec

PAGE = (Path(__file__).parents[2] / "docs" / "weights.md").read_text(encoding="utf-8")


def test_the_example_prints_what_the_page_shows(tmp_path: Path) -> None:
    check_example(PAGE, tmp_path)


@pytest.mark.parametrize("fragment", re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL))
def test_a_fragment_is_valid(fragment: str) -> None:
    found = WeightsSpec.model_validate(YAML(typ="safe", pure=True).load(fragment)["weights"])
    assert found != WeightsSpec()
