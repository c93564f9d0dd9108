"""Opens the log of a reward worker's samples, and tells the coordinator of those that are lost: the status says it."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets

from rljob_core import worker_protocol
from rljob_core.config import JobConfig
from rljob_core.errors import RLJobError
from rljob_core.messages import SamplesLost
from rljob_core.ports import MessageStore
from rljob_core.words import error_in_words
from rljob_runtime.messaging.announce import publish_event
from rljob_runtime.model.tokenizer import Tokenizer
from rljob_runtime.samples.keeping import share_of
from rljob_runtime.samples.log import SampleLog
from rljob_runtime.samples.places import open_samples
from rljob_runtime.samples.rows import TokenTexts

log = logging.getLogger(__name__)

#: Seconds between two looks, and between two reports.
_LOOK, _PAUSE = 1.0, 60.0


async def report_losses(samples: SampleLog | None, store: MessageStore) -> None:
    """Report what cannot be stored, every minute while it cannot, and that all can again; until cancelled.

    Args:
        samples: the log; None if no samples are kept.
        store: the job's streams, open.
    """
    said, ailing = 0, False
    while samples is not None:
        await asyncio.sleep(_LOOK)
        counts = samples.counts
        more = counts.lost > said
        why = counts.problem or (counts.reason if more else "")
        if not why and not ailing:
            continue
        try:
            await publish_event(store, SamplesLost(samples.worker, counts.lost, why))
            said, ailing = counts.lost, bool(why)
        except RLJobError as error:  # nothing ends because of samples
            log.warning("the coordinator was not told of lost samples: %s", error)
        await asyncio.sleep(_PAUSE)


def open_sample_log(config: JobConfig, tokenizer: Tokenizer) -> SampleLog | None:
    """The log of this process's samples, to be closed by the caller; None if the job keeps none.

    A place that cannot be opened costs the samples and not the job: the log says so.
    """
    if not config.samples_uri:
        return None
    worker = os.environ.get(worker_protocol.POD, "reward")
    try:
        place = open_samples(config.samples_uri)
    except Exception as error:  # an object store's client may raise anything
        log.warning("no samples are kept, training continues: %s", error_in_words(error))
        return None
    return SampleLog(
        place,
        TokenTexts(tokenizer.decode, tokenizer.name),
        writer=f"{worker}.{secrets.token_hex(4)}",
        worker=worker,
        job=config.uid,
        share=share_of(config.spec),
        keep_bytes=config.spec.samples.keep_bytes,
    )
