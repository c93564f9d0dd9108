"""A job's evidence on disk and in the streams of a real nats-server, as `rljob run` leaves it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import xxhash
from e2e.harness.nats_server import EmbeddedServer
from evidence_builder import EvidenceBuilder
from evidence_streams import append, seal
from pydantic import TypeAdapter

from rljob_cli.audit.evidence import ManifestFile
from rljob_cli.run_folder.folder import Identity, RunFolder
from rljob_core.messages import REWARD_BATCH, RewardBatch, RewardResult
from rljob_core.ports import Channel, WeightManifest, first_sequence
from rljob_core.records import (
    FED,
    Generated,
    Rewarded,
    SpecInForce,
    StepCommitted,
)
from rljob_core.spec import API_VERSION, RLJobSpec
from rljob_core.trajectory import (
    FinishReason,
    Segment,
    Source,
    Trajectory,
    VersionSpan,
    group_of,
    prompt_of_group,
)
from rljob_runtime.messaging import wire
from rljob_runtime.messaging.nats.store import NatsStore
from rljob_runtime.messaging.reward_results import result_digest
from rljob_runtime.messaging.trajectories import TrajectoryStore

UID = "0123"
SPEC = RLJobSpec.model_validate(
    {
        "steps": 8,
        "model": {"uri": "model"},
        "data": {"dataset": "chain_sum", "promptsPerStep": 2, "groupSize": 2},
        "pipeline": {"mode": "BoundedAsync", "maxStaleness": 1},
        "rollout": {"sampling": {"maxTokens": 6}, "pools": [{"name": "cpu", "replicas": 1}]},
    }
).model_dump(mode="json", by_alias=True)
IDENTITY = Identity("example", "default", UID, "model", "", {"spec": SPEC})


def payload(trajectory: str, version: int) -> Trajectory:
    def segment(source: Source, tokens: list[int], version: int) -> Segment:
        return Segment(
            source,
            np.array(tokens, np.int32),
            np.full(len(tokens), source is Source.MODEL, np.uint8),
            np.zeros(len(tokens), np.float32),
            np.full(len(tokens), version, np.int32),
        )

    segments = [segment(Source.PROMPT, [1, 2, 3, 4], -1), segment(Source.MODEL, [5, 6, 7, 8], version)]
    prompt = prompt_of_group(group_of(trajectory))
    return Trajectory(
        trajectory, 1, prompt, segments, VersionSpan(version, version), FinishReason.STOP, "engine"
    )


def of_result(result: RewardResult) -> Callable[[Rewarded], bool]:
    return lambda record: (record.trajectory, record.attempt) == (result.trajectory, result.attempt)


def seal_manifests(evidence_builder: EvidenceBuilder, weights: Path) -> None:
    """Write the manifests as the weight store does, and let the ledger name their true digests."""
    weights.mkdir(parents=True, exist_ok=True)

    def write(file: ManifestFile, proposal: StepCommitted) -> str:
        manifest = WeightManifest(file.key, file.version, proposal.parent, (), proposal, "")
        content = TypeAdapter(WeightManifest).dump_python(manifest, mode="json")
        del content["digest"]
        canonical = json.dumps(content, sort_keys=True, separators=(",", ":"))
        content["digest"] = xxhash.xxh3_128_hexdigest(canonical.encode())
        (weights / file.key).mkdir()
        (weights / file.key / "manifest.json").write_text(json.dumps(content))
        return str(content["digest"])

    seal(evidence_builder, write)


@asynccontextmanager
async def streams(url: str) -> AsyncIterator[NatsStore]:
    store = NatsStore(
        url, subject=f"rljob.default.example.{UID}", stream_prefix=f"RLJOB_default_example_{UID}"
    )
    await store.open()
    yield store
    await store.close()


async def publish(evidence_builder: EvidenceBuilder, url: str) -> None:
    async with streams(url) as store:
        await append(store, evidence_builder)
        await store.publish(
            Channel.REWARDS, "results", REWARD_BATCH.dump_json(RewardBatch(tuple(evidence_builder.rewards)))
        )
        left = [payload(p.trajectory, p.span.min) for p in evidence_builder.payloads]
        await TrajectoryStore(store).put(left)


def write_run(evidence_builder: EvidenceBuilder, folder: RunFolder) -> None:
    """All evidence of a builder, where a run leaves it; the server is not started."""
    folder.claim(IDENTITY)
    evidence_builder.rewrite(lambda r: SpecInForce(SPEC) if isinstance(r, SpecInForce) else r)
    digests = {
        p.trajectory: wire.digest(payload(p.trajectory, p.span.min)) for p in evidence_builder.payloads
    }
    first = first_sequence(Channel.TRAJECTORIES)
    for index, (trajectory, digest) in enumerate(digests.items()):
        where = {"digest": digest, "sequence": first, "index": index}
        evidence_builder.alter(Generated, lambda r, t=trajectory: r.trajectory == t, **where)  # type: ignore[misc]
    scored = [replace(r, payload_digest=digests[r.trajectory]) for r in evidence_builder.rewards]
    evidence_builder.rewards = [replace(r, digest=result_digest(r)) for r in scored]
    for result in evidence_builder.rewards:
        evidence_builder.alter(Rewarded, of_result(result), digest=result.digest)
    seal_manifests(evidence_builder, folder.weights)
    for line in evidence_builder.fed:
        with (folder.trainer / f"attempt-{line.attempt}.jsonl").open("ab") as log:
            log.write(FED.dump_json(line) + b"\n")

    async def store() -> None:
        async with EmbeddedServer(folder.nats) as server:
            await publish(evidence_builder, server.url)

    asyncio.run(store())


def write_whole_run(
    evidence_builder: EvidenceBuilder, folder: RunFolder, *, model: str = IDENTITY.model
) -> None:
    """The same with a whole manifest of the job, and tensors of the versions that would still have them."""
    write_run(evidence_builder, folder)
    metadata = {"name": IDENTITY.name, "namespace": IDENTITY.namespace}
    manifest = {"apiVersion": API_VERSION, "kind": "RLJob", "metadata": metadata, "spec": SPEC}
    folder.write(replace(IDENTITY, manifest=manifest, given=manifest, model=model))
    for key in ("v2-a1", "v3-a1"):
        (folder.weights / key / "weights.safetensors").write_bytes(key.encode() * 1000)
