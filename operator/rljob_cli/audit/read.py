"""Reads the audit's evidence about a job: streams, manifests of weights, its trainer's log, and what its folder says.

For a run's output folder, the streams are read from the run's nats-server if it is running, else from a server that is
started for the audit. In a pod they are read from the server in `RLJOB_NATS_URL`. The ledger is read first: everything
that it refers to was stored in the other sources before. A stream that the server does not have is evidence that is
missing: only a job that may be starting is waited for.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import xxhash
from pydantic import TypeAdapter, ValidationError

from rljob_cli.audit.evidence import Evidence, LedgerMessage, ManifestFile
from rljob_cli.audit.streams import (
    absent_streams,
    announcements,
    first_message,
    ledger_messages,
    metrics_lines,
    payloads_left,
    reward_results,
    stored,
)
from rljob_cli.cluster_job import job_config
from rljob_cli.run_folder.folder import Identity, RunFolder
from rljob_cli.run_folder.streams import UNKNOWN_DAMAGE, broken_streams, served_streams, store_of
from rljob_core.config import JobConfig
from rljob_core.errors import RLJobError, SpecError, StoreUnavailable
from rljob_core.exhausted import limit_of
from rljob_core.ports import Channel, Message, MessageStore, WeightManifest
from rljob_core.records import FED, FedMicroBatch
from rljob_core.spec import RLJobSpec, WeightsSpec
from rljob_core.stream_names import StreamNames
from rljob_operator import names
from rljob_runtime.locations import local_path
from rljob_runtime.messaging.connect import role_store
from rljob_runtime.storage.objects import is_object_store
from rljob_runtime.storage.plain_files import NotPlain, open_plain
from rljob_runtime.storage.trainer_log import TrainerLogObjects
from rljob_runtime.training.trainer_log_folder import trainer_log_folder
from rljob_runtime.weights.create import open_transport
from rljob_runtime.weights.nats import MessageTransport
from rljob_runtime.weights.transport import Transport

PATIENCE_SECONDS = 60.0
"""For which a server that restarts, or the streams of a job that may be starting, are waited for."""
_MANIFEST: TypeAdapter[WeightManifest] = TypeAdapter(WeightManifest)


async def read_folder(folder: RunFolder) -> Evidence:
    """Read all evidence about the job in an output folder of `rljob run`.

    Raises:
        SpecError: the folder holds no job, or one that has not begun.
        StoreUnavailable: the job's streams cannot be read.
    """
    identity, in_use = (
        folder.required_identity(),
        folder.in_use(),
    )  # the lock is ours once the streams are served
    async with served_streams(folder, identity, whole=False) as url:
        return await _read_served(folder, identity, url, in_use=in_use)


async def read_folder_served(folder: RunFolder, url: str) -> Evidence:
    """The evidence of a run whose streams, or a copy of them, the server at `url` serves."""
    folder.check_plain()
    return await _read_served(folder, folder.required_identity(), url, in_use=folder.in_use())


async def _read_served(folder: RunFolder, identity: Identity, url: str, *, in_use: bool) -> Evidence:
    if identity.mirrors:
        return await _read_mirrored(job_config(folder.workers_config), identity, url)
    evidence = await _collect_of(folder, identity, url, in_use=in_use)
    return _add_reports(evidence, folder, identity, in_use=in_use)


async def _read_mirrored(config: JobConfig, identity: Identity, url: str) -> Evidence:
    """The evidence about a job on a cluster, of whose storage this machine may have none.

    A viewer may read no weights that travel through NATS, and so none of their manifests.
    """
    connect = partial(store_of, identity, url, patience=PATIENCE_SECONDS)
    trainer, transport = await asyncio.to_thread(_readable_log, config.trainer_log_uri), None
    weights = config.weights_uri
    # A folder that this machine lacks would read as one from which all versions have vanished.
    readable = is_object_store(weights) or (bool(weights) and local_path(weights).is_dir())
    if config.spec.weights.needs_uri and trainer is not None and readable:
        transport = open_transport(config.spec.weights.transport, uri=weights, connect=connect)
    evidence = await collect(connect(), transport, job=config.uid, trainer=trainer)
    spec = config.spec.model_dump(mode="json", by_alias=True)
    return replace(evidence, user_spec=spec, spec_may_be_ahead=True, streams_only=transport is None)


async def _collect_of(folder: RunFolder, identity: Identity, url: str, *, in_use: bool) -> Evidence:
    try:
        weights = RLJobSpec.model_validate(identity.manifest.get("spec")).weights
    except ValidationError:  # `_spec` says so
        weights = WeightsSpec()
    connect = partial(store_of, identity, url, patience=PATIENCE_SECONDS)
    transport = open_transport(weights.transport, uri=weights.uri or str(folder.weights), connect=connect)
    names = StreamNames.of_job(namespace=identity.namespace, job=identity.name, uid=identity.uid)
    broken = broken_streams(folder, identity)

    def absent(channel: Channel) -> str:
        stream = names.stream(channel)
        if identity.nats_url:
            return f"the nats-server at {identity.nats_url} has no stream {stream}"
        why = broken.get(stream, UNKNOWN_DAMAGE)
        return f"the stream {stream} does not load: {why}; `rljob run --resume` repairs what other evidence allows"

    return await collect(
        connect(),
        transport,
        job=identity.uid,
        trainer=folder.trainer_log_uri(identity),
        absent=absent,
        patience=PATIENCE_SECONDS if in_use else 0.0,
    )


async def read_configured(
    config: JobConfig,
    environment: Mapping[str, str] = os.environ,
    *,
    workers: Path = Path(names.WORKER_CONFIGS_FOLDER),
) -> Evidence:
    """Read all evidence about a job on a cluster, from inside an audit pod (`rljob_operator.children.audit_pod`).

    Args:
        config: the job's configuration.
        environment: environment variables of a worker, with the reader's credentials.
        workers: folder with the configurations that the workers' pods mount.

    Raises:
        SpecError: the environment names no server.
        StoreUnavailable: the job's streams cannot be read.
    """
    connect = partial(role_store, config, "reader", environment=environment)
    transport = open_transport(config.spec.weights.transport, uri=config.weights_uri, connect=connect)
    evidence = await collect(connect(), transport, job=config.uid, trainer=config.trainer_log_uri)
    spec = config.spec.model_dump(mode="json", by_alias=True)
    unreadable = list(evidence.unreadable)
    specs = tuple(_worker_specs(_mounted_configurations(workers), unreadable))
    return replace(
        evidence, user_spec=spec, spec_may_be_ahead=True, worker_specs=specs, unreadable=tuple(unreadable)
    )


async def collect(
    store: MessageStore,
    weights: Transport | None,
    *,
    job: str,
    trainer: str | Path | None,
    absent: Callable[[Channel], str] = "the server has no stream of the job's {}".format,
    patience: float = PATIENCE_SECONDS,
) -> Evidence:
    """Read all evidence from a job's stores and its trainer's log; both stores are closed afterwards.

    Args:
        store: the job's streams, not yet open.
        weights: storage that has the versions' manifests; None if it cannot be read from here.
        job: UID of the job.
        trainer: folder or URI of the trainer's own log; None if it cannot be read from here.
        absent: says that the server does not have the stream of a channel, and why.
        patience: seconds for which streams that the server does not have are waited for.

    Raises:
        StoreUnavailable: the job's streams cannot be read.
    """
    unreadable: list[str] = []
    await store.open()
    try:
        lost = await absent_streams(store, patience)
        unreadable += map(absent, lost)

        async def read(channel: Channel) -> list[Message]:
            return [] if channel in lost else await stored(store, channel)

        messages = await read(Channel.LEDGER)
        ledger = tuple(ledger_messages(messages, unreadable))
        rewards = tuple(reward_results(await read(Channel.REWARDS), unreadable))
        payloads = [] if Channel.TRAJECTORIES in lost else await payloads_left(store, unreadable)
        hidden = Channel.WEIGHTS in lost and isinstance(weights, MessageTransport)
        stored_weights = None if hidden else weights
        manifests = await asyncio.to_thread(
            lambda: list(_manifests(stored_weights, unreadable) if stored_weights else ())
        )
        metrics = metrics_lines([m.data for m in await read(Channel.METRICS)], ledger, unreadable)
        announced = announcements(await read(Channel.VERSIONS), unreadable)
        fed = await asyncio.to_thread(_logged, trainer, unreadable)
        newest = None if Channel.LEDGER in lost else await store.last(Channel.LEDGER)
    finally:
        if weights is not None:
            weights.close()
        await store.close()
    return Evidence(
        ledger=ledger,
        payloads=tuple(payloads),
        rewards=rewards,
        manifests=tuple(manifests),
        fed=fed,
        unreadable=tuple(unreadable),
        job=job,
        announced=announced,
        metrics=metrics,
        pipeline_refused=metrics[-1].pipeline_refused if metrics else "",
        growing=newest is not None and newest.sequence > (messages[-1].sequence if messages else 0),
    )


# ------------------------------------------------------------------------------- the weights, and the trainer's log


def _manifests(weights: Transport, unreadable: list[str]) -> Iterator[ManifestFile]:
    for key in sorted(weights.listing()):
        try:
            content = weights.manifest(key)
            if content is None:  # not a version: its writer did not finish
                continue
            manifest = _MANIFEST.validate_json(content)
        except (RLJobError, ValidationError) as error:
            unreadable.append(f"the manifest of {key} cannot be read: {error}")
            continue
        yield ManifestFile(
            key=key,
            version=manifest.version,
            parent=manifest.parent,
            digest=manifest.digest,
            proposal=manifest.proposal,
            intact=_digest(content) == manifest.digest and manifest.key == key,
        )


def _digest(content: bytes) -> str:
    """Return the xxh3-128 of a manifest without its digest, as JSON with sorted keys and no spaces."""
    fields = json.loads(content)
    del fields["digest"]
    return xxhash.xxh3_128_hexdigest(json.dumps(fields, sort_keys=True, separators=(",", ":")).encode())


def _content(file: Path, unreadable: list[str]) -> bytes | None:
    """What a file of the evidence holds; None if it cannot be read, which `unreadable` gets."""
    try:
        with open_plain(file) as opened:
            return opened.readall()
    except (OSError, NotPlain) as error:
        if limit_of(error):
            raise
        unreadable.append(f"{file} cannot be read: {error}")
        return None


def _readable_log(uri: str) -> str | None:
    """The place of the trainer's log; None if this machine cannot read it."""
    if not is_object_store(uri):
        return uri if local_path(uri).is_dir() else None
    try:
        TrainerLogObjects(uri, patience=0).numbers()
    except (SpecError, StoreUnavailable):  # no package, no credentials, no way to the store
        return None
    return uri


def _logged(uri: str | Path | None, unreadable: list[str]) -> tuple[FedMicroBatch, ...]:
    if uri is None:
        return ()
    with trainer_log_folder(str(uri)) as folder:
        return tuple(_fed(folder, unreadable))


def _fed(folder: Path, unreadable: list[str]) -> Iterator[FedMicroBatch]:
    files = sorted(folder.glob("attempt-*.jsonl"), key=lambda file: (len(file.name), file.name))
    for file in files:
        lines = (_content(file, unreadable) or b"").splitlines(keepends=True)
        for number, line in enumerate(lines, start=1):
            try:
                yield FED.validate_json(line)
            except ValidationError as error:
                # The trainer writes a whole line before backward begins. A line without its end was cut off by a kill:
                # nothing was fed.
                if line.endswith(b"\n"):
                    unreadable.append(f"{file}, line {number}: {first_message(error)}")


# ------------------------------------------------------------------------------- what the run says about itself


def _add_reports(evidence: Evidence, folder: RunFolder, identity: Identity, *, in_use: bool) -> Evidence:
    """Add what the folder's files say to the evidence from the streams; `in_use`: see `Evidence`."""
    unreadable = list(evidence.unreadable)
    patched = (text.partition("=")[0].strip().removeprefix("spec.") for text in identity.patches)
    return replace(
        evidence,
        metrics_file=_metrics(folder, evidence.ledger, unreadable),
        summary=_summary(folder, unreadable),
        user_spec=_spec(identity, unreadable),
        patched=tuple(patched),
        in_use=in_use,
        worker_specs=tuple(_worker_specs(_configurations(folder), unreadable)),
        unreadable=tuple(unreadable),
    )


def _metrics(folder: RunFolder, ledger: Iterable[LedgerMessage], unreadable: list[str]) -> Any:
    if not folder.metrics.is_file():
        return ()
    # The last line may be half written: by a run that was killed, or that is writing it now.
    content = _content(folder.metrics, unreadable) or b""
    lines = [line for line in content.splitlines(keepends=True) if line.endswith(b"\n")]
    return metrics_lines(lines, ledger, unreadable)


def _summary(folder: RunFolder, unreadable: list[str]) -> dict[str, Any] | None:
    content = _content(folder.summary, unreadable) if folder.summary.is_file() else None
    if content is None:
        return None
    try:
        found = json.loads(content)
    except (ValueError, RecursionError) as error:
        unreadable.append(f"summary.json cannot be read: {error}")
        return None
    if not isinstance(found, dict):
        unreadable.append("summary.json is not a JSON object")
        return None
    return found


def _spec(identity: Identity, unreadable: list[str]) -> dict[str, Any] | None:
    try:
        spec = RLJobSpec.model_validate(identity.manifest["spec"])
    except (ValidationError, LookupError) as error:
        unreadable.append(f"the spec in job.json is not valid: {error}")
        return None
    return spec.model_dump(mode="json", by_alias=True)


def _configurations(folder: RunFolder) -> Iterator[tuple[str, Path]]:
    for file in sorted(folder.path.glob("pods/*/volumes/config/config.json")):
        yield file.relative_to(folder.path / "pods").parts[0], file


def _mounted_configurations(folder: Path) -> list[tuple[str, Path]]:
    """Name and path of the configurations that an audit's pod on a cluster mounts (`names.WORKER_CONFIGS_FOLDER`)."""
    return [(file.stem, file) for file in sorted(folder.glob("*.json"))]


def _worker_specs(
    files: Iterable[tuple[str, Path]], unreadable: list[str]
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the specs in workers' configuration files, each with the name that its file was given.

    Args:
        files: name and path of each file.
        unreadable: gets a sentence for each file that does not read.
    """
    for name, file in files:
        content = _content(file, unreadable)
        if content is None:
            continue
        try:
            config = JobConfig.model_validate_json(content)
        except ValidationError as error:
            unreadable.append(f"the configuration of {name} cannot be read: {first_message(error)}")
            continue
        yield name, config.spec.model_dump(mode="json", by_alias=True)
