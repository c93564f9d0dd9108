"""The reader of samples: pages of groups, filtered and sorted, for a terminal or a page.

Of all answers only a few numbers are in memory (`index`); texts and tokens are read of the groups that a page shows.
Nothing is written. While the job runs, `refresh` reads what is new.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal

import numpy as np
import pyarrow.compute as pc
from numpy.typing import NDArray

from rljob_runtime.samples.index import GroupTable, SampleIndex, group_number
from rljob_runtime.samples.places import SamplePlace
from rljob_runtime.samples.rows import group_name
from rljob_runtime.samples.stored import prompts_in, read_rows
from rljob_runtime.samples.trained import AnswerKey, TrainedAnswer, TrainedLog

SampleOrder = Literal["newest", "oldest", "worst", "best"]


@dataclass(frozen=True, slots=True)
class SampleFilter:
    """Which groups to show: those for which all that is given holds.

    Attributes:
        step: trained on in this step (1 is the first), or evaluations of this version.
        prompt: text that the prompt has, in capitals or not.
        reward_below: the mean reward of its answers is less, or there is none.
        aborted: whether an answer has no score, or was generated again.
        evaluation: whether they are of an evaluation.
    """

    step: int | None = None
    prompt: str = ""
    reward_below: float | None = None
    aborted: bool | None = None
    evaluation: bool | None = None


@dataclass(frozen=True, slots=True)
class SampledAnswer:
    """One answer, as it was kept.

    Attributes:
        sibling: its number in the group.
        attempt: the higher, the newer; `replaced`: a newer one is there, too.
        sample: `sampled` or `greedy`.
        reward: None if it has no score; `error` says why.
        parts: of the reward, by function.
        version_min, version_max: the oldest and the newest policy version that made a token.
        finish: `stop` or `length`.
        worker: the reward worker.
        received, scored: when the reward worker received it, and published the score.
        payload_digest: names the payload in the ledger.
        response: the text, without special tokens.
        tokens, texts, logprobs, versions: of each token behind the prompt; an environment's have version -1.
        trained: the step that it was trained in, if the trainer's log has it.
    """

    trajectory: str
    sibling: int
    attempt: int
    replaced: bool
    sample: str
    reward: float | None
    parts: Mapping[str, float]
    error: str
    version_min: int
    version_max: int
    finish: str
    engine: str
    worker: str
    received: datetime
    scored: datetime
    payload_digest: str
    response: str
    tokens: Sequence[int]
    texts: Sequence[str]
    logprobs: Sequence[float]
    versions: Sequence[int]
    trained: TrainedAnswer | None = None


@dataclass(frozen=True, slots=True)
class SampledGroup:
    """The answers to one prompt that were kept.

    Attributes:
        group: its id.
        evaluated: the version that it evaluates; None for training.
        prompt_index: in the data's order.
        expected: the right answer, as the data have it; empty if they have none.
        step: the step that trained on it, as far as the trainer's log says.
        reward: mean of its answers' scores, those that were replaced left out; None if there is none.
    """

    group: str
    evaluated: int | None
    prompt_index: int
    prompt: str
    expected: str
    step: int | None
    reward: float | None
    answers: tuple[SampledAnswer, ...] = field(default=())


@dataclass(frozen=True, slots=True)
class SamplePage:
    """Some groups, of all that match.

    Attributes:
        total: number of groups that match.
        start: how many of them come before the page.
        kept: number of groups that are kept, whether they match or not.
        problems: files that could not be read, a sentence each.
    """

    groups: tuple[SampledGroup, ...]
    total: int
    start: int
    kept: int
    problems: tuple[str, ...] = ()


class SampleReader:
    """Reads the samples of one job. Not for several threads at once.

    Args:
        place: where they are.
        trained: the log of the job's trainer; without it, steps and advantages are unknown.
        job: UID of the job; files of another are left out. Empty: they are of any.
    """

    def __init__(self, place: SamplePlace, trained: TrainedLog | None = None, job: str = "") -> None:
        self._place = place
        self._trained = trained
        self._index = SampleIndex(place, job)
        self.refresh()

    def refresh(self) -> bool:
        """Read what was added since the last call; whether there was anything.

        Raises:
            StoreUnavailable: the place cannot be read.
        """
        if self._trained is not None:
            self._trained.refresh()
        return self._index.refresh()

    def page(
        self,
        chosen: SampleFilter = SampleFilter(),
        *,
        order: SampleOrder = "newest",
        start: int = 0,
        limit: int = 20,
    ) -> SamplePage:
        """Some of the groups that match a filter.

        Args:
            chosen: the filter.
            order: by the time of the newest score, or by the mean reward; groups without a score come last.
            start: how many of the groups to pass over.
            limit: how many groups the page has at most.
        """
        problems = list(self._index.problems)
        groups = self._index.groups
        matching = self._matching(groups, chosen, problems)
        numbers = matching[_order(groups, matching, order)]
        shown = self._read(groups, numbers[start : start + limit].tolist(), problems)
        return SamplePage(shown, len(numbers), start, len(groups.group), tuple(dict.fromkeys(problems)))

    def _matching(self, groups: GroupTable, chosen: SampleFilter, problems: list[str]) -> NDArray[np.int64]:
        evaluated, prompt = groups.evaluated, groups.prompt
        mask = np.ones(len(groups.group), bool)
        if chosen.evaluation is not None:
            mask &= (evaluated >= 0) == chosen.evaluation
        if chosen.aborted is not None:
            mask &= groups.failed == chosen.aborted
        if chosen.reward_below is not None:
            mask &= ~(groups.reward >= chosen.reward_below)  # without a score, too
        if chosen.step is not None:
            prompts = self._trained.prompts_of(chosen.step) if self._trained is not None else set[int]()
            trained = (evaluated < 0) & np.isin(prompt, list(prompts))
            mask &= trained | (evaluated == chosen.step)
        if chosen.prompt and mask.any():
            mask &= np.isin(groups.group, list(self._with_text(chosen.prompt, problems)))
        return np.flatnonzero(mask)

    def _with_text(self, text: str, problems: list[str]) -> set[int]:
        """Numbers of the groups whose prompt has that text."""
        found = set[int]()
        for name in self._index.files:
            rows = prompts_in(self._place, name, problems)
            rows = rows.filter(pc.match_substring(rows["prompt"], text, ignore_case=True))
            pairs = zip(rows["evaluated"].to_pylist(), rows["prompt_index"].to_pylist(), strict=True)
            found.update(group_number(evaluated, prompt) for evaluated, prompt in pairs)
        return found

    def _read(
        self, groups: GroupTable, numbers: Iterable[int], problems: list[str]
    ) -> tuple[SampledGroup, ...]:
        """The groups at these places, with what the files hold of them."""
        numbers = list(numbers)
        answers = groups.answers
        wanted = defaultdict[int, list[int]](list)
        for position in (p for number in numbers for p in groups.positions(number)):
            wanted[int(answers.file[position])].append(int(answers.row[position]))
        rows = {
            file: read_rows(self._place, self._index.files[file], chosen, problems)
            for file, chosen in wanted.items()
        }
        asked = [int(groups.prompt[number]) for number in numbers if groups.evaluated[number] < 0]
        trained = self._trained.answers_to(asked) if self._trained is not None else {}
        shown = list[SampledGroup]()
        for number in numbers:
            found = [rows[int(answers.file[p])].get(int(answers.row[p])) for p in groups.positions(number)]
            if any(found):  # the others were deleted meanwhile
                shown.append(_group(groups, number, [row for row in found if row is not None], trained))
        return tuple(shown)


def _order(groups: GroupTable, matching: NDArray[np.int64], order: SampleOrder) -> NDArray[np.intp]:
    newest: NDArray[np.int64] = -groups.scored[matching]
    if order in ("newest", "oldest"):
        return np.argsort(newest if order == "newest" else -newest, kind="stable")
    reward = groups.reward[matching]
    by_reward: NDArray[np.intp] = np.lexsort((newest, reward if order == "worst" else -reward))
    return by_reward


def _group(
    groups: GroupTable,
    number: int,
    rows: Sequence[Mapping[str, Any]],
    trained: Mapping[AnswerKey, TrainedAnswer],
) -> SampledGroup:
    evaluated, prompt = int(groups.evaluated[number]), int(groups.prompt[number])
    name = group_name(evaluated, prompt)
    reward = float(groups.reward[number])
    answers = list[SampledAnswer]()
    for row in rows:
        replaced = bool(answers) and answers[-1].sibling == row["sibling"]
        answers.append(_answer(name, row, replaced, trained))
    return SampledGroup(
        group=name,
        evaluated=evaluated if evaluated >= 0 else None,
        prompt_index=prompt,
        prompt=rows[0]["prompt"],
        expected=next((row["expected"] for row in rows if row["expected"]), ""),
        step=max((answer.trained.step for answer in answers if answer.trained), default=None),
        reward=None if math.isnan(reward) else reward,
        answers=tuple(answers),
    )


def _answer(
    group: str,
    row: Mapping[str, Any],
    replaced: bool,
    trained: Mapping[AnswerKey, TrainedAnswer],
) -> SampledAnswer:
    trajectory = f"{group}.{row['sibling']}"
    same = ("sibling", "attempt", "sample", "error", "version_min", "version_max", "finish", "engine", "worker",
            "received", "scored", "payload_digest", "response", "tokens", "texts", "logprobs", "versions")  # fmt: skip
    return SampledAnswer(
        trajectory=trajectory,
        replaced=replaced,
        reward=None if row["error"] else row["reward"],
        parts=dict(row["parts"] or ()),
        trained=trained.get((trajectory, row["attempt"], row["payload_digest"])),
        **{name: row[name] for name in same},
    )
