"""Engines, backends, losses and rewards of other distributions, by their entry points."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from installed import install
from pydantic import BaseModel

from rljob_contract.samples import job_config
from rljob_core.errors import SpecError
from rljob_core.spec import DataSpec
from rljob_operator.children.cluster_defaults import ClusterDefaults
from rljob_operator.children.desired import Targets, desired
from rljob_operator.children.resolved_job import resolve_job
from rljob_runtime.data.prompts import PromptSource
from rljob_runtime.engines.registry import ENGINES, check_engine, create_engine
from rljob_runtime.rewards.registry import resolve, score
from rljob_runtime.training.losses.registry import check_loss, find_loss
from rljob_runtime.training.registry import check_backend, create_backend

CODE = """
from pydantic import BaseModel, ConfigDict
from rljob_runtime.training import MEAN_OVER_TOKENS, Loss, TokenLosses

class Options(BaseModel):
    model_config = ConfigDict(extra="forbid")
    speed: int = 1

class Engine:
    options_model = Options
    def __init__(self, model_path, *, options, decode):
        self.given = model_path, options, decode

def backend(config, *, options, model_path, rank, world_size):
    return config.job, options, model_path, rank, world_size

def length(*, completion, item):
    return len(completion)

def wrong(text):
    return 0

class WrongOptions(Engine):
    options_model = dict

number = 3

plain = Loss(lambda tokens, settings: TokenLosses(-tokens.advantages * tokens.log_probabilities), MEAN_OVER_TOKENS)
"""


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A distribution that offers one of each, and some that are wrong."""
    monkeypatch.syspath_prepend(
        str(
            install(
                tmp_path,
                "rljob-plugin",
                CODE,
                engines="Mine = Engine\nTorch = Engine\nGone = Missing\nNumber = number\nWrong = WrongOptions",
                backends="Mine = backend",
                losses="Plain = plain\nnumber = number",
                rewards="length = length\nwrong = wrong\nnumber = number",
            )
        )
    )
    yield tmp_path
    for name in ("rljob_plugin", "rljob_broken"):
        sys.modules.pop(name, None)


@pytest.fixture
def prompts() -> PromptSource:
    return PromptSource(DataSpec(dataset="chain_sum"), model_uri="")


def refusal(name: str, options: dict[str, object] | None = None) -> str:
    with pytest.raises(SpecError) as caught:
        check_engine(name, options or {})
    return str(caught.value)


def test_an_installed_engine_has_its_name_and_its_options(plugin: Path) -> None:
    engine = create_engine("Mine", model_path=plugin, options={"speed": 3}, decode=str)
    path, options, decode = engine.given
    assert (path, options.speed, decode) == (plugin, 3, str)
    assert isinstance(options, BaseModel)
    unknown = refusal("Mine", {"sped": 3})
    assert unknown == "spec.rollout.engine.options.sped: unknown: did you mean speed? engine Mine has speed"
    assert refusal("Mine", {"speed": "fast"}).startswith("spec.rollout.engine.options.speed: ")


def test_an_installed_backend_without_a_model_takes_any_options(plugin: Path) -> None:
    config = job_config(plugin, trainer={"backend": "Mine", "options": {"any": [1]}})
    assert check_backend(config.spec) == {"any": [1]}
    made = create_backend(config, rank=1, world_size=2, model_path=plugin)
    assert made == ("test", {"any": [1]}, plugin, 1, 2)


def test_an_installed_loss_has_its_name(plugin: Path) -> None:
    config = job_config(plugin, algorithm={"loss": "Plain"})
    check_loss(config.spec)
    assert find_loss("Plain").average.token_weight(3) == 1.0
    with pytest.raises(SpecError, match=r"spec.algorithm.loss: .*'number'.* it is not a Loss, but int"):
        find_loss("number")


def test_an_unknown_loss_is_refused_like_an_unknown_engine(plugin: Path) -> None:
    config = job_config(plugin, algorithm={"loss": "Plane"}, trainer={"backend": "Mine"})
    with pytest.raises(
        SpecError, match=r"'Plane' is unknown: did you mean Plain\? write one of GRPO, "
    ) as caught:
        create_backend(config, rank=0, world_size=1, model_path=plugin)
    assert caught.value.path == "spec.algorithm.loss"
    assert "Plain (of rljob-plugin 1.2)" in str(caught.value)


def test_an_installed_reward_scores(plugin: Path, prompts: PromptSource) -> None:
    (_, exact), (name, function) = resolve(["exact_match", "length"], prompts)
    assert score("exact_match", exact, completion="1", item={"answer": 1}) == 1
    assert score(name, function, completion="four", item={}) == 4


def test_nothing_is_loaded_that_is_not_named(plugin: Path, prompts: PromptSource) -> None:
    resolve(["exact_match"], prompts)
    assert ENGINES.offers()["Mine"] == ["rljob-plugin 1.2"]
    refusal("Nine")
    assert "rljob_plugin" not in sys.modules


def test_an_unknown_name_is_reported_with_the_known_ones(plugin: Path) -> None:
    said = refusal("Nine")
    assert said.startswith(
        "spec.rollout.engine.name: 'Nine' is unknown: did you mean Mine? write one of Torch (of "
    )
    assert "Mine (of rljob-plugin 1.2)" in said
    assert "rljob.engines" in said


def test_a_name_of_ours_that_somebody_else_offers_too_is_refused(plugin: Path) -> None:
    said = refusal("Torch")
    assert said == (
        "spec.rollout.engine.name: 'Torch' is offered by rljob itself and rljob-plugin 1.2: uninstall all but one"
    )


def test_a_name_that_two_distributions_offer_is_refused(
    plugin: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(
        str(install(tmp_path / "other", "rljob-other", CODE, engines="Mine = Engine"))
    )
    assert "'Mine' is offered by rljob-other 1.2 and rljob-plugin 1.2: " in refusal("Mine")


def test_what_does_not_load_is_named_with_its_distribution(
    plugin: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = install(
        tmp_path / "broken", "rljob-broken", "raise OSError('no licence')", engines="Broken = Engine"
    )
    monkeypatch.syspath_prepend(str(broken))
    assert refusal("Broken") == (
        "spec.rollout.engine.name: the engine 'Broken' of rljob-broken 1.2 (rljob_broken:Engine) does not load: "
        "OSError: no licence; repair or reinstall it"
    )
    assert "of rljob-plugin 1.2 (rljob_plugin:Missing) does not load: AttributeError: " in refusal("Gone")
    assert check_engine("Mine", {}).speed == 1  # the broken one harms itself alone


@pytest.mark.parametrize(
    ("name", "words"),
    [("Number", "it is not callable, but int"), ("Wrong", "its options_model is not a pydantic model")],
)
def test_what_is_no_engine_is_reported(plugin: Path, name: str, words: str) -> None:
    assert words in refusal(name)


@pytest.mark.parametrize(
    ("name", "words"),
    [("number", "it is not a function, but int"), ("wrong", "must take the keyword arguments")],
)
def test_what_is_no_reward_is_reported(plugin: Path, prompts: PromptSource, name: str, words: str) -> None:
    with pytest.raises(SpecError, match=words) as caught:
        resolve(["exact_match", name], prompts)
    assert caught.value.path == "spec.reward.functions[1]"


def test_the_operator_makes_pods_for_names_that_only_their_image_knows() -> None:
    from rljob_core.spec import RLJob

    spec = {
        "steps": 1,
        "model": {"uri": "file:///model"},
        "data": {"dataset": "chain_sum"},
        "reward": {"functions": ["elsewhere"]},
        "rollout": {"engine": {"name": "Elsewhere"}, "pools": [{"name": "a"}]},
        "trainer": {"backend": "Elsewhere"},
    }
    job = RLJob.model_validate(
        {
            "apiVersion": "rljob.dev/v1alpha1",
            "kind": "RLJob",
            "metadata": {"name": "j", "uid": "u"},
            "spec": spec,
        }
    )
    made = desired(
        resolve_job(job, ClusterDefaults("", "w", "c", "t")), Targets(attempt=1, failures=0, pools={})
    )
    assert {"Deployment", "Job"} <= {manifest["kind"] for manifest in made}
