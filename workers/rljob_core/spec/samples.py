"""`spec.samples`: which answers are kept for people to read, and for how many bytes."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from rljob_core.spec.base import ApiModel


class SamplesSpec(ApiModel):
    """Answers that are kept beside the checkpoints, with their tokens and scores, for `rljob samples`."""

    share: Annotated[float, Field(ge=0, le=1)] | None = None
    """Part of the training groups that is kept, besides all evaluations; absent: as many as have about a million tokens
    in a step, in a small job all."""
    keep_bytes: Annotated[int, Field(ge=0, le=2**50)] = 2**30
    """Bytes of samples that are kept: the oldest are deleted, those of training first. 0 keeps no samples."""
