"""Writes samples, beside the reward role and never in its way.

The role offers each scored answer, which costs it a look at the group's id and a lock. A thread makes rows of what was
offered and writes them every few seconds: a file grows, by being replaced as a whole, until it is full. A process that
is killed loses what it has not yet written. A store that is full, slow or gone costs samples: what waits is limited,
and what is beyond that is dropped, counted and logged.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field

import pyarrow as pa

from rljob_core.trajectory import group_of, is_evaluation
from rljob_core.words import error_in_words
from rljob_runtime.samples.keeping import SampleFile, SampleKind, is_full, keeps, outdated, pause_after
from rljob_runtime.samples.places import SamplePlace
from rljob_runtime.samples.rows import ScoredAnswer, TokenTexts, as_file, table_of

log = logging.getLogger(__name__)

#: Bytes of answers that may wait for the thread, which may wait for the store.
_WAITING = 32 << 20
#: Seconds between two looks at how much is stored, two attempts at a store that fails, and two complaints about it.
_LOOK, _AGAIN, _COMPLAIN = 30.0, 10.0, 60.0
_SLOW = "the storage is slower than answers come"
_KINDS: tuple[SampleKind, ...] = ("training", "evaluation")


@dataclass(frozen=True, slots=True)
class SampleCounts:
    """What has become of the answers that were to be kept.

    Attributes:
        offered: answers of groups that are kept.
        stored: of them, those that are in files.
        lost: of them, those that were dropped, because the store was full, slow or gone.
        problem: why the newest write failed; empty if it did not.
        reason: why the newest of them was lost; empty if none was.
    """

    offered: int = 0
    stored: int = 0
    lost: int = 0
    problem: str = ""
    reason: str = ""


@dataclass(slots=True)
class _GrowingFile:
    file: SampleFile
    tables: list[pa.Table] = field(default_factory=list)
    stored: int = 0
    """Rows that are in the file already."""

    @property
    def rows(self) -> int:
        return sum(table.num_rows for table in self.tables)

    @property
    def memory(self) -> int:
        return sum(int(table.nbytes) for table in self.tables)


class SampleLog:
    """Keeps the answers that one process offers.

    Args:
        place: where to.
        texts: decodes tokens.
        writer: name of this process, which no other that writes there has.
        worker: name of the reward worker, for people.
        job: UID of the job.
        share: of the training groups that are kept.
        keep_bytes: of all files that are kept, also those of other writers.
        waiting_bytes: of answers that may wait.
    """

    def __init__(
        self,
        place: SamplePlace,
        texts: TokenTexts,
        *,
        writer: str,
        worker: str,
        job: str,
        share: float,
        keep_bytes: int,
        waiting_bytes: int = _WAITING,
    ) -> None:
        self._place = place
        self._texts = texts
        self._writer, self.worker, self._job = writer, worker, job
        self._share, self._keep_bytes, self._most = share, keep_bytes, waiting_bytes
        self._waiting = deque[ScoredAnswer]()
        self._size = 0
        self._changed = threading.Condition()
        self._closing = False
        self._counts = SampleCounts()
        self._growing = dict[SampleKind, _GrowingFile]()
        self._number = 0
        self._looked = self._complained = float("-inf")
        self._thread = threading.Thread(target=self._run, name="samples", daemon=True)
        self._thread.start()

    def offer(self, answer: ScoredAnswer) -> None:
        """Keep an answer, if its group is kept and there is room; returns at once."""
        if not keeps(group_of(answer.trajectory.id), self._share):
            return
        with self._changed:
            dropped = self._closing or self._size + answer.size > self._most
            if not dropped:
                self._waiting.append(answer.detached())
                self._size += answer.size
                self._changed.notify()
        self._count(offered=1, lost=int(dropped), problem=_SLOW if dropped else None, reason=_SLOW)
        if dropped:
            self._complain(_SLOW)

    @property
    def counts(self) -> SampleCounts:
        """What has become of the answers so far."""
        return self._counts

    def close(self, seconds: float = 5.0) -> None:
        """Write what is left, if the store takes it in that many seconds."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join(seconds)
        counts = self._counts
        if lost := counts.offered - counts.stored:
            log.warning("%d of %d samples were not stored: training lacks nothing", lost, counts.offered)

    # ------------------------------------------------------------------------------------- the thread

    def _run(self) -> None:
        with suppress(Exception):
            self._place.sweep()
        self._delete_outdated()
        due, well, closing = 0.0, True, False
        while not closing:
            with self._changed:
                wait = None if well else max(0.0, due - time.monotonic())
                self._changed.wait_for(lambda: self._closing or self._waiting, timeout=wait)
                self._changed.wait_for(self._has_enough, timeout=max(0.0, due - time.monotonic()))
                closing = self._closing
                answers, self._waiting, self._size = self._waiting, deque(), 0
            began = time.monotonic()
            for kind in _KINDS:
                self._add(kind, [answer for answer in answers if _kind_of(answer) == kind])
            taken = [self._store(kind) for kind in _KINDS]  # each, whatever becomes of the others
            well = all(taken)
            now = time.monotonic()
            due = now + (pause_after(now - began) if well else _AGAIN)

    def _has_enough(self) -> bool:
        return self._closing or self._size > self._most / 2

    def _add(self, kind: SampleKind, answers: list[ScoredAnswer]) -> None:
        """Make rows of answers, for the file that grows."""
        tables = self._tables_of(answers)
        if not tables:
            return
        growing = self._growing.get(kind)
        if growing is None:
            self._number += 1
            created = min(round(answer.scored * 1000) for answer in answers)
            growing = _GrowingFile(SampleFile(created, kind, self._writer, self._number))
            self._growing[kind] = growing
        growing.tables += tables

    def _tables_of(self, answers: list[ScoredAnswer]) -> list[pa.Table]:
        """The answers as rows; one that makes no row, as an engine may send anything, costs itself."""
        try:
            return [table_of(answers, self._texts, worker=self.worker)] if answers else []
        except Exception as error:
            if len(answers) > 1:
                return [table for answer in answers for table in self._tables_of([answer])]
            why = f"{answers[0].trajectory.id} makes no row: {error_in_words(error)}"
            self._count(lost=1, reason=why)
            self._complain(why)
            return []

    def _store(self, kind: SampleKind) -> bool:
        """Write the file that grows, if it has new rows; whether the store has taken them."""
        growing = self._growing.get(kind)
        if growing is None or growing.rows == growing.stored:
            return True
        full = is_full(growing.memory, self._keep_bytes)
        new = growing.rows - growing.stored
        try:
            content = as_file(pa.concat_tables(growing.tables), job=self._job)
            self._place.write(growing.file.name, content)
        except Exception as error:  # a store's client may raise anything
            why = error_in_words(error)
            self._count(lost=new if full else 0, problem=why, reason=why)
            self._complain(why)
            if full:
                del self._growing[kind]
            self._delete_outdated()  # which may be what makes room
            return False
        if self._counts.problem:
            log.info("samples are stored again; %d were lost", self._counts.lost)
        growing.stored += new
        self._count(stored=new, problem="")
        if full:
            del self._growing[kind]
        if full or time.monotonic() - self._looked >= _LOOK:
            self._delete_outdated()
        return True

    def _delete_outdated(self) -> None:
        self._looked = time.monotonic()
        try:
            sizes = self._place.sizes().items()
            files = [file for name, (size, _) in sizes if (file := SampleFile.of(name, size)) is not None]
            for file in outdated(files, self._keep_bytes):
                self._place.delete(file.name)
        except Exception as error:  # as above: what is too much is deleted another time
            if self._may_complain():
                log.warning("old samples are not deleted: %s", error_in_words(error))

    # ------------------------------------------------------------------------------------- both threads

    def _count(
        self,
        *,
        offered: int = 0,
        stored: int = 0,
        lost: int = 0,
        problem: str | None = None,
        reason: str = "",
    ) -> None:
        with self._changed:
            now = self._counts
            self._counts = SampleCounts(
                offered=now.offered + offered,
                stored=now.stored + stored,
                lost=now.lost + lost,
                problem=now.problem if problem is None else problem,
                reason=reason if lost else now.reason,
            )

    def _complain(self, why: str) -> None:
        if self._may_complain():
            log.warning(
                "samples are not stored (%d are lost), training continues: %s", self._counts.lost, why
            )

    def _may_complain(self) -> bool:
        now = time.monotonic()
        if now - self._complained < _COMPLAIN:
            return False
        self._complained = now
        return True


def _kind_of(answer: ScoredAnswer) -> SampleKind:
    return "evaluation" if is_evaluation(answer.trajectory.id) else "training"
