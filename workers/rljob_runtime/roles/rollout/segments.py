"""The segments of a trajectory: what the model was given, and what it has made."""

from __future__ import annotations

from typing import Any

import numpy as np

from rljob_core.ports import Completed
from rljob_core.trajectory import Segment, Source, VersionSpan


def given(source: Source, tokens: Any) -> Segment:
    """Tokens that no model has made, and that are not trained on."""
    size = len(tokens)
    return Segment(
        source,
        np.asarray(tokens, np.int32),
        np.zeros(size, np.uint8),
        np.zeros(size, np.float32),
        np.full(size, -1, np.int32),
    )


def generated(completed: Completed) -> Segment:
    """A response of the model."""
    return Segment(
        Source.MODEL,
        np.asarray(completed.tokens, np.int32),
        np.ones(len(completed.tokens), np.uint8),
        np.asarray(completed.logprobs, np.float32),
        np.asarray(completed.versions, np.int32),
    )


def span_of(segment: Segment) -> VersionSpan:
    """The versions of a response's tokens, of which there is one at least."""
    return VersionSpan(int(segment.versions.min()), int(segment.versions.max()))
