"""Counts the tokens of prompts, by which the coordinator sets room aside for their trajectories."""

from __future__ import annotations

import logging
from collections.abc import Callable

from rljob_core.config import JobConfig
from rljob_core.errors import SpecError
from rljob_runtime.data.row_scan import most_tokens
from rljob_runtime.locations import local_path

log = logging.getLogger(__name__)


def token_counter(config: JobConfig) -> Callable[[str], int]:
    """Counts a prompt's tokens as engines do; their upper bound, if the coordinator cannot read the model."""
    from rljob_runtime.data.prompts import prompt_encoder
    from rljob_runtime.model.tokenizer import Tokenizer  # its library takes a second to import

    try:
        tokenizer = Tokenizer(local_path(config.spec.model.uri, field="spec.model.uri"))
    except SpecError as error:
        log.info("the lengths of prompts are counted in bytes: %s", error)
        return most_tokens
    encode = prompt_encoder(config.spec.data, tokenizer)
    return lambda text: len(encode(text))
