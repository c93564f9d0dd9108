"""The options of the predictors; loads none of them."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel


class RidgeOptions(BaseModel):
    """What options the predictor `Ridge` takes."""

    model_config = ConfigDict(
        extra="forbid", alias_generator=to_camel, populate_by_name=True, frozen=True, strict=True
    )

    groups: Annotated[int, Field(ge=32, le=4096)] = 1024
    """Newest groups that it learns from; each takes 20 kB of memory, and a fit time by their cube."""


class PromptMeansOptions(BaseModel):
    """The predictor `PromptMeans` takes no options."""

    model_config = ConfigDict(extra="forbid", frozen=True)
