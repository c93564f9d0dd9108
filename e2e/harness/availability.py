"""What tests do where this machine lacks something: they skip and say what, or fail where nothing may be skipped."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

import pytest

from e2e.harness.errors import NotAvailableError


@contextmanager
def available() -> Iterator[None]:
    """Skip the test for a `NotAvailableError`; fail it if RLJOB_E2E_REQUIRED is set."""
    try:
        yield
    except NotAvailableError as error:
        _unavailable(str(error))


def _unavailable(reason: str) -> NoReturn:
    if os.environ.get("RLJOB_E2E_REQUIRED"):
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)
