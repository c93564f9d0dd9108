"""What docs/training.md says about options and backends is so, and its manifests are valid."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from rljob_core.spec import ModelSpec, RLJob
from rljob_core.spec.training import TrainerSpec
from rljob_runtime.training.losses.registry import LOSSES
from rljob_runtime.training.options import (
    DeepSpeedBackendOptions,
    FsdpBackendOptions,
    TorchBackendOptions,
    TrainingOptions,
)
from rljob_runtime.training.registry import BACKENDS, check_backend

PAGE = (Path(__file__).parents[2] / "docs" / "training.md").read_text(encoding="utf-8")
FRAGMENTS = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)


def rows(head: str) -> list[list[str]]:
    """Rows of the table whose head begins with this cell."""
    table = PAGE.split(f"| {head} |", 1)[1].split("\n\n", 1)[0]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in table.splitlines()[2:]]


def test_every_option_is_there_with_its_default() -> None:
    shown = {row[0].strip("` "): YAML(typ="safe").load(row[1].strip("`")) for row in rows("option")}
    fields = {
        field.alias or name: field.default for name, field in DeepSpeedBackendOptions.model_fields.items()
    }
    assert shown == fields
    assert (
        set(TorchBackendOptions.model_fields)
        == set(FsdpBackendOptions.model_fields)
        == set(TrainingOptions.model_fields)
    )


def test_every_backend_is_there() -> None:
    named = [re.findall(r"`(\w+)`", row[0])[0] for row in rows("`backend`")]
    assert named == [name for name, offering in BACKENDS.offers().items() if offering == ["rljob itself"]]


def test_every_loss_is_there() -> None:
    named = [re.findall(r"`(\w+)`", row[0])[0] for row in rows("`loss`")]
    assert named == [name for name, offering in LOSSES.offers().items() if offering == ["rljob itself"]]


@pytest.mark.parametrize("fragment", FRAGMENTS)
def test_a_fragment_is_valid(fragment: str) -> None:
    found = YAML(typ="safe", pure=True).load(fragment)
    if "kind" in found:
        job = RLJob.model_validate(found)
        check_backend(job.spec)
        assert (Path(__file__).parents[2] / job.spec.model.uri / "config.json").is_file()
    elif "trainer" in found:
        trainer = TrainerSpec.model_validate(found["trainer"])
        assert trainer.least_nodes < trainer.num_nodes
    else:
        assert ModelSpec.model_validate(found["model"]).lora is not None
