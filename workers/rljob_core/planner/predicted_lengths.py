"""How long the answers to the open groups' prompts are expected to be, as the coordinator's predictor says."""

from __future__ import annotations

from rljob_core.actions import LengthsPredicted
from rljob_core.job_state import GroupState, JobState
from rljob_core.lengths import Estimate


class PredictedLengths:
    """Estimates of the open groups, and what the predictor is to learn.

    Nothing of this is in the ledger: a new coordinator asks again, and its predictor learns from the groups that it
    sees consumed.

    Attributes:
        known: the estimate of one answer, by prompt.
        correlation, recall: of the estimates that are used; see `rljob_core.lengths.quality`.
        longest_first: whether groups are ordered by their estimates.
    """

    def __init__(self) -> None:
        self.known: dict[int, Estimate] = {}
        self.correlation = self.recall = 0.0
        self.longest_first = False
        self._unlearnt: list[tuple[int, tuple[int, ...]]] = []
        self._asked: set[int] = set()
        self._seen = (0, 0)

    def unasked(self, state: JobState) -> list[int]:
        """Prompts of open groups of which nobody was asked so far; each is returned once."""
        # Groups come with ever greater prompts, so that the same two numbers mean the same groups.
        seen = (state.next_prompt, len(state.groups))
        if seen == self._seen:
            return []
        self._seen = seen
        open_ = {group.prompt for group in state.groups.values()}
        self._asked &= open_
        self.known = {prompt: estimate for prompt, estimate in self.known.items() if prompt in open_}
        found = sorted(open_ - self._asked)
        self._asked |= open_
        return found

    def take(self, predicted: LengthsPredicted) -> None:
        """Take estimates in."""
        self.correlation, self.recall = predicted.correlation, predicted.recall
        for prompt, tokens, spread in zip(
            predicted.prompts, predicted.tokens, predicted.spreads, strict=True
        ):
            if prompt in self._asked:
                self.known[prompt] = Estimate(tokens, spread)

    def consumed(self, group: GroupState) -> None:
        """A group was trained: what its lengths say is to be learnt."""
        tokens = tuple(s.payload.response_tokens for s in group.siblings if s.payload is not None)
        if tokens:
            self._unlearnt.append((group.prompt, tokens))

    def pop_unlearnt(self) -> tuple[tuple[int, tuple[int, ...]], ...]:
        """Prompts and lengths of the groups that were trained since the last call."""
        found, self._unlearnt = tuple(self._unlearnt), []
        return found
