"""Opens the samples of a job, as its configuration says."""

from __future__ import annotations

import logging
import os
import secrets

from rljob_core import worker_protocol
from rljob_core.config import JobConfig
from rljob_core.words import error_in_words
from rljob_runtime.model.tokenizer import Tokenizer
from rljob_runtime.samples.keeping import share_of
from rljob_runtime.samples.log import SampleLog
from rljob_runtime.samples.places import open_samples
from rljob_runtime.samples.rows import TokenTexts

log = logging.getLogger(__name__)


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
