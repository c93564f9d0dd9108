"""Remembered children are those that `desired` would make."""

from __future__ import annotations

from typing import Any

from small_job import MakeJob

from rljob_operator.children.cluster_defaults import ClusterDefaults
from rljob_operator.children.desired import Targets, desired
from rljob_operator.children.resolved_job import resolve_job
from rljob_operator.children.trainer_gang import trainer_hash
from rljob_operator.reconcile.desired_memo import DesiredMemo


def pool(**changes: Any) -> dict[str, Any]:
    spec = {"pool": "cpu", "replicas": changes.get("replicas", 2)}
    return {"metadata": {"uid": changes.get("uid", "p-1"), "annotations": {}}, "spec": spec}


def test_it_is_what_would_be_made(make_job: MakeJob, defaults: ClusterDefaults) -> None:
    before, after = make_job(reward__replicas=1), make_job(reward__replicas=2)
    memo = DesiredMemo()
    for job in (before, after, before):
        for targets in (
            Targets(1, 0, {}),
            Targets(1, 0, {"cpu": pool()}),
            Targets(1, 0, {"cpu": pool(uid="p-2")}),
            Targets(1, 0, {"cpu": pool(uid="p-2", replicas=5)}),
            Targets(2, 1, {"cpu": pool()}),
            Targets(None, 1, {"cpu": pool()}),
        ):
            for _ in range(2):
                assert memo(resolve_job(job, defaults), targets) == desired(
                    resolve_job(job, defaults), targets
                )


def test_who_changes_what_was_returned_changes_nothing_for_the_next(
    make_job: MakeJob, defaults: ClusterDefaults
) -> None:
    memo, targets = DesiredMemo(), Targets(1, 0, {})
    memo(resolve_job(make_job(), defaults), targets)[0]["metadata"]["name"] = "other"
    assert memo(resolve_job(make_job(), defaults), targets) == desired(
        resolve_job(make_job(), defaults), targets
    )


def test_the_trainers_hash_follows_the_job(make_job: MakeJob, defaults: ClusterDefaults) -> None:
    before, after = make_job(trainer__numNodes=1), make_job(trainer__numNodes=2)
    memo = DesiredMemo()
    for job in (before, after, after, before):
        resolved = resolve_job(job, defaults)
        assert memo.trainer_hash(resolved) == trainer_hash(resolved)
    assert memo.trainer_hash(resolve_job(before, defaults)) != memo.trainer_hash(resolve_job(after, defaults))
