"""The samples of a run as documents: what the model answered, page by page. Read in a thread: files may be large."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from rljob_cli.run_folder.folder import RunFolder
from rljob_cli.samples.kept import kept_samples, why_none
from rljob_core.errors import RLJobError

if TYPE_CHECKING:  # it needs pyarrow, which a slim install lacks
    from rljob_runtime.samples.read import SampledAnswer, SampleReader

AnswerOrder = Literal["newest", "oldest", "worst", "best"]
FileVersions = tuple[tuple[str, int, int, int], ...]
"""Path, inode, time and size of files."""
_MOST_GROUPS = 20
_TOKENS_SHOWN = 1500
_ANSWERS_KEPT = 8
_ELSEWHERE_SECONDS = 10.0
_TRUTH = {"yes": True, "no": False}


@dataclass(frozen=True, slots=True)
class AnswerQuery:
    """What a browser asks for; see `rljob_runtime.samples.read.SampleFilter`."""

    start: int = 0
    limit: int = 6
    order: AnswerOrder = "newest"
    step: int | None = None
    prompt: str = ""
    reward_below: float | None = None
    aborted: bool | None = None
    evaluation: bool | None = None
    tokens: int = _TOKENS_SHOWN

    @classmethod
    def of(cls, parameters: Mapping[str, str]) -> AnswerQuery:
        """Read the parameters of a URL; those that are empty do not filter.

        Raises:
            ValueError: one of them is no number, or no order.
        """
        given = {name: text for name, text in parameters.items() if text}
        orders: dict[str, AnswerOrder] = {order: order for order in get_args(AnswerOrder)}
        order = orders.get(given.get("order", "newest"))
        if order is None:
            raise ValueError(f"order is one of {', '.join(get_args(AnswerOrder))}")
        below = given.get("reward_below")
        return cls(
            start=max(int(given.get("start", 0)), 0),
            limit=min(max(int(given.get("limit", 6)), 1), _MOST_GROUPS),
            order=order,
            step=int(given["step"]) if "step" in given else None,
            prompt=given.get("prompt", "")[:500],
            reward_below=float(below) if below is not None else None,
            aborted=_TRUTH.get(given.get("aborted", "")),
            evaluation=_TRUTH.get(given.get("evaluation", "")),
            tokens=max(int(given.get("tokens", _TOKENS_SHOWN)), 1),
        )


class KeptAnswers:
    """Reads the samples of one run, one page at a time.

    Args:
        path: the run's folder.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._reader: SampleReader | None = None
        self._one = asyncio.Lock()  # a reader is not for several threads at once
        self._seen: FileVersions = ()
        self._made: dict[AnswerQuery, bytes] = {}

    async def document(self, query: AnswerQuery) -> bytes:
        """A page of groups as JSON, and why there is none if there is none."""
        async with self._one:
            try:
                return await asyncio.to_thread(self._answer, query)
            except RLJobError as error:
                nothing = {"groups": [], "total": 0, "start": 0, "kept": 0, "problems": []}
                return _json({**nothing, "reason": str(error)})

    def _answer(self, query: AnswerQuery) -> bytes:
        """What was answered last, as long as no file has changed."""
        folder = RunFolder(self._path)
        seen = _versions(folder.samples, folder.trainer, folder.job)
        if not folder.samples.is_dir():  # of a job on a cluster they may be elsewhere
            seen += (("", int(time.monotonic() / _ELSEWHERE_SECONDS), 0, 0),)
        if seen != self._seen:
            self._made.clear()
        if query not in self._made:
            if len(self._made) >= _ANSWERS_KEPT:
                self._made.clear()
            self._made[query] = self._page(query)
        self._seen = seen
        return self._made[query]

    def _page(self, query: AnswerQuery) -> bytes:
        from pydantic import TypeAdapter

        if self._reader is None:
            self._reader = kept_samples(self._path)
        else:
            self._reader.refresh()
        from rljob_runtime.samples.read import SampleFilter, SamplePage

        chosen = SampleFilter(query.step, query.prompt, query.reward_below, query.aborted, query.evaluation)
        page = self._reader.page(chosen, order=query.order, start=query.start, limit=query.limit)
        groups = [
            replace(group, answers=tuple(_cut(answer, query.tokens) for answer in group.answers))
            for group in page.groups
        ]
        # As JSON and back: a log-probability may be infinite, for which JSON has null.
        found: dict[str, Any] = json.loads(
            TypeAdapter(SamplePage).dump_json(replace(page, groups=tuple(groups)))
        )
        for group, shown in zip(page.groups, found["groups"], strict=True):
            for answer, part in zip(group.answers, shown["answers"], strict=True):
                part["length"] = len(answer.tokens)
        return _json({**found, "reason": "" if page.kept else why_none(self._path)})


def _cut(answer: SampledAnswer, most: int) -> SampledAnswer:
    if len(answer.tokens) <= most:
        return answer
    texts = answer.texts[:most]
    return replace(
        answer,
        response="".join(texts),
        texts=texts,
        tokens=answer.tokens[:most],
        logprobs=answer.logprobs[:most],
        versions=answer.versions[:most],
    )


def _versions(*paths: Path) -> FileVersions:
    """What changes whenever one of the files, or a file in one of the folders, does."""
    found = list[tuple[str, int, int, int]]()
    for path in paths:
        with suppress(OSError):
            for file in sorted(path.iterdir()) if path.is_dir() else [path]:
                with suppress(OSError):
                    status = file.stat()
                    found.append((str(file), status.st_ino, status.st_mtime_ns, status.st_size))
    return tuple(found)


def _json(content: dict[str, Any]) -> bytes:
    return json.dumps(content, separators=(",", ":")).encode()
