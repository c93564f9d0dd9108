"""Rollbacks by the user, as the ledger records them: each must lead to a version of the chain."""

from __future__ import annotations

from collections.abc import Iterator

from rljob_cli.audit.evidence import Violation
from rljob_core.records import StepCommitted, VersionsRevoked


def misguided(
    record: VersionsRevoked, newest: StepCommitted | None, *, trajectories: int
) -> Iterator[Violation]:
    """Say what is wrong with a rollback.

    Args:
        record: the rollback.
        newest: the commit of the newest version that it leaves; None if that is the initial model.
        trajectories: how many the revoked versions had consumed.
    """
    name = (f"version {record.version}",)
    there = (newest.version, newest.key, newest.manifest) if newest is not None else (0, None, "")
    if (record.version, record.key, record.manifest) != there:
        text = f"is gone back to as {record.key or 'the initial model'}, but the chain has {there[1]} there"
        yield Violation(name, text)
    if record.checkpoint_version is not None and record.checkpoint_version > record.version:
        text = f"is gone back to with the optimizer state of version {record.checkpoint_version}"
        yield Violation(name, text)
    if record.trajectories != trajectories:
        text = f"{trajectories} trajectories are revoked, not {record.trajectories} as the ledger says"
        yield Violation(name, text)
