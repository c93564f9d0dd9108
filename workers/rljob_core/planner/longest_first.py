"""Whether the longest answers are generated first, and what the predictor of their lengths is asked and taught.

A step ends with the last of its answers, so that what takes long should begin early: longest first, as Graham's list
scheduling has it (SIAM Journal on Applied Mathematics 17, 1969). The coordinator's predictor estimates lengths by the
prompts' texts (`rljob_core.lengths`); estimates come as observations, so that a replay decides by the same ones.

The order is by number of the prompt where longest first would not help:

- nobody knows which prompts are long: the rank correlation of what was predicted so far is below `LEAST_CORRELATION`;
- the KV caches are nearly full: long contexts, all at once, have sequences preempted and computed again;
- the trainer, on-policy and fed group by group, would wait for the short ones with which it could begin.
"""

from __future__ import annotations

from rljob_core.actions import LengthsPredicted, PredictLengths
from rljob_core.job_state import GroupState
from rljob_core.lengths.quality import LEAST_CORRELATION
from rljob_core.planner.context import PlannerContext
from rljob_core.spec import Mode

FULL_CACHE = 0.8
"""Share of the KV caches in use from which longest first is off."""
FED_LATE = 0.85
"""Share of a step's time that passes until the trainer has all groups, below which it has work to begin with."""


def on_lengths_predicted(context: PlannerContext, predicted: LengthsPredicted) -> None:
    """Estimates of some prompts have come."""
    context.lengths.take(predicted)
    _order(context)


def predict_lengths(context: PlannerContext) -> None:
    """Ask for estimates of prompts that were planned, and hand over the lengths of groups that were consumed."""
    lengths = context.lengths
    prompts, learnt = lengths.unasked(context.state), lengths.pop_unlearnt()
    if learnt:
        # Of what waits, too: a predictor that has learnt estimates it better.
        prompts = sorted(
            {*prompts, *(group.prompt for group in context.state.groups.values() if _waits(group))}
        )
    if prompts or learnt:
        context.act(PredictLengths(tuple(prompts), learnt))
    if lengths.known and _longest_first(context) != lengths.longest_first:
        _order(context)


def _waits(group: GroupState) -> bool:
    return any(not sibling.engine and sibling.payload is None for sibling in group.siblings)


def _order(context: PlannerContext) -> None:
    lengths = context.lengths
    lengths.longest_first = _longest_first(context)
    estimates = lengths.known.items() if lengths.longest_first else ()
    context.state.waiting.rank({prompt: -estimate.tokens for prompt, estimate in estimates})


def _longest_first(context: PlannerContext) -> bool:
    if context.lengths.correlation < LEAST_CORRELATION or context.liveness.load.cache_share > FULL_CACHE:
        return False
    pipeline = context.spec.pipeline
    return pipeline.bound > 0 or pipeline.mode == Mode.SYNCHRONOUS or context.admission.waits >= FED_LATE
