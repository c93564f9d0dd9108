"""The trainer's own log in an object store: objects that are written once, as nothing can be appended to one.

    <log>/attempt-3/00000001.jsonl     the lines of a step; the next object has the next number

Readers know the log as a folder with one file per attempt, `attempt-3.jsonl`: `TrainerLogCopy` makes and follows it.
"""

from __future__ import annotations

import re
from collections import defaultdict
from functools import partial
from pathlib import Path

from rljob_runtime.storage.objects import object_store, reading
from rljob_runtime.storage.transfers import PATIENCE_SECONDS, at_once, get_object, patiently, put_object

_NAME = re.compile(r"attempt-(\d+)/(\d+)\.jsonl")


class TrainerLogObjects:
    """The objects of one job's log.

    Args:
        uri: `s3://bucket/prefix` or `gs://bucket/prefix`.
        patience: seconds for which a store that does not answer is waited for.

    Raises:
        SpecError: the URI has another scheme, or its package is not installed.
    """

    def __init__(self, uri: str, *, patience: float = PATIENCE_SECONDS) -> None:
        self._files, self._root = object_store(uri, field="spec.trainer.checkpoint.uri")
        self._patience = patience

    def put(self, attempt: int, number: int, lines: bytes) -> None:
        """Write an object, durably.

        Raises:
            StorageRefused: the store does not take it.
        """
        put_object(self._files, self._name(attempt, number), lines, patience=self._patience)

    def get(self, attempt: int, number: int) -> bytes:
        """The lines of an object.

        Raises:
            FileNotFoundError: there is none.
            StoreUnavailable: the store does not answer.
        """
        return get_object(self._files, self._name(attempt, number), patience=self._patience)

    def numbers(self) -> dict[int, list[int]]:
        """The numbers of the objects of each attempt, both in their order.

        Raises:
            StoreUnavailable: the store does not answer.
        """

        def act() -> list[str]:
            try:
                with reading(self._root):
                    self._files.invalidate_cache()
                    return list(self._files.find(self._root))
            except FileNotFoundError:
                return []

        found = defaultdict[int, list[int]](list)
        for name in patiently(act, seconds=self._patience):
            if match := _NAME.fullmatch(name.removeprefix(f"{self._root}/")):
                found[int(match[1])].append(int(match[2]))
        return {attempt: sorted(found[attempt]) for attempt in sorted(found)}

    def _name(self, attempt: int, number: int) -> str:
        return f"{self._root}/attempt-{attempt}/{number:08d}.jsonl"


class TrainerLogCopy:
    """A log in an object store, copied to a folder as the files that a trainer writes to one.

    Args:
        objects: the log.
        folder: of the files.
    """

    def __init__(self, objects: TrainerLogObjects, folder: Path) -> None:
        self._objects, self._folder = objects, folder
        self._copied = dict[int, int]()

    def refresh(self) -> None:
        """Add what was written since the last call.

        Raises:
            StoreUnavailable: the store does not answer.
        """
        for attempt, numbers in self._objects.numbers().items():
            new = [number for number in numbers if number > self._copied.get(attempt, 0)]
            parts = at_once(partial(self._objects.get, attempt, number) for number in new)
            if parts:
                with (self._folder / f"attempt-{attempt}.jsonl").open("ab") as file:
                    file.writelines(parts)
                self._copied[attempt] = new[-1]


def put_log(objects: TrainerLogObjects, folder: Path) -> None:
    """Write the files of a log's folder as objects, one for each attempt."""
    for path in sorted(folder.glob("attempt-*.jsonl")):
        objects.put(int(path.stem.removeprefix("attempt-")), 1, path.read_bytes())
