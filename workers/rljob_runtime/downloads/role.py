"""The init container of a worker's pod that downloads what the job names by URI.

Its configuration says where: the cache, and for each model or data set a path, at which the worker finds a link to what
was downloaded. Its termination message says at which revision that was.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import time
from contextlib import suppress
from pathlib import Path

from rljob_core import worker_protocol
from rljob_core.config import JobConfig
from rljob_core.errors import StoreUnavailable
from rljob_core.remote_uri import RemoteSource, known_revision, uri_digest
from rljob_runtime.downloads.fetch import Fetched, fetch, progress_lines
from rljob_runtime.storage import folders

_SAY_SECONDS = 10.0
_PATIENCE_SECONDS = 3600.0
"""After the last byte, for which a download is continued, as what has come is lost with a trainer's pod..."""
_WORTH_BYTES = 64 << 20
"""... if so much has: else the pod's end says sooner what is wrong."""
_RETRY_SECONDS = 15.0

log = logging.getLogger("rljob")


def run_fetch(config: JobConfig, weights: bool, data: bool) -> None:
    """Download what the job names, and leave a link to it at its path.

    Args:
        config: the job.
        weights: whether the weights of its model are needed.
        data: whether its data sets are needed.

    Raises:
        SpecError, StoreUnavailable, StorageRefused: see `fetch`.
    """
    # As the first process of its container, it would ignore SIGTERM. What has come stays, for a later process.
    signal.signal(signal.SIGTERM, lambda *_: os._exit(worker_protocol.EXIT_STOPPED))
    sources = {
        name: RemoteSource(name, what.field, what.uri, what.source) for name, what in config.downloads.items()
    }
    known = {(name, what.uri): what.revision for name, what in config.downloads.items()}
    rows = []
    for name, what in config.downloads.items():
        if what.source and not data:
            continue
        revision = known_revision(sources[name], sources.values(), known)
        got = _fetched(sources[name], Path(config.download_cache), revision, weights=weights)
        _link(Path(what.path), got.path)
        known[name, what.uri] = got.revision
        rows.append((name, uri_digest(what.uri), got.revision))
        log.info("%s is revision %s: %.1f MB in %s", what.uri, got.revision, got.size / 1e6, got.path)
    if path := os.environ.get(worker_protocol.TERMINATION_LOG):
        Path(path).write_text(f"{worker_protocol.FETCHED}{json.dumps(rows)}", encoding="utf-8")


def _fetched(what: RemoteSource, cache: Path, revision: str, *, weights: bool) -> Fetched:
    """Download, and continue after long cuts what is worth it."""
    say, last = progress_lines(what.uri, every=_SAY_SECONDS, say=log.info), None

    def progress(done: int, size: int) -> None:
        nonlocal last
        if _WORTH_BYTES <= done < size:
            last = time.monotonic()
        say(done, size)

    while True:
        try:
            return fetch(what, cache=cache, revision=revision, weights=weights, progress=progress)
        except StoreUnavailable as error:
            if last is None or time.monotonic() - last > _PATIENCE_SECONDS:
                raise
            log.warning("%s was cut, and is continued in %.0f s: %s", what.uri, _RETRY_SECONDS, error)
        time.sleep(_RETRY_SECONDS)


def _link(path: Path, target: Path) -> None:
    with folders.writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileNotFoundError):  # of an earlier run of the container
            path.unlink()
        path.symlink_to(target)
