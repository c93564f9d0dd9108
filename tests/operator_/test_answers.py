"""Objects of any depth and size are read, as far as they can be, and one that cannot be is only its own error."""

from __future__ import annotations

import json
import sys
from typing import Any

import aiohttp
import pytest

from rljob_core.errors import SpecError
from rljob_core.spec import RLJob
from rljob_operator.cluster.kube.answers import event_in, listed, parsed
from rljob_operator.cluster.kube.cache import MOST_JOB_BYTES, KubeCache, identity
from rljob_operator.cluster.kube.cluster import job_of, stand_in
from rljob_operator.cluster.port import TOO_LARGE, Manifest
from rljob_operator.names import LABEL_JOB


def nested(levels: int, *, of: str = '{"a":') -> str:
    within = json.dumps(']}\\"' * 3_000)  # which ends nothing, wherever a chunk of it ends
    return of * levels + within + ("]" if of == "[" else "}") * levels


def job_text(options: str, **metadata: object) -> str:
    known = {
        "name": "sums",
        "namespace": "a",
        "uid": "u",
        "generation": 1,
        "resourceVersion": "7",
        **metadata,
    }
    return (
        '{"apiVersion":"rljob.dev/v1alpha1","kind":"RLJob","metadata":'
        + json.dumps(known)
        + ',"spec":{"steps":3,'
        '"model":{"uri":"/model"},"data":{"dataset":"chain_sum","options":{"x":' + options + "}},"
        '"rollout":{"pools":[{"name":"cpu"}]}}}'
    )


async def read(text: str, size: int = 1000) -> tuple[list[Manifest], Manifest]:
    """What is read of a list that arrives in chunks."""

    class Chunks:
        async def iter_any(self) -> Any:
            content = text.encode()
            for at in range(0, len(content), size):
                yield content[at : at + size]

    found, rest = list[Manifest](), Manifest()
    stream: Any = Chunks()
    assert isinstance(stream, aiohttp.StreamReader | Chunks)
    async for manifests, rest in listed(stream):  # noqa: B007
        found += manifests
    return found, rest


@pytest.mark.parametrize("levels", [17, 500, 1_100, 9_000])
@pytest.mark.parametrize("of", ['{"a":', "["])
async def test_a_job_that_is_nested_too_deeply_is_named_and_refused(levels: int, of: str) -> None:
    deep, other = job_text(nested(levels, of=of)), job_text('"text with ]}[{ and \\" in it"')
    rest = '"kind":"RLJobList","metadata":{"resourceVersion":"9"}}'
    found, ending = await read(
        '{"apiVersion":"rljob.dev/v1alpha1","items":[' + f"{other},{deep},{other}]," + rest
    )
    assert ending["metadata"] == {"resourceVersion": "9"}
    assert found[0] == found[2] == json.loads(other)
    event, watched = event_in(b'{"type":"ADDED","object":' + deep.encode() + b"}")
    assert event == "ADDED"
    for manifest in (found[1], watched, parsed(deep.encode())):
        assert identity(manifest) == identity(json.loads(other))
        with pytest.raises(SpecError, match=r"spec.data.options: must not be nested more than 16 levels"):
            job_of(manifest)
        assert stand_in(manifest).metadata.uid == "u"
        KubeCache().put(manifest)


async def test_managed_fields_are_left_out_whatever_is_in_them() -> None:
    text = job_text("{}").replace('"uid"', f'"managedFields":[{{"fieldsV1":{nested(1_100)}}}],"uid"', 1)
    (found,), _ = await read('{"items":[' + text + "]}", size=sys.maxsize)
    assert found == parsed(text.encode()) == json.loads(job_text("{}"))
    assert isinstance(job_of(found), RLJob)


@pytest.mark.parametrize("text", ['{"kind":"PodList","items":null}', '{"kind":"PodList","items": []}', "{}"])
async def test_lists_without_objects_are_empty(text: str) -> None:
    found, _ = await read(text)
    assert found == []


@pytest.mark.parametrize("text", ["", "3", '{"items":[{"a":1},', '{"items":[{"a":1}'])
async def test_a_list_that_ends_early_is_an_error(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 json's words
        await read(text)


def test_what_nobody_controls_and_what_is_too_large_is_stored_without_its_content() -> None:
    metadata = {
        "name": "c",
        "namespace": "a",
        "uid": "c",
        "resourceVersion": "1",
        "labels": {LABEL_JOB: "sums"},
    }
    stranger = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"text": "x" * 1_000}}
    large = json.loads(job_text(json.dumps("x" * MOST_JOB_BYTES)))
    large["status"] = {"trainerAttempt": 2}
    cache = KubeCache()
    cache.put(stranger)
    cache.put(large)
    (kept,) = cache.children(("a", "sums"))
    assert "data" not in kept
    job = cache.job(("a", "sums"))
    assert job is not None
    assert job["spec"] == {"steps": 3}
    assert job["status"] == {"trainerAttempt": 2}
    assert job[TOO_LARGE] > MOST_JOB_BYTES
    with pytest.raises(SpecError, match=r"spec: the RLJob has 512 KiB, and at most 512 are read"):
        job_of(job)
