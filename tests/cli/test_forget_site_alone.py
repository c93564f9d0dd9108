"""`rljob site forget` where the operator's packages are not installed."""

from __future__ import annotations

import sys

import pytest
from invocation import rljob


def test_a_missing_package_is_said_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "rljob_operator.cluster.kube.errors", raising=False)
    monkeypatch.setitem(sys.modules, "kubernetes.aio.client", None)
    ended = rljob("site", "forget", "east")
    assert (ended.code, ended.out) == (2, "")
    assert ended.errors == [
        "error: rljob site forget: needs kubernetes, which is not installed: install rljob[operator]"
    ]
