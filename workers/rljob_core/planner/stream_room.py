"""What the coordinator knows of the trajectory stream's size, and of the sizes of the prompts that it has planned."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from rljob_core.job_state import JobState
from rljob_core.planner.evaluation import AskedSet, Evaluation, prompt_of
from rljob_core.spec import MOST_SAMPLES, RLJobSpec
from rljob_core.streams_budget import largest_payload_bytes


@dataclass(slots=True)
class StreamRoom:
    """The stream's limit, and the lengths of prompts.

    Nothing of this is in the ledger: a new coordinator reads the limit and measures the prompts again.

    Attributes:
        limit: bytes that the stream may hold; 0 if it has no limit, and everything is dispatched.
        prompts: tokens of the open groups' prompts that were measured, by group.
        held_out: the same of held-out prompts, by index.
        wanted: the largest size that was asked for in this step.
        asking: whether the answer is still to come.
        refused: why the stream is smaller than was asked for; empty if it is not.
        heartbeats: own heartbeats in a row at which nothing could be dispatched and nothing else would make room.
    """

    limit: int = 0
    prompts: dict[str, int] = field(default_factory=dict)
    held_out: dict[int, int] = field(default_factory=dict)
    wanted: int = 0
    asking: bool = False
    refused: str = ""
    heartbeats: int = 0
    _asked: set[str] = field(default_factory=set)
    _asked_held_out: set[int] = field(default_factory=set)
    _known: tuple[int, int] = (0, 0)
    _evaluated: int = -1
    _version: int = -1
    _planned: int | None = None

    @property
    def lacking(self) -> int:
        """The size that the stream was refused; 0 if it was not."""
        return self.wanted if self.refused else 0

    def unmeasured(self, state: JobState) -> list[str]:
        """Open groups whose prompts nobody was asked to measure so far; each is returned once."""
        # Groups come with ever greater prompts, so that the same two numbers mean the same groups.
        known = (state.next_prompt, len(state.groups))
        if known == self._known:
            return []
        self._known = known
        self._asked &= state.groups.keys()
        self.prompts = {group: tokens for group, tokens in self.prompts.items() if group in state.groups}
        self._planned = None
        fresh = [group for group in state.groups if group not in self._asked]
        self._asked.update(fresh)
        return fresh

    def unmeasured_held_out(self, run: Evaluation) -> list[int]:
        """Held-out prompts of an evaluation that nobody was asked to measure so far; each is returned once."""
        if run.version == self._evaluated:
            return []
        self._evaluated = run.version
        asked = dict.fromkeys(map(prompt_of, run.attempts))
        fresh = [prompt for prompt in asked if prompt not in self._asked_held_out]
        self._asked_held_out.update(fresh)
        return fresh

    def measured(self, prompts: Mapping[str, int], held_out: Mapping[int, int]) -> None:
        """Take the lengths of prompts, by group, and of held-out ones."""
        self.prompts |= prompts
        self.held_out |= held_out
        self._planned = None

    def is_ample(self, state: JobState, spec: RLJobSpec, asked: Sequence[AskedSet], *, idle: int) -> bool:
        """Whether everything that is planned fits, however long the responses are; False before it is measured.

        Args:
            state: of the job.
            spec: of the job.
            asked: what an evaluation asks of each held-out set.
            idle: bytes that are taken by what is not needed.
        """
        if self._planned is None:
            if self._asked.difference(self.prompts) or self._asked_held_out.difference(self.held_out):
                return False
            groups = ((self.prompts[g.id], len(g.siblings)) for g in state.groups.values())
            answers = (
                (tokens, asked[prompt // MOST_SAMPLES].group_size + 1)
                for prompt, tokens in self.held_out.items()
            )
            self._planned = sum(
                number * largest_payload_bytes(spec, prompt_tokens=tokens)
                for tokens, number in (*groups, *answers)
            )
        return self._planned + idle <= self.limit

    def may_ask_for(self, size: int, *, version: int) -> bool:
        """Whether to ask for a stream of that size: it is larger than all that was asked for in this step."""
        if version != self._version:
            self._version, self.wanted = version, 0
        if size <= max(self.limit, self.wanted):
            return False
        self.wanted = size
        self.asking = True
        return True
