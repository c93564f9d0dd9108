"""The example of docs/migration.md prints what the page shows, and its fragment is valid."""

from __future__ import annotations

import re
from pathlib import Path

from page_example import check_example
from ruamel.yaml import YAML

from rljob_core.spec import RolloutSpec

PAGE = (Path(__file__).parents[2] / "docs" / "migration.md").read_text(encoding="utf-8")


def test_the_example_prints_what_the_page_shows(tmp_path: Path) -> None:
    check_example(PAGE, tmp_path)


def test_the_fragment_is_valid_and_the_default_is_what_the_page_says() -> None:
    (fragment,) = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    rollout = YAML(typ="safe", pure=True).load(fragment)["rollout"]
    found = RolloutSpec.model_validate({**rollout, "pools": [{"name": "a"}]})
    assert found.progress_tokens == 256
    (default,) = re.findall(r"(\d+) if absent", fragment)
    assert RolloutSpec.model_validate({"pools": [{"name": "a"}]}).progress_tokens == int(default)
