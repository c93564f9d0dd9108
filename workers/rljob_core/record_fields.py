"""Types of the records' fields: what they may hold is checked where bytes are decoded, so that no reader meets less.

`OMITTED_IF_EMPTY` and `OMITTED_IF_NONE` leave fields of any message or configuration out of its JSON where they say
nothing.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

OMITTED_IF_EMPTY = Field(exclude_if=lambda value: not value)
"""Annotates a field whose default is empty: "", 0, False or ()."""
OMITTED_IF_NONE = Field(exclude_if=lambda value: value is None)
"""Annotates a field whose default is None, and whose 0 and "" say something."""


LARGEST_SCORE = 1e6
"""A reward's score lies between minus this and this.

Advantages are differences of scores in float32, whose 24 bits still resolve 1/16 at this size, and no sum or square
over a group or a job comes near the end of the number range. A score beyond it is a mistake of its function.
"""

MOST_SIBLINGS = 1024
"""Trajectories of a group at most: `spec.data.groupSize`."""

GroupName = Annotated[str, Field(pattern=r"^g[0-9]{1,12}$")]
TrajectoryName = Annotated[str, Field(pattern=r"^g[0-9]{1,12}\.[0-9]{1,4}$")]
Number = Annotated[int, Field(ge=0, le=2**53)]
"""A count, or a place in an order; JSON readers of any language hold it exactly."""
Real = Annotated[float, Field(allow_inf_nan=False)]
Score = Annotated[float, Field(ge=-LARGEST_SCORE, le=LARGEST_SCORE, allow_inf_nan=False)]
