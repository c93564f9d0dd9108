"""The predictors of lengths by their names; looking one up loads none of them.

| name | estimates |
|---|---|
| `Ridge` | by n-grams and numbers in the prompt's text, learnt from this job's groups |
| `PromptMeans` | the mean of the prompt's earlier answers, or of all answers: what every other one is compared with |

Any other name is one that an installed distribution offers (`rljob_runtime.plugins`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rljob_core.config import JobConfig
from rljob_core.lengths import LengthPredictor, PromptMeans
from rljob_runtime.lengths.guard import GuardedPredictor
from rljob_runtime.lengths.options import PromptMeansOptions, RidgeOptions
from rljob_runtime.plugins import Factory, Registry


def _ridge(config: JobConfig, *, options: RidgeOptions) -> LengthPredictor:  # noqa: ARG001
    from rljob_runtime.lengths.ridge import RidgePredictor

    return RidgePredictor(options)


def _prompt_means(config: JobConfig, *, options: PromptMeansOptions) -> LengthPredictor:  # noqa: ARG001
    return PromptMeans()


LENGTH_PREDICTORS = Registry[Factory[LengthPredictor]](
    "length predictor",
    "rljob.lengths",
    {
        "Ridge": Factory(_ridge, RidgeOptions),
        "PromptMeans": Factory(_prompt_means, PromptMeansOptions),
    },
    Factory.of,
)


PATH = "spec.rollout.lengthPredictor"
"""The manifest's field that holds a predictor's name and options, for messages."""


def check_predictor(name: str, options: Mapping[str, Any]) -> Any:
    """A predictor's options, as its own model of them (a dict, if it has none); loads none of our predictors.

    Args:
        name: the predictor's name.
        options: as written in the manifest.

    Raises:
        SpecError: no predictor has that name, it does not load, or it has no such option.
    """
    factory = LENGTH_PREDICTORS.find(name, field=f"{PATH}.name")
    return factory.check(options, field=f"{PATH}.options", whose=f"length predictor {name}")


def create_predictor(
    name: str, config: JobConfig, *, options: Mapping[str, Any], means: PromptMeans
) -> GuardedPredictor:
    """A predictor that has observed nothing, behind a guard: none of its methods raises, and its estimates are usable.

    Args:
        name, options: see `check_predictor`.
        config: the job's.
        means: give the estimates that the predictor fails to give; whoever owns them lets them observe.

    Raises:
        SpecError: as `check_predictor`. Whatever else its constructor raises counts as a failure of its estimates.
    """
    checked = check_predictor(name, options)
    factory = LENGTH_PREDICTORS.find(name, field=f"{PATH}.name")
    return GuardedPredictor(name, lambda: factory.create(config, options=checked), means)
