"""All that comes from outside is pinned by a hash, and the update bot finds every pin."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

ROOT = Path(__file__).parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
DOCKERFILES = sorted((ROOT / "images").glob("*/Dockerfile"))
BOT: dict[str, Any] = json.loads((ROOT / ".github" / "renovate.json").read_text())
OURS = {"rljob-operator", "rljob-worker"}
DIGEST = re.compile(r"[a-z/.-]+:[^@\s]+@sha256:[0-9a-f]{64}")


def images() -> list[str]:
    """Of other people, in the manifests and under our own images."""
    found = [
        line.removeprefix("ARG BASE_IMAGE=")
        for file in DOCKERFILES
        for line in file.read_text().splitlines()
        if line.startswith("ARG BASE_IMAGE=")
    ]
    for file in sorted((ROOT / "manifests").rglob("*.yaml")):
        if "examples" not in file.parts:
            found += re.findall(r"^\s*(?:- )?image: (\S+)$", file.read_text(), re.MULTILINE)
    return [image for image in found if image not in OURS]


def found_by_the_bot(path: str) -> set[tuple[str, str]]:
    """Names and versions that its own patterns find in a file."""
    found = set()
    for manager in BOT["customManagers"]:
        if any(re.search(pattern.strip("/"), path) for pattern in manager["managerFilePatterns"]):
            for pattern in manager["matchStrings"]:
                for match in re.finditer(pattern.replace("(?<", "(?P<"), (ROOT / path).read_text()):
                    found.add((match["depName"], match["currentValue"]))
    return found


def test_images_are_named_by_digest() -> None:
    assert len(images()) == len(DOCKERFILES) + 1  # and nats-server
    assert [image for image in images() if not DIGEST.fullmatch(image)] == []


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_actions_are_named_by_commit(path: Path) -> None:
    """A tag may be moved; the comment is what the bot and people read."""
    used = re.findall(r"uses: (.+)", path.read_text())
    assert used
    assert [one for one in used if not re.fullmatch(r"\S+@[0-9a-f]{40} # v\d+\.\d+\.\d+", one)] == []


@pytest.mark.parametrize(
    "path", sorted(str(file.relative_to(ROOT)) for file in (ROOT / "requirements").glob("*.txt"))
)
def test_the_bot_finds_every_locked_release(path: str) -> None:
    pins = re.findall(r"^([^\s#=]+)==([^\s;]+)", (ROOT / path).read_text(), re.MULTILINE)
    assert pins
    assert found_by_the_bot(path) == set(pins)


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.parent.name)
def test_the_bot_finds_base_images(path: Path) -> None:
    assert {name for name, _ in found_by_the_bot(str(path.relative_to(ROOT)))} == {"python"}


def test_the_bot_may_run_what_it_is_told_to_run() -> None:
    workflow = YAML(typ="safe", pure=True).load((ROOT / ".github/workflows/renovate.yml").read_text())
    (step,) = [s for s in workflow["jobs"]["renovate"]["steps"] if s.get("name") == "Renovate"]
    allowed = json.loads(step["env"]["RENOVATE_ALLOWED_COMMANDS"])
    assert all(pattern.startswith("^") and pattern.endswith("$") for pattern in allowed)
    tasks = [rule["postUpgradeTasks"] for rule in BOT["packageRules"] if "postUpgradeTasks" in rule]
    commands = [
        command.replace("{{{depName}}}", "ruamel-yaml") for task in tasks for command in task["commands"]
    ]
    assert [one for one in commands if not any(re.search(pattern, one) for pattern in allowed)] == []
    # A package's name is a stranger's text.
    assert not any(re.search(pattern, "make lock UPGRADE=-Pa;id") for pattern in allowed)
    assert found_by_the_bot(".github/workflows/renovate.yml") == {("renovate", step["run"].split("@")[1])}


def test_what_is_resolved_again_is_what_the_bot_asks_for() -> None:
    command = ["make", "--dry-run", "lock", "UPGRADE=-Paiohttp"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    compiled = [line for line in done.stdout.splitlines() if "pip compile" in line]
    assert len(compiled) == len(list((ROOT / "requirements").glob("*.txt")))
    assert all(" -Paiohttp " in line for line in compiled)
