"""Explains an out-of-memory error in a forward or backward: how large the batch was, and which options to lower."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from rljob_core.errors import JobFailed
from rljob_core.failures import Reason

#: What torch says where a CPU's memory is exhausted; it has no type for it.
_CPU = ("can't allocate memory", "not enough memory", "Cannot allocate memory")


@contextmanager
def explain_out_of_memory(*, sequences: int, tokens: int, step: int) -> Iterator[None]:
    """Say which forward and backward ran out of memory.

    Args:
        sequences: of the batch.
        tokens: of it.
        step: that it belongs to.

    Raises:
        JobFailed: there was not enough memory; the same batch would find no more of it in another attempt.
    """
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not of_memory(error):
            raise
        raise JobFailed(
            f"step {step}: out of memory in the forward and backward of {sequences} sequences, {tokens} tokens, of a "
            "micro-batch: lower spec.trainer.options.forwardTokens or spec.trainer.microBatchTokens, or set "
            f"spec.trainer.options.activationCheckpointing: true ({_first_line(error)})",
            Reason.OUT_OF_MEMORY,
        ) from error


def of_memory(error: BaseException) -> bool:
    """Whether an error says that memory is exhausted."""
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or any(
        words in str(error) for words in _CPU
    )


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
