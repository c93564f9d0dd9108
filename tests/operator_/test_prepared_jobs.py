"""Jobs that were prepared while few servers knew of each other are given more replicas once enough do."""

from __future__ import annotations

from typing import Any

import pytest

from rljob_operator.reconcile.prepared_jobs import PreparedJobs
from rljob_operator.reconcile.server_storage import ServerStorage


def storage(servers: int = 1, **held: int) -> ServerStorage:
    """So many servers, on which the account `A` has a thousandth of its limit, and streams with so many bytes."""
    account: dict[str, Any] = {"id": "A", "storage": 1, "reserved_storage": 1000}
    account["stream_detail"] = [{"name": name, "state": {"bytes": size}} for name, size in held.items()]
    answer: dict[str, Any] = {
        "account_details": [account],
        "config": {"max_storage": 10_000},
        "reserved_storage": 1000,
        "meta_cluster": {"cluster_size": servers},
    }
    return ServerStorage([answer])


@pytest.mark.parametrize(
    ("asked", "replicas", "servers", "again"),
    [(None, 1, 2, False), (None, 1, 3, True), (None, 3, 3, False), (1, 1, 3, False)],
)
def test_a_job_that_asks_for_no_number_follows_the_servers(
    asked: int | None, replicas: int, servers: int, again: bool
) -> None:
    jobs = PreparedJobs()
    jobs.add("A", ("default", "j"), allowed=0, asked=asked, replicas=replicas, growing={})
    assert jobs.outgrown(storage(servers)) == ([("default", "j")] if again else [])
    jobs.discard("A")
    assert not jobs
    assert jobs.outgrown(storage(servers)) == []


@pytest.mark.parametrize(
    ("held", "again"),
    [({"ledger": 32}, False), ({"ledger": 33}, True), ({"rewards": 33}, False), ({}, False)],
)
def test_a_job_of_which_a_stream_that_grows_is_half_full_is_given_more_room(
    held: dict[str, int], again: bool
) -> None:
    jobs = PreparedJobs()
    jobs.add("A", ("default", "j"), allowed=0, asked=1, replicas=1, growing={"ledger": 64})
    assert jobs.outgrown(storage(**held)) == ([("default", "j")] if again else [])
