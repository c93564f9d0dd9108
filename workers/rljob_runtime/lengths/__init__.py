"""Predictors of the lengths of answers. This module is what authors of predictors import.

A predictor implements the protocol `LengthPredictor`: it estimates how many tokens an answer to each of some prompts
will have, and learns from the lengths of this job's answers. Names that this module does not export may change in any
release. Importing it loads no NumPy.
"""

from rljob_core.config import JobConfig
from rljob_core.errors import SpecError
from rljob_core.lengths import (
    Estimate,
    GroupLengths,
    LengthPredictor,
    Prompt,
    PromptMeans,
    completed_logs,
    rank_correlation,
    recall_of_longest,
)

__all__ = [
    "Estimate",
    "GroupLengths",
    "JobConfig",
    "LengthPredictor",
    "Prompt",
    "PromptMeans",
    "SpecError",
    "completed_logs",
    "rank_correlation",
    "recall_of_longest",
]
