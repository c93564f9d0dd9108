"""How records and specs get new fields: those that say nothing are left out of JSON.

Old ledgers, manifests and decision logs then read as they always did, and are written again byte by byte; and pods of
an older image, which refuses fields that it does not know, load the configuration of a job that does not use them.
"""

from __future__ import annotations

from pydantic import Field

OMITTED_IF_EMPTY = Field(exclude_if=lambda value: not value)
"""Annotates a field that earlier releases did not have; its default is empty: "", False or ()."""
OMITTED_IF_NONE = Field(exclude_if=lambda value: value is None)
"""The same of a field of which also 0 and "" say something; its default is None."""
