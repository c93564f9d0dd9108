"""Lengths of answers: estimates, the predictors that make them, and how far they are trusted.

| module | holds |
|---|---|
| `censoring` | normal measurements of which some have only a lower bound |
| `estimate` | `Estimate`, and its update by the siblings that have ended or still run |
| `predictor` | the port `LengthPredictor`, and what a predictor learns from |
| `prompt_means` | `PromptMeans`, the baseline |
| `quality` | rank correlation and recall of the longest fifth, over predictions made before lengths were known |
| `choice` | `PrequentialChoice`: the ranker while it is better than the baseline, else the baseline |

`rljob_runtime.lengths` has the ranker and a guard around it; `docs/lengths.md` describes all of it.
"""

from rljob_core.lengths.choice import PrequentialChoice
from rljob_core.lengths.estimate import WITHIN_PROMPT, Estimate, tokens_to_come, updated_by_siblings
from rljob_core.lengths.predictor import GroupLengths, LengthPredictor, Prompt, completed_logs
from rljob_core.lengths.prompt_means import PromptMeans
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
    "updated_by_siblings",
]
