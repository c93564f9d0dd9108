"""The end of a deleted job: its finalizer leaves, whatever cannot be read."""

from __future__ import annotations

from typing import Any

from small_job import MakeJob

from rljob_operator.cluster.port import Event
from rljob_operator.reconcile.job_end import FINALIZER, JobEnd


class Unreadable:
    """A cluster, streams, queues and reconciler of a job of which nothing can be read."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.finalizers: list[str] | None = None

    async def tear_down(self, _job: object) -> bool:
        raise TypeError("a child")

    async def release(self, *_: object) -> bool:
        raise KeyError("a Workload")

    async def remove(self, _job: object) -> None:
        return

    async def event(self, _job: object, event: Event) -> None:
        self.said.append(event.reason)

    async def set_finalizers(self, _job: object, finalizers: list[str]) -> None:
        self.finalizers = finalizers


async def test_the_finalizer_leaves_after_a_minute_whatever_cannot_be_read(make_job: MakeJob) -> None:
    all_of_it: Any = Unreadable()
    end = JobEnd(all_of_it, all_of_it, all_of_it)
    deleted = {"metadata": {"deletionTimestamp": "2020-01-01T00:00:00Z", "finalizers": [FINALIZER, "other"]}}
    assert await end.finalize(make_job(), deleted, all_of_it)
    assert all_of_it.finalizers == ["other"]
    assert all_of_it.said == ["ChildrenLeft", "WorkloadsLeft"]
