"""Which jobs have their streams, and which of them may be given more than they were when these were prepared."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rljob_operator.decisions.stream_storage import is_crowded
from rljob_operator.reconcile.server_storage import ServerStorage
from rljob_operator.reconcile.stream_requests import CLUSTER_REPLICAS


@dataclass(frozen=True, slots=True)
class _Prepared:
    job: tuple[str, str]
    allowed: int
    few_servers: bool
    growing: Mapping[str, int]


class PreparedJobs:
    """The jobs whose streams have been prepared, by the account that has them."""

    def __init__(self) -> None:
        self._jobs: dict[str, _Prepared] = {}

    def __bool__(self) -> bool:
        """Whether there is any."""
        return bool(self._jobs)

    def __contains__(self, account: object) -> bool:
        """Whether an account has the streams of one of them."""
        return account in self._jobs

    def of_namespace(self, namespace: str) -> dict[str, int]:
        """Bytes that the accounts of a namespace's jobs were allowed, by account."""
        return {a: prepared.allowed for a, prepared in self._jobs.items() if prepared.job[0] == namespace}

    def add(
        self,
        account: str,
        job: tuple[str, str],
        *,
        allowed: int,
        asked: int | None,
        replicas: int,
        growing: Mapping[str, int],
    ) -> None:
        """Remember a job.

        Args:
            account: that has its streams.
            job: its namespace and name.
            allowed: bytes that its streams may take.
            asked: number of replicas that it asks for; None for as many as there are servers for.
            replicas: that its streams were given.
            growing: limits of those of its streams that get more before they are full.
        """
        self._jobs[account] = _Prepared(job, allowed, asked is None and replicas < CLUSTER_REPLICAS, growing)

    def discard(self, account: str) -> None:
        """Forget the job of an account."""
        self._jobs.pop(account, None)

    def outgrown(self, storage: ServerStorage) -> list[tuple[str, str]]:
        """Namespaces and names of the jobs that may now be given more room, or more replicas.

        Servers that start know of each other one by one: those that answered first may have been too few.
        """
        enough = storage.servers >= CLUSTER_REPLICAS
        return [
            prepared.job
            for account, prepared in self._jobs.items()
            if (enough and prepared.few_servers)
            or storage.room(account).allowed is None
            or is_crowded(prepared.growing, storage.streams(account))
        ]
