"""Lengths of answers: estimates, the predictors that make them, and how far they are trusted.

| module | holds |
|---|---|
| `censoring` | normal measurements of which some have only a lower bound |
| `estimate` | `Estimate`, and how much of an answer is still to come |
| `predictor` | the port `LengthPredictor`, and what a predictor learns from |
| `quality` | rank correlation and recall of the longest fifth, over predictions made before lengths were known |
| `choice` | `PromptMeans`, the baseline; `PrequentialChoice`: the ranker while it is better, else the baseline |

`rljob_runtime.lengths` has the ranker and a guard around it; `docs/lengths.md` describes all of it.
"""

from rljob_core.lengths.choice import PrequentialChoice, PromptMeans
from rljob_core.lengths.estimate import WITHIN_PROMPT, Estimate, tokens_to_come
from rljob_core.lengths.predictor import GroupLengths, LengthPredictor, Prompt, completed_logs
from rljob_core.lengths.quality import RankQuality, rank_correlation, ranker_counts, recall_of_longest

__all__ = [
    "WITHIN_PROMPT",
    "Estimate",
    "GroupLengths",
    "LengthPredictor",
    "PrequentialChoice",
    "Prompt",
    "PromptMeans",
    "RankQuality",
    "completed_logs",
    "rank_correlation",
    "ranker_counts",
    "recall_of_longest",
    "tokens_to_come",
]
