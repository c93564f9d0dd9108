"""What the trainer has done with answers, from its own log: the step, the advantage, the versions.

A reward worker cannot know which step trains on an answer. The trainer writes it into its log
(`rljob_core.records.trainer_log`), and the reader joins both. Of a line of the log only its place is kept, and which
groups it has.

A trainer that continues from an older version trains steps again: what an earlier attempt did in those steps and in
later ones is in no weights. Its lines do not count.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from io import BufferedReader
from itertools import groupby
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Self

from pydantic import ValidationError

from rljob_core.errors import StoreUnavailable
from rljob_core.records import FED
from rljob_core.trajectory import prompt_of_group
from rljob_runtime.locations import local_path
from rljob_runtime.storage.objects import is_object_store
from rljob_runtime.storage.plain_files import NotPlain, open_plain
from rljob_runtime.storage.trainer_log import TrainerLogCopy, TrainerLogObjects

_FILE = re.compile(r"attempt-(\d+)\.jsonl")
_STEP = re.compile(rb'"step":\s*(\d{1,15})\b')
_GROUP = re.compile(rb'"trajectory":\s*"g(\d{1,15})\.')
_LONGEST_LINE = 64 << 20
"""Bytes of a line at most: a micro-batch has some thousand trajectories."""

#: A trajectory's id, its attempt, and the digest of the payload: after a power cut, an attempt may be there twice.
AnswerKey = tuple[str, int, str]


@dataclass(frozen=True, slots=True)
class TrainedAnswer:
    """An answer that was trained on.

    Attributes:
        step: the step, as metrics.jsonl numbers it: 1 is the first.
        staleness: how many versions behind the trainer the oldest of its tokens was.
        advantage: with which it was trained.
    """

    step: int
    staleness: int
    advantage: float


@dataclass(frozen=True, slots=True)
class _LogLine:
    file: Path
    start: int
    length: int
    step: int
    attempt: int


class TrainedLog:
    """The log of a job's trainer, which may still grow.

    Args:
        folder: where it is; it need not exist.
        copy: of a log in an object store, to that folder.
    """

    def __init__(self, folder: Path, *, copy: TrainerLogCopy | None = None) -> None:
        self._folder, self._copy = folder, copy
        self._held: TemporaryDirectory[str] | None = None  # it is deleted with this object
        self._lines = list[_LogLine]()
        self._read_to = dict[Path, int]()
        self._of_prompt = dict[int, tuple[int, ...]]()
        self._of_step = defaultdict[int, list[int]](list)
        self._first = dict[int, int]()
        """The first step of each attempt."""
        self._ends = dict[int, float]()
        """The step from which on a later attempt has replaced what this one did."""

    @classmethod
    def at(cls, uri: str) -> Self:
        """The log at a path or URI.

        Raises:
            SpecError: the URI has another scheme, or its package is not installed.
        """
        if not is_object_store(uri):
            return cls(local_path(uri))
        objects = TrainerLogObjects(uri, patience=0)
        held = TemporaryDirectory(prefix="rljob-trainer-log-")
        log = cls(Path(held.name), copy=TrainerLogCopy(objects, Path(held.name)))
        log._held = held
        return log

    def refresh(self) -> None:
        """Read what was added since the last call."""
        if self._copy is not None:
            with suppress(StoreUnavailable):  # what cannot be read is not known
                self._copy.refresh()
        try:
            found = [
                (int(m[1]), path) for path in self._folder.iterdir() if (m := _FILE.fullmatch(path.name))
            ]
        except OSError:
            return
        for attempt, path in sorted(found):
            self._read(path, attempt)
        end = math.inf
        for attempt in sorted(self._first, reverse=True):
            self._ends[attempt] = end
            end = min(end, self._first[attempt])

    def _read(self, path: Path, attempt: int) -> None:
        start = self._read_to.get(path, 0)
        try:
            with BufferedReader(open_plain(path)) as file:
                file.seek(start)
                while line := file.readline(_LONGEST_LINE):
                    if not line.endswith(b"\n"):  # it is being written, or no log
                        break
                    self._add(path, attempt, start, line)
                    start += len(line)
        except (OSError, NotPlain):  # what cannot be read is not known
            return
        self._read_to[path] = start

    def _add(self, path: Path, attempt: int, start: int, line: bytes) -> None:
        found = _STEP.search(line)
        if found is None:
            return
        number, step = len(self._lines), int(found[1]) + 1
        self._lines.append(_LogLine(path, start, len(line), step, attempt))
        self._of_step[step].append(number)
        self._first[attempt] = min(step, self._first.get(attempt, step))
        for prompt in {int(group[1]) for group in _GROUP.finditer(line)}:
            self._of_prompt[prompt] = (*self._of_prompt.get(prompt, ()), number)

    def prompts_of(self, step: int) -> set[int]:
        """Indices of the prompts whose answers were trained on in a step."""
        numbers = {number for number in self._of_step.get(step, ()) if self._counts(self._lines[number])}
        return {prompt for prompt, lines in self._of_prompt.items() if numbers.intersection(lines)}

    def _counts(self, line: _LogLine) -> bool:
        return line.step < self._ends[line.attempt]

    def answers_to(self, prompts: Iterable[int]) -> dict[AnswerKey, TrainedAnswer]:
        """What was done with the answers to these prompts; the newest time counts."""
        asked = set(prompts)
        numbers = sorted({number for prompt in asked for number in self._of_prompt.get(prompt, ())})
        lines = filter(self._counts, (self._lines[number] for number in numbers))
        found = dict[AnswerKey, TrainedAnswer]()
        for path, of_file in groupby(lines, key=lambda line: line.file):
            with suppress(OSError, NotPlain), BufferedReader(open_plain(path)) as file:
                for line in of_file:
                    file.seek(line.start)
                    try:
                        items = FED.validate_json(file.read(line.length)).items
                    except ValidationError:  # damaged
                        continue
                    for item in items:
                        if prompt_of_group(item.trajectory.rpartition(".")[0]) in asked:
                            trained = TrainedAnswer(line.step, line.step - 1 - item.span.min, item.advantage)
                            found[item.trajectory, item.attempt, item.digest] = trained
        return found
