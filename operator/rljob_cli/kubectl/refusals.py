"""What the API server's refusals become: errors that say what was tried, and whether there is no right to it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from kubernetes.client import ApiException
from urllib3.exceptions import HTTPError

from rljob_core.errors import RLJobError, SpecError

ABSENT = 404
_FORBIDDEN, _UNKNOWN, _CONFLICT = 403, 401, 409


class ClusterRefused(RLJobError):
    """The API server does not answer, or refuses a request."""


class ClusterForbids(ClusterRefused):
    """The person has no right to do that."""


class ClusterConflict(ClusterRefused):
    """The object was written since it was read."""


class JobGone(SpecError):
    """There is no RLJob of that name, or none any more."""


@contextmanager
def in_words(what: str) -> Iterator[None]:
    """Let errors of the client say what was tried.

    Raises:
        ClusterRefused: there was one.
    """
    try:
        yield
    except ApiException as error:
        words = str(error.reason or "")
        status = next((code for code in (_FORBIDDEN, ABSENT, _UNKNOWN) if f"{code} " in words), error.status)
        raise refusal(what, status, words.encode()) from error
    except (HTTPError, OSError) as error:
        raise ClusterRefused(
            f"cannot {what}: the API server does not answer ({_short(str(error))})"
        ) from error


def refusal(what: str, status: int, body: bytes) -> RLJobError:
    """The error for an answer of the API server with that status."""
    said = body.decode(errors="replace")
    with suppress(ValueError, AttributeError):
        said = json.loads(said).get("message") or said
    if status == _FORBIDDEN:
        return ClusterForbids(
            f"you may not {what}: {_short(said)}; docs/kubectl.md lists the rights that are needed"
        )
    if status == _UNKNOWN:
        return ClusterRefused(f"cannot {what}: the API server does not accept your credentials; log in again")
    if status == _CONFLICT:
        return ClusterConflict(f"cannot {what}: {_short(said)}")
    if status in {400, 422} and what.startswith("change"):
        return SpecError("", f"the API server refuses the change: {said}")
    return ClusterRefused(f"cannot {what}: {_short(said)}")


def _short(said: str) -> str:
    return " ".join(said.split())[:400]
