"""Downloads what a job on this machine names by URI, and shows how far it is."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

import typer

from rljob_core.remote_uri import known_revision, remote_sources
from rljob_core.spec import RLJobSpec

if TYPE_CHECKING:
    from rljob_runtime.downloads.fetch import DownloadProgress

_SAY_SECONDS = 30.0

Downloads = dict[str, dict[str, str]]
"""`uri`, `revision` and `path` of what was downloaded, by its name: `model`, `data`, `evaluation`, …"""


def download(spec: RLJobSpec, before: Mapping[str, Mapping[str, str]]) -> Downloads:
    """Download what the job names by URI, unless the cache has it.

    Args:
        spec: of the job.
        before: what it downloaded when it began; its revisions are kept.

    Raises:
        SpecError: a URI names nothing that can be used.
        StoreUnavailable, StorageRefused: of a server, of the disk.
    """
    found: Downloads = {}
    known = {(name, one["uri"]): one["revision"] for name, one in before.items()}
    sources = remote_sources(spec)
    for one in sources:
        from rljob_runtime.downloads.fetch import cache_folder, fetch

        revision = known_revision(one, sources, known)
        with _progress(one.uri) as progress:
            got = fetch(one, cache=cache_folder(), revision=revision, progress=progress)
        known[one.name, one.uri] = got.revision
        found[one.name] = {"uri": one.uri, "revision": got.revision, "path": str(got.path)}
    return found


@contextmanager
def _progress(uri: str) -> Iterator[DownloadProgress]:
    """A function that shows how much of a URI there is: a bar in a terminal, else a line from time to time."""
    from rljob_runtime.downloads.fetch import progress_lines

    if not sys.stderr.isatty():
        yield progress_lines(uri, every=_SAY_SECONDS, say=partial(typer.echo, err=True))
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn

    columns = "{task.description}", BarColumn(), DownloadColumn(), TimeRemainingColumn()
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task(uri, total=None)
        yield lambda done, size: bar.update(task, completed=done, total=size)
