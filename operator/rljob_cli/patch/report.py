"""The report of `rljob patch`: the changed fields, the processes that restart, and when a new pipeline takes effect.

The last comes from the running job's ledger, to which the coordinator writes the change (`PipelineSet`).
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import replace

from rljob_cli.own_command import own_command
from rljob_cli.patch.change import Change, patch, restarts
from rljob_cli.run_folder.embedded_nats import running_url
from rljob_cli.run_folder.folder import Identity, RunFolder
from rljob_cli.run_folder.streams import opened, store_of
from rljob_core.errors import RLJobError, StoreUnavailable
from rljob_core.planner.spec_change import pipeline_set
from rljob_core.ports import Channel
from rljob_core.records import PipelineSet, decode_batch
from rljob_operator.cluster.local.files import LocalFiles
from rljob_runtime.messaging.nats.store import NatsStore

_PATIENCE_SECONDS = 15.0
_LOOK_SECONDS = 0.1


def patch_and_report(folder: RunFolder, texts: Sequence[str]) -> Iterator[str]:
    """Patch the job in a folder; yields the lines of the report as they become known.

    Raises:
        SpecError, InvalidManifest: the change is refused.
    """
    end = asyncio.run(_ledger_end(folder)) if folder.in_use() else 0
    change = patch(folder, texts)
    if not change.fields:
        yield "nothing changes: the job has these values already"
        return
    for path, before, now in change.fields:
        yield f"{path}: {json.dumps(before)} → {json.dumps(now)}"
    yield from (f"warning: {warning}" for warning in change.warnings)
    if not folder.in_use():
        yield f"kept for the next `{own_command('run')} … --output {folder.path} --resume`: it does not run now"
        return
    yield from restarts(change, folder.defaults(nats_url=""))
    if not _observed(folder, change):
        yield "not taken over yet: `rljob run` starts or ends just now; it is kept, for --resume too"
        return
    if pipeline_set(change.before.spec.pipeline) == pipeline_set(change.after.spec.pipeline):
        yield "taken over by the running job"
        return
    yield _effect(change, asyncio.run(_pipeline_record(folder, change, after=end)))


def _observed(folder: RunFolder, change: Change) -> bool:
    """Wait until the running `rljob run` has observed the change; False if it does not in time."""
    job = change.identity.stamp(change.after)
    files = LocalFiles(folder.path)
    end = time.monotonic() + _PATIENCE_SECONDS
    while time.monotonic() < end and folder.in_use():
        if files.read_status(job).observed_generation >= change.identity.generation:
            return True
        time.sleep(_LOOK_SECONDS)
    return False


def _effect(change: Change, record: PipelineSet | None) -> str:
    if record is None:
        return "handed to the coordinator, which has not taken it over yet: its log says why, if it does not"
    before, after = change.before.spec.pipeline, change.after.spec.pipeline
    if (before.mode, before.bound) == (after.mode, after.bound):
        return "taken over: it counts from now on"
    if record.step >= change.after.spec.steps:
        return "taken over, but no buffer is left to open: the last steps keep the bound that they have"
    return f"taken over: it binds buffers that open from now on, and is complete after step {record.step} at the latest"


async def _pipeline_record(folder: RunFolder, change: Change, *, after: int) -> PipelineSet | None:
    """The ledger's record of the change after the message `after`; None if it is not written in time."""
    wanted = pipeline_set(change.after.spec.pipeline)
    with suppress(TimeoutError, RLJobError):
        async with asyncio.timeout(_PATIENCE_SECONDS), _store(folder, change.identity) as store:
            async for messages in store.read(Channel.LEDGER, start=after + 1):
                for record in (r for message in messages for r in decode_batch(message.data).records):
                    if isinstance(record, PipelineSet) and replace(record, step=0) == wanted:
                        return record
    return None


async def _ledger_end(folder: RunFolder) -> int:
    identity = folder.identity()
    if identity is not None:
        with suppress(RLJobError):
            async with _store(folder, identity) as store:
                return await store.last_sequence(Channel.LEDGER)
    return 0


def _store(folder: RunFolder, identity: Identity) -> AbstractAsyncContextManager[NatsStore]:
    """The streams of the running job.

    Raises:
        StoreUnavailable: the server has not started, or does not answer.
    """
    url = identity.nats_url or running_url(folder.nats)
    if url is None:
        raise StoreUnavailable("the nats-server has not started")
    return opened(store_of(identity, url, connect=2.0, patience=5.0))
