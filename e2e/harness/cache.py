"""Where the harness keeps what is slow to make: one folder outside the checkout, shared by all of a user's checkouts.

    <cache>/kubernetes-v1.35.4/bin/   etcd, kube-apiserver, kubectl … (KUBEBUILDER_ASSETS may point here)
    <cache>/coredns-v1.14.7/bin/      coredns
    <cache>/helm-v3.22.0/bin/         helm
    <cache>/nats-server-2.14.6/bin/   nats-server of a release before the installed one
    <cache>/images/                   image archives
    <cache>/go/                       Go's own caches, only while something is being built

`RLJOB_CACHE` moves it; without it, it is `rljob` under `XDG_CACHE_HOME` or `~/.cache`.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path


def cache_folder(environment: Mapping[str, str] = os.environ) -> Path:
    """The folder; it may not exist yet."""
    if chosen := environment.get("RLJOB_CACHE"):
        return Path(chosen).expanduser().absolute()
    # As the XDG base directory specification says, a relative path is to be ignored.
    home = Path(environment.get("XDG_CACHE_HOME", ""))
    return (home if home.is_absolute() else Path.home() / ".cache") / "rljob"


@contextmanager
def locked(path: Path, *, waiting: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Hold a lock among processes, that the kernel lets go when its holder dies.

    Args:
        path: the lock file; made if missing, never removed (removing it would let two in).
        waiting: called once if somebody else holds it.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            waiting()
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
