"""In what manifests differ."""

from __future__ import annotations

from rljob_cli.page.server import manifest_rows


def test_fields_that_differ_have_the_value_of_each_manifest() -> None:
    one = {"spec": {"steps": 5, "model": {"uri": "m"}, "rollout": {"pools": [{"name": "a", "replicas": 1}]}}}
    two = {"spec": {"steps": 9, "model": {"uri": "m"}, "rollout": {"pools": [{"name": "a", "replicas": 2}]}}}
    three = {"spec": {"steps": 5, "model": {"uri": "m"}, "data": {"seed": 2}, "rollout": {"pools": []}}}
    rows = {row["path"]: row["values"] for row in manifest_rows([one, two, three])}
    assert rows["spec.steps"] == [5, 9, 5]
    assert rows["spec.rollout.pools.a.replicas"] == [1, 2, None]
    assert rows["spec.data"] == [None, None, {"seed": 2}]
    assert "spec.model.uri" not in rows


def test_equal_and_unknown_manifests() -> None:
    assert manifest_rows([{"spec": {"steps": 1}}, {"spec": {"steps": 1}}]) == []
    assert manifest_rows([{"spec": {"steps": 1}}]) == []
    assert manifest_rows([{}, {"spec": {"steps": 1}}]) == [{"path": "spec.steps", "values": [None, 1]}]
