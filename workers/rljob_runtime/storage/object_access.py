"""Whether an object store can be used, in words that name the field, before anything starts that needs it."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from threading import Thread

from rljob_core.errors import ResourceMissing, StorageRefused
from rljob_runtime.storage.objects import object_store, writing
from rljob_runtime.storage.transfers import is_permanent

_WORDS = (
    "put the keys of a writer into the Secret that spec.model.credentialsSecret names; for rljob run, into the "
    "environment"
)


_SECONDS = 15.0
"""The libraries of object stores try again for longer."""


def check_usable(uri: str, *, field: str) -> None:
    """Write and delete a small object below a prefix.

    Args:
        uri: `s3://bucket/prefix` or `gs://bucket/prefix`.
        field: the manifest's field that gives it.

    Raises:
        SpecError: the scheme is unknown, or its package is not installed.
        ResourceMissing: the store does not answer, refuses these credentials, or has no such bucket.
    """
    files, root = object_store(uri, field=field)
    name = f"{root}/.rljob-{secrets.token_hex(8)}"

    def put() -> None:
        with writing(name):
            files.pipe_file(name, b"")

    try:
        _within(_SECONDS, put)
    except TimeoutError as error:
        raise ResourceMissing(field, f"{uri} does not answer within {_SECONDS:.0f} s") from error
    except StorageRefused as error:
        if isinstance(error.__cause__, FileNotFoundError):
            words = f"{uri}: there is no such bucket: create it, or correct the name"
        elif is_permanent(error):
            words = f"{uri} may not be written to ({error.__cause__}): {_WORDS}"
        else:
            words = f"{uri} does not answer ({error.__cause__})"
        raise ResourceMissing(field, words) from error
    with suppress(StorageRefused), writing(name):  # some may write and not delete
        files.rm_file(name)


def _within(seconds: float, act: Callable[[], None]) -> None:
    """Call a function in a thread that nobody waits for any longer than this.

    Raises:
        TimeoutError: it has not returned by then.
    """
    done: Future[None] = Future()

    def run() -> None:
        try:
            act()
        except BaseException as error:
            done.set_exception(error)
        else:
            done.set_result(None)

    Thread(target=run, name="object-store", daemon=True).start()
    done.result(seconds)
