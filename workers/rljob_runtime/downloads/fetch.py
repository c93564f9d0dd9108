"""Downloads a model or a data set into a cache folder, once, however many processes of however many jobs ask for it.

    <cache>/<scheme>--<place>-<digest>/.lock          held by the process that downloads
                                      /<revision>/    whole and verified: it is renamed to this name when it is
                                      /.partial-<revision>/    what has come so far

A process that is killed, or loses its connection, leaves what it has; the next one continues in the middle of a file.
A file is whole when it has its size and its digest; one of another digest is downloaded again, once.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from rljob_core.errors import ResourceMissing, SpecError, StorageRefused, StoreUnavailable
from rljob_core.remote_uri import RemoteSource, RemoteUri, remote_uri
from rljob_runtime.downloads.bucket import BucketFolder
from rljob_runtime.downloads.choose import data_files, model_files, without_weights
from rljob_runtime.downloads.hub import HubRepository
from rljob_runtime.downloads.listing import RemoteListing, RemotePlace
from rljob_runtime.downloads.partial_file import PartialFile
from rljob_runtime.downloads.remote_file import RemoteFile
from rljob_runtime.process.fsync import create_folder, sync_folder, sync_tree
from rljob_runtime.storage import folders

CACHE = "RLJOB_CACHE"
"""Environment variable: the folder of the cache."""
_TRIES = 5
"""Tries of a file that bring no further byte, until the download is given up."""
_PAUSE_SECONDS = 0.25
"""Before the second try; twice as long before each further one."""
_SPARE_BYTES = 64 << 20
"""Of the disk that stay free."""

log = logging.getLogger("rljob.downloads")


@dataclass(frozen=True, slots=True)
class Fetched:
    """A model or a data set that is there.

    Attributes:
        path: of the model's folder; of the data set's file, folder or pattern.
        revision: of it: on a hub a commit's id, in an object store a digest of the listing.
        size: bytes of its files.
    """

    path: Path
    revision: str
    size: int


DownloadProgress = Callable[[int, int], None]
"""Gets the bytes that are there and the bytes of all files, from time to time."""


def cache_folder() -> Path:
    """The cache of this machine's user: `RLJOB_CACHE`, or else `rljob` in the user's folder for caches."""
    if given := os.environ.get(CACHE):
        return Path(given)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "rljob"


def fetch(
    what: RemoteSource,
    *,
    cache: Path,
    revision: str = "",
    weights: bool = True,
    progress: DownloadProgress | None = None,
) -> Fetched:
    """Download what a URI names, unless the cache has it.

    Args:
        what: a model or a data set.
        cache: the folder of the cache.
        weights: of a model; False: its settings and its tokenizer suffice.
        revision: the one that was resolved before; empty: resolve the URI's now.
        progress: see there.

    Raises:
        SpecError: the URI names nothing that can be used; or it has changed since its revision was resolved.
        StoreUnavailable: the server does not answer.
        StorageRefused: the cache's disk is full, or does not take it for another reason.
    """
    report = progress or (lambda *_: None)
    uri, field, source = what.uri, what.field, what.source
    remote = remote_uri(uri, is_data=bool(source))
    if remote is None:
        raise SpecError(
            field, f"{uri} is no URI of a {'data set' if source else 'model'} that can be downloaded"
        )
    whole = home = cache / _name(remote, source)
    if not weights:
        home = home.with_name(f"{home.name}-settings")
    for found in (whole, home):
        if revision and (found / revision).is_dir():
            return _there(found / revision, remote, revision)
    place, path = _open(remote.pinned(revision) if revision and remote.scheme == "hf" else remote, field)
    choose = (
        partial(data_files, path=path, source=source, field=field)
        if source
        else partial(model_files, field=field)
    )
    try:
        listing = place.list(choose)
    except ResourceMissing:
        raise
    except SpecError as error:
        if not revision:
            raise
        # It was there when the job began: a running job waits for it to come back.
        raise ResourceMissing(field, f"{uri}, which this job began with, is gone: {error.message}") from error
    if revision and listing.revision != revision:
        raise ResourceMissing(
            field,
            f"{uri} has changed since this job began, and its models and data must stay as they were: put back "
            "what was there, or start another job",
        )
    chosen = listing if weights or source else replace(listing, files=without_weights(listing.files))
    target = home / chosen.revision
    if not target.is_dir():
        with _locked(home):
            if not target.is_dir():
                _download(place, place.with_digests(chosen), home, uri, report)
    report(chosen.size, chosen.size)
    return _there(target, remote, chosen.revision)


def _open(remote: RemoteUri, field: str) -> tuple[RemotePlace, str]:
    """The place, and the path in it of a data set."""
    if remote.scheme == "hf":
        return HubRepository(remote, field=field), remote.path
    bucket = BucketFolder(remote, field=field)
    return bucket, bucket.pattern


def _there(folder: Path, remote: RemoteUri, revision: str) -> Fetched:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    size = sum(path.stat().st_size for path in files)
    alone = remote.is_data and len(files) == 1
    return Fetched(files[0] if alone else folder, revision, size)


def _name(remote: RemoteUri, source: str) -> str:
    """The folder of a place in the cache."""
    text = remote.without_revision
    words = re.sub(r"[^A-Za-z0-9._-]+", "--", text)[:100].strip("-.")
    return f"{words}-{hashlib.sha256(f'{text} {source}'.encode()).hexdigest()[:8]}"


@contextmanager
def _locked(home: Path) -> Iterator[None]:
    from filelock import FileLock, Timeout

    with folders.writing(home):
        create_folder(home)
        lock = FileLock(home / ".lock")
    try:
        lock.acquire(blocking=False)
    except Timeout:
        log.info("another process downloads to %s: waiting for it", home)
        lock.acquire()
    except OSError as error:
        raise StorageRefused(f"{home}: {error.strerror or error}") from error
    try:
        yield
    finally:
        lock.release()


def _download(
    place: RemotePlace, listing: RemoteListing, home: Path, uri: str, progress: DownloadProgress
) -> None:
    """Download all files aside, and give the folder its name once all are right and durable."""
    aside_folder, target = home / f".partial-{listing.revision}", home / listing.revision
    with folders.writing(aside_folder):
        create_folder(aside_folder)
    _leave_room(listing, aside_folder)
    done = 0

    def received(count: int) -> None:
        nonlocal done
        done += count
        progress(done, listing.size)

    for file in listing.files:
        _download_file(place, file, aside_folder, uri, received)
    if not place.is_as_listed(listing):
        with folders.writing(aside_folder):
            shutil.rmtree(aside_folder)
        raise StoreUnavailable(f"{uri} was changed while it was downloaded: downloading it again may do")
    with folders.writing(target):
        for stale in aside_folder.glob(".incomplete-*"):
            stale.unlink()
        sync_tree(aside_folder)
        aside_folder.rename(target)
        sync_folder(home)


def _leave_room(listing: RemoteListing, aside_folder: Path) -> None:
    with folders.writing(aside_folder):
        have = sum(path.stat().st_size for path in aside_folder.rglob("*") if path.is_file())
        free = shutil.disk_usage(aside_folder).free
    needed = listing.size - have + _SPARE_BYTES
    if needed > free:
        raise StorageRefused(
            f"{needed >> 20} MB are needed in {aside_folder.parent}, and {free >> 20} MB are free: free some, or set "
            f"{CACHE} to a folder on another disk (on a cluster: a larger spec.model.cache)"
        )


def _download_file(
    place: RemotePlace, file: RemoteFile, aside_folder: Path, uri: str, received: Callable[[int], None]
) -> None:
    target = aside_folder / file.name
    if target.is_file() and target.stat().st_size == file.size:  # it was right when it got its name
        received(file.size)
        return
    aside = aside_folder / f".incomplete-{file.tag}"
    with PartialFile(aside, file, received) as into:
        _read_whole(place, file, into)
        if not into.is_right:
            log.warning("%s of %s is not what its digest says: downloading it again", file.name, uri)
            into.clear()
            _read_whole(place, file, into)
        if not into.is_right:
            into.clear()
            raise StoreUnavailable(
                f"{file.name} of {uri} is not what its digest says ({file.kind} {file.digest}), although it was "
                "downloaded twice: something between here and there changes it"
            )
        into.sync()
    with folders.writing(target):
        create_folder(target.parent)
        aside.rename(target)


def _read_whole(place: RemotePlace, file: RemoteFile, into: PartialFile) -> None:
    """Read until the file has all bytes: after each cut from where it ended."""
    tries = 0
    while not into.is_whole:
        before = into.size
        try:
            place.read(file, into)
        except StoreUnavailable as error:
            tries = 1 if into.size > before else tries + 1
            if tries >= _TRIES:
                raise
            log.warning("%s was cut at %d of %d bytes: %s", file.name, into.size, file.size, error)
            time.sleep(_PAUSE_SECONDS * 2**tries)


def progress_lines(uri: str, *, every: float, say: Callable[[str], None]) -> Callable[[int, int], None]:
    """A function that says how many bytes there are, of how many: at most once in `every` seconds, and not at the end.

    Args:
        uri: of what is downloaded.
        every: seconds.
        say: takes a line.
    """
    said = time.monotonic() - every

    def progress(done: int, size: int) -> None:
        nonlocal said
        if (now := time.monotonic()) - said >= every and done < size:
            said = now
            say(f"downloading {uri}: {done / 1e6:.1f} of {size / 1e6:.1f} MB")

    return progress
