"""The lists of what images contain: whole, valid, and the same when they are made again."""

from __future__ import annotations

import json
import re
import subprocess
import tomllib
from pathlib import Path

import pytest
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]


def make(folder: Path) -> str:
    """The operator image's list. The environment is the one that runs this test: it is not made again."""
    command = ["make", "-o", ".venv/.installed", "sbom", f"SBOM={folder}", "IMAGES=operator"]
    subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    (file,) = folder.iterdir()
    assert file.name == "rljob-operator.cdx.json"
    return file.read_text()


@pytest.mark.nightly
def test_a_list_names_every_locked_release_with_its_hashes(tmp_path: Path) -> None:
    text = make(tmp_path / "one")
    assert text == make(tmp_path / "two")
    listed = json.loads(text)
    assert listed["bomFormat"] == "CycloneDX"  # and cyclonedx-py has validated it
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    described = listed["metadata"]["component"]
    assert (described["name"], described["version"]) == (project["name"], project["version"])
    locked = {}
    for requirement in re.split(
        r"^(?=[A-Za-z0-9])", (ROOT / "requirements/operator.txt").read_text(), flags=re.M
    ):
        if found := re.match(r"([^\s=]+)==([^\s;]+)", requirement):
            purl = f"pkg:pypi/{canonicalize_name(found[1])}@{found[2]}"
            locked[purl] = set(re.findall(r"--hash=sha256:([0-9a-f]{64})", requirement))
    found_hashes = {
        component["purl"]: {
            one["content"] for place in component["externalReferences"] for one in place.get("hashes", [])
        }
        for component in listed["components"]
    }
    assert found_hashes == locked
