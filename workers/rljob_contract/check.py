"""Contracts: lists of checks, which are functions whose docstrings say what must hold and what to do if it does not."""

from __future__ import annotations

import asyncio
import inspect
import traceback
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from rljob_core.errors import SpecError

S = TypeVar("S")
CheckFunction = Callable[[S], Awaitable[None] | None]


class ContractBroken(Exception):
    """A check failed; the message says what it found."""


def require(holds: bool, found: str) -> None:
    """Raise unless a condition holds.

    Raises:
        ContractBroken: it does not hold; `found` says what was found instead.
    """
    if not holds:
        raise ContractBroken(found)


@dataclass(frozen=True, slots=True)
class Check(Generic[S]):
    """One clause of a contract.

    Attributes:
        name: in words joined by hyphens.
        claim: what must hold, a sentence.
        remedy: what to do where it does not.
        run: raises `ContractBroken`, or whatever the subject raises; what it returns is awaited, if anything.
    """

    name: str
    claim: str
    remedy: str
    run: CheckFunction[S]


class Contract(Generic[S]):
    """All checks of a port, in the order in which they are defined.

    Args:
        checks: those of its parts, which come first.
    """

    def __init__(self, *checks: Check[S]) -> None:
        self.checks = list(checks)

    def check(self, function: CheckFunction[S]) -> CheckFunction[S]:
        """Make a function one of the checks: the first line of its docstring is the claim, the rest the remedy."""
        claim, _, rest = inspect.cleandoc(function.__doc__ or "").partition("\n")
        name = function.__name__.replace("_", "-")
        self.checks.append(Check(name, claim.removesuffix("."), " ".join(rest.split()), function))
        return function

    def __iter__(self) -> Iterator[Check[S]]:
        return iter(self.checks)


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of a check: `found` is empty if the check passed."""

    name: str
    claim: str
    remedy: str
    found: str


def examine_blocking(
    checks: Iterable[Check[S]], subject: S, *, begin: Callable[[str], None]
) -> list[Finding]:
    """Run checks that await nothing, one after the other, whatever comes of those before.

    Args:
        checks: which.
        subject: what they are run on.
        begin: called with the claim of each before it is run.

    Raises:
        SpecError: what is checked cannot be made as it was asked for.
    """
    findings = list[Finding]()
    for check in checks:
        begin(check.claim)
        with _recorded(check, findings):
            check.run(subject)
    return findings


async def examine(
    checks: Iterable[Check[S]], subject: S, *, begin: Callable[[str], None], patience: float
) -> list[Finding]:
    """Run checks as `examine_blocking` does, and await those that are to be awaited.

    Args:
        checks: which.
        subject: what they are run on.
        begin: called with the claim of each before it is run.
        patience: seconds after which a check that waits for something is given up; see `without_time_limit`.
    """
    findings = list[Finding]()
    for check in checks:
        begin(check.claim)
        with _recorded(check, findings):
            await _within(patience, check, subject)
    return findings


@contextmanager
def _recorded(check: Check[S], findings: list[Finding]) -> Iterator[None]:
    """Add what comes of a check that is run within."""
    found = ""
    try:
        yield
    except SpecError:
        raise
    except Exception as error:  # a stranger's code may raise anything
        found = describe(error)
    findings.append(Finding(check.name, check.claim, check.remedy, found))


async def _within(patience: float, check: Check[S], subject: S) -> None:
    try:
        async with asyncio.timeout(patience) as limit:
            _time_limit.set((limit, patience))
            if (waiting := check.run(subject)) is not None:
                await waiting
    except SpecError:
        raise
    except Exception:
        if limit.expired():
            raise ContractBroken(f"it did not finish within {patience:g} s") from None
        raise


#: The time limit of the running check, and its seconds.
_time_limit: ContextVar[tuple[asyncio.Timeout, float] | None] = ContextVar("_time_limit", default=None)


@contextmanager
def without_time_limit() -> Iterator[None]:
    """Suspend the check's time limit; afterwards the check has its full time again."""
    time_limit = _time_limit.get()
    if time_limit is None:
        yield
        return
    limit, patience = time_limit
    limit.reschedule(None)
    try:
        yield
    finally:
        if not limit.expired():
            limit.reschedule(asyncio.get_running_loop().time() + patience)


def describe(error: Exception) -> str:
    """What a failed check found, or what was raised and where."""
    if isinstance(error, ContractBroken):
        return str(error)
    frames = traceback.extract_tb(error.__traceback__)
    place = f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""
    return f"it raised {type(error).__name__}: {error}{place}"
