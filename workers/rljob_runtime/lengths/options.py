"""The options of the predictors; loads none of them."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from rljob_runtime.plugins import StrictOptions


class RidgeOptions(StrictOptions):
    """What options the predictor `Ridge` takes."""

    groups: Annotated[int, Field(ge=32, le=4096)] = 1024
    """Newest groups that it learns from; each takes 20 kB of memory, and a fit time by their cube."""


class PromptMeansOptions(BaseModel):
    """The predictor `PromptMeans` takes no options."""

    model_config = ConfigDict(extra="forbid", frozen=True)
