"""Who writes the ledger: coordinators, each under a writer epoch of its own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from rljob_core.record_fields import OMITTED_IF_EMPTY, Number
from rljob_core.stable_hash import stable_hash

EPOCH_STRIDE = 1_000_000
"""A writer epoch's number is its count times this, plus a part that is derived from its instance."""


@dataclass(frozen=True, slots=True)
class Writer:
    """A coordinator: the number of its writer epoch and the instance that claimed it."""

    number: Number
    instance: str

    @property
    def count(self) -> int:
        """How many coordinators the job has had, this one included; for people."""
        return self.number // EPOCH_STRIDE

    def successor(self, instance: str) -> Writer:
        """The writer that takes over from this one.

        If a claim is lost with the server's machine, the next coordinator claims the same count again. The part that
        is derived from the instance keeps the two numbers apart for trainers, engines and weight keys that hold the
        lost one.
        """
        return Writer((self.count + 1) * EPOCH_STRIDE + stable_hash(instance) % EPOCH_STRIDE, instance)


@dataclass(frozen=True, slots=True)
class EpochClaimed:
    """A coordinator of `job` (a UID) starts to write. Every reader ignores what older epochs write after this.

    `former` is the UID of the job whose ledger this was, where a backup was restored as another job; else empty.
    """

    number: Number
    instance: str
    job: str
    former: Annotated[str, OMITTED_IF_EMPTY] = ""
    kind: Literal["epoch"] = "epoch"


@dataclass(frozen=True, slots=True)
class SpecInForce:
    """The spec that is in force from here on, with the API's field names.

    It follows each claim, and each change that restarts no coordinator. Later values of `spec.pipeline` have records of
    their own (`PipelineSet`). Nothing is decided by this record: the audit compares it with what user and workers
    have.
    """

    spec: dict[str, Any]
    kind: Literal["spec"] = "spec"
