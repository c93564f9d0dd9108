"""What tests of messages observe of the product's refusals."""

from __future__ import annotations

import pytest

from rljob_core.ports import Channel
from rljob_runtime.messaging.refusal_log import Refusals


@pytest.fixture
def dead_letters(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Why each message of the channel `TRAJECTORIES` was refused, so far."""
    found: list[str] = []
    add = Refusals.add

    def observed(self: Refusals, subject: str, data: bytes, why: str) -> None:
        if subject.startswith(f"{Channel.TRAJECTORIES}."):
            found.append(why)
        add(self, subject, data, why)

    monkeypatch.setattr(Refusals, "add", observed)
    return found
