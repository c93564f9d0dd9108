"""Tells the coordinator of samples that are lost, and that they are stored again: the job's status says it."""

from __future__ import annotations

import asyncio
import logging

from rljob_core.errors import RLJobError
from rljob_core.messages import SamplesLost
from rljob_core.ports import MessageStore
from rljob_runtime.messaging.announce import publish_event
from rljob_runtime.samples.log import SampleLog

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
