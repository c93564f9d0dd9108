"""A limit that is used up is named, whoever says it."""

from __future__ import annotations

import errno

import pytest

from rljob_core.errors import JobFailed, StoreUnavailable, failure_of
from rljob_core.exhausted import limit_of
from rljob_core.failures import Reason


@pytest.mark.parametrize(
    ("error", "named"),
    [
        (OSError(errno.EMFILE, "Too many open files"), "ulimit -n"),
        (OSError(errno.EADDRNOTAVAIL, "Cannot assign requested address"), "loopback"),
        (BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable"), "ulimit -u"),
        (RuntimeError("can't start new thread"), "ulimit -u"),
        (MemoryError(), "ulimit -v"),
        (
            StoreUnavailable("nats-server did not start:\nruntime: failed to create new OS thread"),
            "ulimit -u",
        ),
        (StoreUnavailable("no nats-server answers at nats://nats:4222"), ""),
        (OSError(errno.ENOSPC, "No space left on device"), ""),
    ],
)
def test_the_limit_that_an_error_means(error: Exception, named: str) -> None:
    limit = limit_of(error)
    assert named in limit
    assert bool(limit) == bool(named)
    assert (failure_of(error).reason is Reason.LIMIT_REACHED) == bool(named)


def test_a_limit_that_user_code_meets_is_the_user_s() -> None:
    failed = JobFailed("mine:score raised OSError: Too many open files", Reason.REWARD_RAISED)
    assert failure_of(failed).reason is Reason.REWARD_RAISED
