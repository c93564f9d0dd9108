"""The examples of docs/data-and-rewards.md do what the page says."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from rljob_core.spec import DataSpec, RewardSpec
from rljob_runtime.data.prompts import PromptSource
from rljob_runtime.rewards.registry import resolve

PAGE = Path(__file__).parents[2] / "docs" / "data-and-rewards.md"


@pytest.fixture
def blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The page's code blocks by language or file name; those with a name are written out."""
    found = {}
    for name, language, code in re.findall(
        r"(?:`([\w.]+)`[^`\n]*(?:\n[^`\n]*)?:\n\n)?```(\w+)\n(.*?)```",
        PAGE.read_text(encoding="utf-8"),
        re.DOTALL,
    ):
        found[name or language] = code
        if name:
            (tmp_path / name).write_text(code, encoding="utf-8")
    assert {"capitals.jsonl", "brevity.py", "try_it.py", "text", "yaml"} <= set(found)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return found


def test_the_example_prints_what_the_page_shows(blocks: dict[str, str]) -> None:
    done = subprocess.run([sys.executable, "try_it.py"], capture_output=True, text=True, check=True)
    assert done.stdout == blocks["text"]


def test_the_manifest_fragment_names_the_same_data_and_rewards(blocks: dict[str, str]) -> None:
    fragment = YAML(typ="safe", pure=True).load(blocks["yaml"])
    prompts = PromptSource(DataSpec.model_validate(fragment["data"]), model_uri="")
    assert prompts.text(0) in {
        f"Q: What is the capital of {land}?\nA:" for land in ("France", "Peru", "Mongolia")
    }
    names = RewardSpec.model_validate(fragment["reward"]).functions
    assert [name for name, _ in resolve(names, prompts)] == ["exact_match", "brevity:brevity"]
