"""The example of docs/sandbox.md prints what the page shows, and its fragment is valid."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from page_example import check_example
from ruamel.yaml import YAML

from rljob_core.spec import RLJobSpec
from rljob_runtime.sandbox import LocalSandbox, SandboxUnavailable

PAGE = (Path(__file__).parents[2] / "docs" / "sandbox.md").read_text(encoding="utf-8")


def test_the_example_prints_what_the_page_shows(tmp_path: Path) -> None:
    try:
        LocalSandbox()
    except SandboxUnavailable as error:
        if os.environ.get("RLJOB_E2E_REQUIRED"):
            raise
        pytest.skip(str(error))
    check_example(PAGE, tmp_path)


def test_the_fragment_is_valid() -> None:
    (fragment,) = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    rest = {"steps": 1, "model": {"uri": "/models/any"}, "rollout": {"pools": [{"name": "cpu"}]}}
    spec = RLJobSpec.model_validate({**rest, **YAML(typ="safe", pure=True).load(fragment)})
    assert spec.reward.functions == ["python_tests"]
