"""A limit that is used up is named, whoever says it."""

from __future__ import annotations

import errno

import pytest

from rljob_core.errors import failure_of
from rljob_core.exhausted import limit_of
from rljob_core.failures import Reason

GIVEN_UP = "9 prompts of step 0 were given up: prompt 3 (g3.0): RewardRaised: mine:score raised OSError: "


@pytest.mark.parametrize(
    ("error", "named"),
    [
        (OSError(errno.EMFILE, "Too many open files"), "ulimit -n"),
        (OSError(errno.EADDRNOTAVAIL, "Cannot assign requested address"), "loopback"),
        (BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable"), "ulimit -u"),
        (RuntimeError("can't start new thread"), "ulimit -u"),
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
    if isinstance(error, StoreUnavailable):
        assert fault_of_error(error) is (LIMIT if named else SERVER)


def test_a_limit_that_user_code_meets_is_the_user_s() -> None:
    assert fault_of_words(f"{GIVEN_UP}Too many open files") is REWARD
    assert fault_of_words("coordinator: exit code 1: OSError: [Errno 24] Too many open files") is LIMIT
