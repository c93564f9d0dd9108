"""Fields that are left out of JSON where they say nothing: most records and lines of metrics have few of them."""

from __future__ import annotations

from pydantic import Field

OMITTED_IF_EMPTY = Field(exclude_if=lambda value: not value)
"""Annotates a field whose default is empty: "", 0, False or ()."""
OMITTED_IF_NONE = Field(exclude_if=lambda value: value is None)
"""Annotates a field whose default is None, and whose 0 and "" say something."""
