"""Who writes the ledger: coordinators, each under a writer epoch of its own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from rljob_core.stable_hash import stable_hash

EPOCH_STRIDE = 1_000_000
"""A writer epoch's number is its count times this, plus a part that only its instance has."""


@dataclass(frozen=True, slots=True)
class Writer:
    """A coordinator: its epoch's number and the instance that claimed it."""

    number: int
    instance: str

    @property
    def count(self) -> int:
        """Which coordinator of the job it is, the first being 1; for people."""
        return self.number // EPOCH_STRIDE

    def successor(self, instance: str) -> Writer:
        """The writer that takes over.

        A claim that was lost with its machine is claimed again. The instance's own part keeps the two apart for
        everybody who heard of the first (trainers, engines, weight keys), whom its number alone would mislead.
        """
        return Writer((self.count + 1) * EPOCH_STRIDE + stable_hash(instance) % EPOCH_STRIDE, instance)


@dataclass(frozen=True, slots=True)
class EpochClaimed:
    """A coordinator of `job` (its UID) starts to write. What older epochs write later is ignored by every reader."""

    number: int
    instance: str
    job: str
    kind: Literal["epoch"] = "epoch"
