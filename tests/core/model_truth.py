"""Records what really happened in the model of `interleavings`, and checks the invariants against it.

No role of the model sees this record.

Names in [brackets] are those of `docs/design/staleness.md`.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from model_roles import ModelEngine

from rljob_core.actions import Summary
from rljob_core.job_state import JobState
from rljob_core.records import (
    BufferOpened,
    GroupAborted,
    GroupReserved,
    PipelineSet,
    StepCommitted,
    StepRestored,
)
from rljob_core.trajectory import group_of


class Violated(AssertionError):
    """An invariant does not hold."""


def require(holds: bool, what: str) -> None:
    """Raise `Violated` unless it holds."""
    if not holds:
        raise Violated(what)


@dataclass
class LedgerAccount:
    """What the surviving ledger says, read record by record."""

    stamps: dict[int, int] = field(default_factory=dict)
    pipeline: PipelineSet | None = None
    planned: dict[str, int] = field(default_factory=dict)
    ended: Counter[str] = field(default_factory=Counter)
    consumed: Counter[str] = field(default_factory=Counter)
    given_up: set[str] = field(default_factory=set)
    chain: list[str] = field(default_factory=lambda: [""])

    @property
    def next_step(self) -> int:
        """The step whose buffer opens next."""
        return max(len(self.chain) - 1, *(step + 1 for step in self.stamps), 0)


@dataclass
class Truth:
    """What really happened, whatever the ledger has lost since, and the ledger's own account.

    Attributes:
        payloads: by digest, with the weights that made them.
        fed: what each manifest was really made of.
    """

    account: LedgerAccount = field(default_factory=LedgerAccount)
    payloads: dict[str, tuple[Summary, frozenset[str]]] = field(default_factory=dict)
    fed: dict[str, dict[str, Summary]] = field(default_factory=dict)

    def observe(self, record: Any) -> None:
        """What a record that is in the ledger means."""
        account = self.account
        match record:
            case PipelineSet():
                require(
                    record.step == account.next_step, f"[change] binds buffer {record.step}, which is open"
                )
                account.pipeline = record
            case BufferOpened():
                require(record.step not in account.stamps, f"[stamp] buffer {record.step} opened twice")
                said = account.pipeline
                require(
                    said is not None and record.max_staleness == said.max_staleness,
                    f"[change] buffer {record.step} has another stamp than the ledger's last word",
                )
                account.stamps[record.step] = record.max_staleness
            case GroupReserved():
                require(record.group not in account.planned, f"[once] {record.group} planned twice")
                account.planned[record.group] = record.siblings
            case GroupAborted():
                account.ended[record.group] += 1
                if record.reason == "PromptExhausted":
                    account.given_up.add(record.group)
            case StepCommitted():
                bound = account.stamps[record.version - 1]
                require(record.max_staleness == bound, f"[stamp] of step {record.version - 1} changed")
                self._commit(record)
            case StepRestored():
                for group, siblings in Counter(
                    group_of(t) for part in record.commit.micro_batches for t in part
                ).items():
                    account.planned.setdefault(group, siblings)
                for group in record.dropped:
                    account.ended[group] += 1
                self._commit(record.commit)

    def _commit(self, record: StepCommitted) -> None:
        account = self.account
        require(
            record.version == len(account.chain), f"[chain] version {record.version} committed out of order"
        )
        require(record.parent == account.chain[-1], f"[chain] version {record.version} has another parent")
        account.chain.append(record.manifest)
        fed = self.fed[record.manifest]
        ids = [trajectory for part in record.micro_batches for trajectory in part]
        require(sorted(ids) == sorted(fed), f"[truth] version {record.version} was not made of what it says")
        for trajectory in ids:
            stale = record.version - 1 - fed[trajectory].span.min
            bound = record.max_staleness
            require(stale <= bound, f"[bound] {trajectory} is consumed with staleness {stale} under {bound}")
            made_by = self.payloads[fed[trajectory].digest][1]
            require(
                made_by <= set(account.chain), f"[lineage] {trajectory} was made by weights that do not count"
            )
        account.consumed.update(ids)
        for group, siblings in Counter(map(group_of, ids)).items():
            require(siblings == account.planned[group], f"[whole] {group} is consumed in part")
            account.ended[group] += 1

    def check(self, state: JobState, engines: dict[str, ModelEngine]) -> None:
        """Every invariant of a state.

        Raises:
            Violated: one does not hold.
        """
        account = self.account
        require(all(n == 1 for n in account.consumed.values()), "[once] a trajectory is trained twice")
        require(all(n == 1 for n in account.ended.values()), "[once] a group ends twice")
        open_groups = [e.group for b in state.buffers.buffers.values() for e in b.entries.values()]
        require(len(open_groups) == len(set(open_groups)), "[place] a group has two places")
        require(set(open_groups) == set(state.groups), "[place] a group has no place")
        require(set(open_groups) | set(account.ended) == set(account.planned), "[lost] a group is lost")
        for buffer in state.buffers.buffers.values():
            require(len(buffer.entries) <= buffer.capacity, f"[capacity] buffer {buffer.step} is overfull")
            require(
                buffer.max_staleness == account.stamps[buffer.step],
                f"[stamp] of buffer {buffer.step} changed",
            )
            for entry in buffer.entries.values():
                require(
                    buffer.step - entry.base <= buffer.max_staleness, f"[bound] {entry.group} is too stale"
                )
                for sibling in state.groups[entry.group].siblings:
                    if sibling.payload is not None:
                        span = self.payloads[sibling.payload.digest][0].span
                        require(entry.base <= span.min, f"[base] of {entry.group} is not so old")
        for name, engine in engines.items():
            for key, run in engine.running.items():
                made = run.inherited
                least = run.min_version if made is None else min(run.min_version, made.span.min)
                require(run.span.min >= least, f"[min] {key} started below its minVersion")
                sibling = state.sibling(key[0])
                if sibling is None or (sibling.attempt, sibling.engine) != (key[1], name):
                    continue
                if (sibling.min_version, sibling.inherited) == (run.min_version, made):
                    base = state.buffers.entry_of(group_of(key[0])).base
                    require(base <= run.span.min, f"[base] of {key} is not so old")
