"""Which limit of the machine or of the session is used up, by what the system and programs say then.

The words are those of the C library, Go's runtime, Python and OpenMP: none of ours.
"""

from __future__ import annotations

import errno
import re

_FILES = "no more files may be open (`ulimit -n`, or fs.file-max of the machine)"
_PROCESSES = (
    "no more processes or threads may run (`ulimit -u`, the session's TasksMax, or the container's limit)"
)
_PORTS = "no local port is free, or the machine has no loopback interface (`ip link set lo up`)"
_MEMORY = "no more memory is given (`ulimit -v`, the container's limit, or the machine has none)"
_BY_NUMBER = {
    errno.EMFILE: _FILES,
    errno.ENFILE: _FILES,
    errno.EAGAIN: _PROCESSES,
    errno.EADDRNOTAVAIL: _PORTS,
    errno.EADDRINUSE: _PORTS,
    errno.ENOMEM: _MEMORY,
}
_BY_WORDS = [
    (re.compile(r"too many open files", re.IGNORECASE), _FILES),
    (
        re.compile(
            r"can't (start|create) new thread|failed to create new OS thread|pthread_create failed|"
            r"fork.*resource temporarily unavailable",
            re.IGNORECASE,
        ),
        _PROCESSES,
    ),
    (re.compile(r"cannot assign requested address", re.IGNORECASE), _PORTS),
    (re.compile(r"cannot allocate memory", re.IGNORECASE), _MEMORY),
]


def limit_of(error: BaseException) -> str:
    """The limit that an error means, in words; empty if it means none."""
    if isinstance(error, OSError) and not isinstance(error, TimeoutError):
        return _BY_NUMBER.get(error.errno or 0, "")
    if isinstance(error, MemoryError):
        return _MEMORY
    return limit_in(str(error))


def limit_in(said: str) -> str:
    """The limit that a program's output means, in words; empty if it means none."""
    return next((limit for pattern, limit in _BY_WORDS if pattern.search(said)), "")
