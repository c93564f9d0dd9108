"""Reads everything there is about a job: its streams, its weights' manifests, its trainer's own log.

Of a run's folder the server is asked that runs; otherwise a nats-server is started on the stored streams for as long
as it takes. In a pod it is the server that `RLJOB_NATS_URL` names. The ledger is read first: whatever it says must then
be found in the sources that were written before it.
"""

from __future__ import annotations

import asyncio
import json
import os
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import xxhash
from pydantic import TypeAdapter, ValidationError

from rljob_cli.audit.evidence import Evidence, LedgerMessage, ManifestFile, PayloadLeft
from rljob_cli.embedded_nats import running_url, start_nats
from rljob_cli.run_folder import Identity, RunFolder
from rljob_core.config import JobConfig
from rljob_core.errors import CorruptPayload, SpecError
from rljob_core.messages import REWARD_BATCH, RewardResult
from rljob_core.ports import Channel, Manifest, Message
from rljob_core.records import FED, FedMicroBatch, decode_batch
from rljob_core.stream_names import StreamNames, inbox_of
from rljob_operator.processes import LocalCluster
from rljob_runtime import wire
from rljob_runtime.models import local_path
from rljob_runtime.nats_store import NatsStore
from rljob_runtime.trajectory_store import SUMMARY_HEADER, Location, TrajectoryStore

_MANIFEST: TypeAdapter[Manifest] = TypeAdapter(Manifest)
_SILENCE_SECONDS = 2.0
_PAYLOADS_AT_ONCE = 64


async def read_folder(folder: RunFolder) -> Evidence:
    """All evidence about the job in an output folder of `rljob run`.

    Raises:
        SpecError: the folder holds no job.
        StoreUnavailable: the job's streams cannot be read.
    """
    identity = folder.identity()
    if identity is None:
        raise SpecError(str(folder.path), "is no output folder of rljob run: it has no job.json")
    names = StreamNames.of_job(namespace=identity.namespace, job=identity.name, uid=identity.uid)
    uri = identity.manifest["spec"]["weights"].get("uri") or str(folder.weights)
    async with _server(folder, identity) as url:
        store = NatsStore(url, subject=names.subject, stream_prefix=names.prefix)
        return await _collect(store, weights=local_path(uri), trainer=folder.trainer)


async def read_configured(config: JobConfig, environment: Mapping[str, str] = os.environ) -> Evidence:
    """All evidence about a job on a cluster, read from a pod of its own (`rljob_operator.audit_pod`).

    Args:
        environment: a worker's, with the reader's credentials.

    Raises:
        SpecError: the environment names no server.
        StoreUnavailable: the job's streams cannot be read.
    """
    url = environment.get("RLJOB_NATS_URL")
    if not url:
        raise SpecError("RLJOB_NATS_URL", "is not set: give the address of the job's NATS server")
    store = NatsStore(
        url,
        subject=config.subject,
        stream_prefix=config.stream_prefix,
        credentials=environment.get("RLJOB_NATS_CREDENTIALS"),
        inbox=inbox_of(config.uid, "reader"),
        create=False,
    )
    return await _collect(
        store, weights=local_path(config.weights_uri), trainer=local_path(config.trainer_log_uri)
    )


async def _collect(store: NatsStore, *, weights: Path, trainer: Path) -> Evidence:
    unreadable: list[str] = []
    await store.open()
    try:
        ledger = _ledger(await _stored(store, Channel.LEDGER), unreadable)
        rewards = _rewards(await _stored(store, Channel.REWARDS), unreadable)
        payloads = await _payloads(store, unreadable)
    finally:
        await store.close()
    return Evidence(
        ledger=tuple(ledger),
        payloads=tuple(payloads),
        rewards=tuple(rewards),
        manifests=tuple(_manifests(weights, unreadable)),
        fed=tuple(_fed(trainer, unreadable)),
        unreadable=tuple(unreadable),
    )


@asynccontextmanager
async def _server(folder: RunFolder, identity: Identity) -> AsyncIterator[str]:
    """URL of a server that has the job's streams."""
    if identity.nats_url:
        yield identity.nats_url
        return
    if folder.in_use():
        url = running_url(folder.nats)
        if url is None:
            raise SpecError(
                str(folder.path), "the run in it starts or ends just now: try again in a few seconds"
            )
        yield url
        return
    if not (folder.nats / "store").is_dir():
        raise SpecError(str(folder.path), "holds no streams: nats/store is missing")
    with folder.locked(), tempfile.TemporaryDirectory(prefix="rljob-audit-") as scratch:
        async with LocalCluster(Path(scratch), os.environ) as cluster:
            yield await start_nats(cluster, folder.nats)


# ------------------------------------------------------------------------------------------------ the streams


async def _stored(store: NatsStore, channel: Channel, *, headers_only: bool = False) -> list[Message]:
    """What a stream holds now. One that shrinks meanwhile, because its job runs, is read as far as it goes."""
    held = (await store.depths())[channel.value]
    last = await store.last_sequence(channel)
    found: list[Message] = []
    if not held:
        return found
    batches = store.read(channel, headers_only=headers_only)
    with suppress(TimeoutError):
        while len(found) < held and (not found or found[-1].sequence < last):
            async with asyncio.timeout(_SILENCE_SECONDS):
                found += await anext(batches)
    await batches.aclose()  # type: ignore[attr-defined]
    return found


def _ledger(messages: Sequence[Message], unreadable: list[str]) -> Iterator[LedgerMessage]:
    for message in messages:
        try:
            yield LedgerMessage(message.sequence, decode_batch(message.data))
        except ValidationError as error:
            unreadable.append(f"ledger message {message.sequence} is no record batch: {_first(error)}")


def _rewards(messages: Sequence[Message], unreadable: list[str]) -> Iterator[RewardResult]:
    for message in messages:
        try:
            yield from REWARD_BATCH.validate_json(message.data).results
        except ValidationError as error:
            unreadable.append(f"reward message {message.sequence} does not decode: {_first(error)}")


async def _payloads(store: NatsStore, unreadable: list[str]) -> list[PayloadLeft]:
    """Training payloads left, each compared with its digest byte by byte."""
    trajectories = TrajectoryStore(store)
    summaries = []
    for message in await _stored(store, Channel.TRAJECTORIES, headers_only=True):
        if SUMMARY_HEADER not in message.headers:
            continue  # a chunk: the message that completes it has the summary
        try:
            found = wire.decode_summaries(message.headers[SUMMARY_HEADER])
        except CorruptPayload as error:
            unreadable.append(f"payload message {message.sequence} has no readable header: {error}")
            continue
        summaries += [(s, Location(message.sequence, index, s.digest)) for index, s in enumerate(found)]
    left = []
    for first in range(0, len(summaries), _PAYLOADS_AT_ONCE):
        part = summaries[first : first + _PAYLOADS_AT_ONCE]
        whole = await trajectories.get([location for _, location in part])
        # Gone since the header was read is no damage.
        sequences = [location.sequence for _, location in part]
        present = dict(zip(sequences, await store.get(Channel.TRAJECTORIES, sequences), strict=True))
        left += [
            PayloadLeft(s.trajectory, s.attempt, s.digest, s.span, intact=trajectory is not None)
            for (s, location), trajectory in zip(part, whole, strict=True)
            if trajectory is not None or present[location.sequence] is not None
        ]
    return left


# ------------------------------------------------------------------------------------------------- the files


def _manifests(root: Path, unreadable: list[str]) -> Iterator[ManifestFile]:
    for file in sorted(root.glob("*/manifest.json")):
        try:
            content = file.read_bytes()
            manifest = _MANIFEST.validate_json(content)
        except (OSError, ValidationError) as error:
            unreadable.append(f"{file} does not read: {error}")
            continue
        yield ManifestFile(
            key=file.parent.name,
            version=manifest.version,
            parent=manifest.parent,
            digest=manifest.digest,
            proposal=manifest.proposal,
            intact=_digest(content) == manifest.digest and manifest.key == file.parent.name,
        )


def _digest(content: bytes) -> str:
    """xxh3-128 of a manifest without its digest, as JSON with sorted keys and no spaces."""
    fields = json.loads(content)
    del fields["digest"]
    return xxhash.xxh3_128_hexdigest(json.dumps(fields, sort_keys=True, separators=(",", ":")).encode())


def _fed(folder: Path, unreadable: list[str]) -> Iterator[FedMicroBatch]:
    files = sorted(folder.glob("attempt-*.jsonl"), key=lambda file: (len(file.name), file.name))
    for file in files:
        for number, line in enumerate(file.read_bytes().splitlines(keepends=True), start=1):
            try:
                yield FED.validate_json(line)
            except ValidationError as error:
                # A line is written whole before backward begins: half a one was cut by a kill, and nothing was fed.
                if line.endswith(b"\n"):
                    unreadable.append(f"{file}, line {number}: {_first(error)}")


def _first(error: ValidationError) -> str:
    return error.errors(include_url=False)[0]["msg"]
