"""Length predictors by name: built in, and those of other distributions."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from installed import install

from rljob_contract.samples import job_config
from rljob_core.errors import SpecError
from rljob_core.lengths import Estimate, GroupLengths, Prompt, PromptMeans
from rljob_runtime.lengths.guard import GuardedPredictor
from rljob_runtime.lengths.registry import LENGTH_PREDICTORS, PATH, check_predictor, create_predictor

CODE = """
from pydantic import BaseModel, ConfigDict
from rljob_runtime.lengths import Estimate

class Options(BaseModel):
    model_config = ConfigDict(extra="forbid")
    factor: float = 2.0

class ByText:
    options_model = Options
    def __init__(self, config, *, options):
        self.longest = config.spec.rollout.sampling.max_tokens
        self.factor = options.factor
    def predict(self, prompts):
        return [Estimate(min(self.longest, self.factor * len(prompt.text)), 0.5) for prompt in prompts]
    def observe(self, prompt, lengths):
        pass
    def fit(self):
        pass

def broken(config, *, options):
    raise OSError("no licence")

number = 3
"""


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A distribution that offers a predictor, one that cannot be created, and something else."""
    points = "ByText = ByText\nBroken = broken\nNumber = number\nRidge = ByText"
    monkeypatch.syspath_prepend(str(install(tmp_path, "rljob-lengths", CODE, lengths=points)))
    yield tmp_path
    sys.modules.pop("rljob_lengths", None)


def created(folder: Path, name: str, options: Mapping[str, Any] = {}) -> GuardedPredictor:
    return create_predictor(name, job_config(folder), options=options, means=PromptMeans())


def refusal(name: str, options: Mapping[str, Any] = {}) -> str:
    with pytest.raises(SpecError) as caught:
        check_predictor(name, options)
    return str(caught.value)


def test_the_built_in_ones_learn(tmp_path: Path) -> None:
    for name in ("Ridge", "PromptMeans"):
        predictor = created(tmp_path, name)
        for number in range(40):
            predictor.observe(Prompt(number, f"prompt {number}"), GroupLengths((100, 110), 1000))
        predictor.fit()
        (estimate,) = predictor.predict([Prompt(50, "prompt 50")])
        assert estimate.tokens == pytest.approx(105, rel=0.05)
        assert predictor.failures == 0


def test_options_are_checked() -> None:
    assert check_predictor("Ridge", {"groups": 64}).groups == 64
    assert (
        refusal("Ridge", {"group": 64})
        == f"{PATH}.options.group: unknown: did you mean groups? length predictor Ridge has groups"
    )
    assert refusal("Ridge", {"groups": 1}).startswith(f"{PATH}.options.groups: ")
    assert refusal("PromptMeans", {"groups": 1}).endswith("length predictor PromptMeans has no options")


def test_an_unknown_name_is_reported_with_the_known_ones(plugin: Path) -> None:
    said = refusal("Rigde")
    assert said.startswith(f"{PATH}.name: 'Rigde' is unknown: did you mean Ridge? write one of Ridge (of ")
    assert "ByText (of rljob-lengths 1.2)" in said
    assert "rljob.lengths" in said


def test_an_installed_predictor_has_its_name_and_its_options(plugin: Path) -> None:
    asked = [Prompt(0, "four")]
    assert created(plugin, "ByText").predict(asked) == [Estimate(8.0, 0.5)]
    assert created(plugin, "ByText", {"factor": 1.5}).predict(asked) == [Estimate(6.0, 0.5)]
    assert refusal("ByText", {"by": 3}) == f"{PATH}.options.by: unknown: length predictor ByText has factor"
    assert LENGTH_PREDICTORS.offers()["ByText"] == ["rljob-lengths 1.2"]


def test_one_that_cannot_be_created_is_replaced_by_means(plugin: Path) -> None:
    predictor = created(plugin, "Broken")
    assert predictor.predict([Prompt(0, "four")]) == [Estimate(512.0, 1.0)]
    assert predictor.newest_failure == "cannot be created: OSError: no licence"


def test_what_is_no_predictor_or_has_our_name_is_refused(plugin: Path) -> None:
    assert "it is not callable, but int" in refusal("Number")
    assert refusal("Ridge").endswith(
        "is offered by rljob itself and rljob-lengths 1.2: uninstall all but one"
    )


def test_the_predictor_that_the_page_shows_learns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (Path(__file__).parents[3] / "docs" / "lengths.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    points = re.findall(r'^(\w+) = "my_lengths:(\w+)"$', page, re.MULTILINE)
    lines = "\n".join(f"{name} = {attribute}" for name, attribute in points)
    monkeypatch.syspath_prepend(str(install(tmp_path, "my-lengths", code, lengths=lines)))
    predictor = created(tmp_path, "Proportional", {"spread": 0.7})
    for number in range(100):
        words = 1 + number % 10
        predictor.observe(Prompt(number, "w " * words), GroupLengths((50 * (1 + words),) * 4, 1000))
    predictor.fit()
    (estimate,) = predictor.predict([Prompt(200, "w " * 20)])
    assert estimate.tokens == pytest.approx(1050, rel=0.01)
    assert (estimate.spread, predictor.failures) == (0.7, 0)
    sys.modules.pop("my_lengths")


def test_looking_a_name_up_loads_no_numpy() -> None:
    code = (
        "import sys, rljob_runtime.lengths, rljob_runtime.lengths.registry as registry; "
        "registry.check_predictor('Ridge', {}); print('numpy' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
