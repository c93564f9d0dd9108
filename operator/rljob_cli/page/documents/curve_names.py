"""How the columns of `metrics.jsonl` are called on the page, and in which charts they are, in the order of the page."""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CurveChart:
    """One chart.

    Attributes:
        title, unit: for people; the unit may be empty.
        curves: column and label of each line.
        help: what to look for.
    """

    title: str
    unit: str
    curves: tuple[tuple[str, str], ...]
    help: str = ""


@dataclass(frozen=True, slots=True)
class CurveFamily:
    """A chart of as many lines as there are columns of a form.

    Attributes:
        title: for people.
        form: regular expression that names of the columns match.
        label: of a line, with the expression's groups filled in.
        help: what to look for.
    """

    title: str
    form: str
    label: str
    help: str = ""

    def label_of(self, column: str) -> str:
        """The label of a column's line; empty if it is none of the chart's."""
        found = re.fullmatch(self.form, column)
        return self.label.format(*(group or "" for group in found.groups())).strip() if found else ""


CHARTS: tuple[CurveChart, ...] = (
    CurveChart(
        "Reward",
        "",
        (
            ("reward_mean", "training, all answers"),
            ("reward_mean_trained", "training, answers trained on"),
            ("heldout_sampled", "held out, sampled"),
            ("heldout_greedy", "held out, greedy"),
        ),
        "mean of each step, and of the held-out prompts",
    ),
    CurveChart(
        "Spread of the reward",
        "",
        (("reward_std", "all answers"), ("reward_std_trained", "answers trained on")),
        "standard deviation; 0: nothing to learn from",
    ),
    CurveChart("Loss", "", (("stats.loss", "loss"),)),
    CurveChart("KL divergence", "", (("stats.kl", "KL"),), "distance from the reference model"),
    CurveChart("Entropy", "nats", (("stats.entropy", "entropy"),), "near 0: answers hardly differ any more"),
    CurveChart("Clipped tokens", "share", (("stats.clip_fraction", "clipped"),)),
    CurveChart(
        "Little to learn from",
        "share",
        (("groups_uniform", "groups of equal rewards"), ("stats.truncated", "answers cut at maxTokens")),
    ),
    CurveChart(
        "Length of answers",
        "tokens",
        (("response_tokens_mean", "mean"), ("stats.response_tokens_max", "largest")),
    ),
    CurveChart(
        "Staleness",
        "versions",
        (
            ("stats.staleness_max", "largest"),
            ("stats.staleness_mean", "mean"),
            ("pipeline.max_staleness", "bound"),
        ),
        "of the tokens that each step trained on",
    ),
    CurveChart(
        "Tokens per second",
        "tokens/s",
        (("tokens_per_second", "generated"), ("trained_per_second", "trained")),
    ),
    CurveChart("Cost so far", "", (("cost", "engines"),), "engines times costPerHour of their pools"),
    CurveChart("Gradient norm", "", (("stats.grad_norm", "norm"),)),
    CurveChart("Importance weight", "", (("stats.importance_mean", "mean"),), "1: on-policy"),
    CurveChart("Learning rate", "", (("stats.learning_rate", "rate"),)),
    CurveChart(
        "Seconds of each step",
        "s",
        (
            ("stats.seconds_waiting", "waiting"),
            ("stats.seconds_training", "training"),
            ("stats.seconds_publishing", "publishing"),
            ("heldout_seconds", "evaluation"),
        ),
    ),
    CurveChart("Engines", "", (("engines", "engines"),)),
)
_SET = r"heldout_(?:sets\.([^.]+)\.)?"
FAMILIES = (
    CurveFamily(
        "Held-out sets",
        r"heldout_sets\.([^.]+)\.(sampled|greedy)",
        "{}, {}",
        "mean reward of the other held-out sets",
    ),
    CurveFamily(
        "pass@k",
        rf"{_SET}pass_at\.(\d+)",
        "{} pass@{}",
        "of k answers to a held-out prompt, at least one passes",
    ),
    CurveFamily(
        "Intervals of held-out rewards",
        rf"{_SET}(sampled|greedy)_ci95",
        "{} {}",
        "half the width, 95 % confidence",
    ),
    CurveFamily("Held-out answers without a score", rf"{_SET}failed", "{} answers"),
)
UNSHOWN = re.compile(r"heldout_sets\.[^.]+\.(samples|answers)")
"""Names of columns that are no curve."""
KNOWN = frozenset(column for chart in CHARTS for column, _ in chart.curves)
PLAIN = frozenset(
    {
        "step", "version", "seconds", "epoch", "writer", "trainer_attempt", "last_version", "heldout_newest",
        "heldout_mixed", "heldout_samples", "heldout_answers", "slots", "assigned", "tokens_generated", "room_wanted",
    }
)  # fmt: skip
"""Numbers of a line that count or name something and are no curve."""
COUNTS = frozenset({"trajectories", "aborted", "attempts_failed", "queues", "pools", "pipeline", "swaps"})
"""Mappings of a line whose numbers have views of their own."""
