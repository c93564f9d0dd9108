"""`ApiError`: what the API server, the client or the network says instead of doing what was asked."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import aiohttp
from kubernetes.aio.client import ApiException
from kubernetes.aio.config import ConfigException

from rljob_operator.cluster.kube.login import LoginError
from rljob_operator.cluster.port import Manifest

_NO_FIT = ("failed to create typed patch object", "failed to convert new object")
_POLICIES = ("ValidatingAdmissionPolicy '", 'admission webhook "', "exceeded quota: ")


class ApiError(Exception):
    """The API server refused a request (HTTP `status`), or gave no answer (status 0)."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(message or reason)
        self.status = status
        self.reason = reason
        self.message = message

    @property
    def invalid(self) -> bool:
        """Whether the same request would be refused again, because the object is invalid."""
        if self.by_policy:
            return False
        # An apply that does not fit the schema is answered with 500.
        return self.status in {400, 422} or (self.status == 500 and self.message.startswith(_NO_FIT))

    @property
    def by_policy(self) -> bool:
        """Whether an admission policy, a webhook or a quota refused the request: nothing but the message says so."""
        return 400 <= self.status < 500 and any(words in self.message for words in _POLICIES)


@contextmanager
def errors_of(what: str) -> Iterator[None]:
    """Turn the client's and the network's errors into `ApiError`, of status 0: there was no usable answer."""
    try:
        yield
    except LoginError as error:
        raise ApiError(0, "LoginFailed", f"{what}: {error}") from error
    except ApiException as error:
        raise ApiError(error.status or 0, error.reason or "", f"{what}: {error}") from error
    except (aiohttp.ClientError, ConfigException, TimeoutError, OSError, ValueError) as error:
        raise ApiError(0, "Unreachable", f"{what}: {_words(error)}") from error


def refusal(status: int, answer: Manifest) -> ApiError:
    """The error that an answer of the API server means; `answer` is a Status, or empty."""
    return ApiError(status, str(answer.get("reason", "")), str(answer.get("message", "")))


def _words(error: Exception) -> str:
    return "no answer in time" if isinstance(error, TimeoutError) else str(error) or type(error).__name__
