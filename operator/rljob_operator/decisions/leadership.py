"""Which of an operator's processes works: the one that holds a Lease of `coordination.k8s.io`.

The protocol is that of client-go's package `leaderelection`: the holder renews the Lease every `RETRY_SECONDS`; the
others take it once they have not seen it change for as long as it says. Nobody's clock is compared with another's: each
process measures, by its own, since when it has seen a record, or when it sent a renewal.

The holder stops writing before another one may take the Lease: it begins no write later than `WORK_SECONDS` after it
*sent* the last renewal that succeeded, and waits for none longer than `LEASE_SECONDS` after it. So a process that stood
still, or that no longer reaches the API server, is silent when its successor begins.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

LEASE_SECONDS = 15.0
"""Without a renewal for so long, another process may take the Lease."""
WORK_SECONDS = 10.0
"""After the last renewal was sent, for which the holder may begin to write."""
RETRY_SECONDS = 2.0
"""Between two renewals, and between two looks at another process's Lease."""
_MARGIN_SECONDS = 1.0
"""Of a write that was not answered by then, nothing may arrive: its connection is closed this long before the end."""

Spec = dict[str, Any]


class LeadershipLost(Exception):
    """This process may not write any more: another one works, or soon does."""


@dataclass(frozen=True, slots=True)
class LeaseHolder:
    """A process that may lead.

    Attributes:
        pod: name of its pod; empty outside a cluster. Of a pod only one process lives, so a Lease that an earlier one
            of this pod has left is taken at once.
        number: that no other process has.
    """

    pod: str
    number: str

    def __str__(self) -> str:
        return f"{self.pod or 'process'}_{self.number}"

    def was(self, holder: str) -> bool:
        """Whether a holder is this process, or an earlier one of its pod."""
        return holder == str(self) or (bool(self.pod) and holder.rpartition("_")[0] == self.pod)


class Candidate:
    """What one process knows of the Lease.

    Times are seconds on a clock of its own, which also runs while the process stands still.

    Attributes:
        holder: whose Lease it is, as was last seen; empty if nobody's.
    """

    def __init__(self, identity: LeaseHolder) -> None:
        self.identity = identity
        self.holder = ""
        self._record: Spec = {}
        self._seen_at: float | None = None
        self._sent: float | None = None

    def saw(self, spec: Spec | None, now: float) -> None:
        """Take note of the Lease as it is; None if there is none."""
        spec = spec or {}
        if spec != self._record or self._seen_at is None:
            self._record, self._seen_at = spec, now
        self.holder = spec.get("holderIdentity") or ""

    def may_take(self, now: float) -> bool:
        """Whether nobody else has the Lease."""
        if self._seen_at is None:
            return False
        if not self.holder or self.identity.was(self.holder):
            return True
        return now >= self._seen_at + float(self._record.get("leaseDurationSeconds") or LEASE_SECONDS)

    def claim(self, today: datetime) -> Spec:
        """The Lease's spec by which this process takes it, or renews it."""
        mine, time = self.holder == str(self.identity), _micro_time(today)
        transitions = int(self._record.get("leaseTransitions") or 0)
        return {
            "holderIdentity": str(self.identity),
            "leaseDurationSeconds": int(LEASE_SECONDS),
            "acquireTime": self._record.get("acquireTime", time) if mine else time,
            "renewTime": time,
            "leaseTransitions": transitions if mine or not self._record else transitions + 1,
        }

    def release(self) -> Spec:
        """The Lease's spec by which this process gives it back: another one need not wait."""
        return {"holderIdentity": "", "leaseDurationSeconds": 1}

    def renewed(self, spec: Spec, *, sent: float, now: float) -> None:
        """This process has the Lease, by a request that it sent at `sent`."""
        self.saw(spec, now)
        self._sent = sent

    def lose(self) -> None:
        """Another process has the Lease, or may take it."""
        self._sent = None

    def leads(self, now: float) -> bool:
        """Whether this process may begin a write."""
        return self._sent is not None and now < self._sent + WORK_SECONDS

    def write_seconds(self, now: float) -> float:
        """How long a write may take that begins now.

        Raises:
            LeadershipLost: none may begin.
        """
        if self._sent is None or not self.leads(now):
            raise LeadershipLost(
                f"this process no longer has the Lease; {self.holder or 'nobody'} had it last"
            )
        return self._sent + LEASE_SECONDS - _MARGIN_SECONDS - now


def _micro_time(today: datetime) -> str:
    """As Kubernetes writes its type MicroTime."""
    return today.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
