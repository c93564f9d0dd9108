"""Whether the header of a stored payload can be true, as far as the coordinator can tell, which reads no tokens."""

from __future__ import annotations

from rljob_core.actions import Summary

INVALID = "InvalidOutput"
"""Reason of the failure; rollout workers give the same where an engine's response cannot be true."""
LONGEST_DIGEST = 64
"""Characters of a digest in the ledger at most."""
MOST_TOKENS = 2**40
"""Tokens of a trajectory at most: above the largest number that is a float, a mean over them would raise."""


def payload_fault(summary: Summary, *, committed: int) -> str:
    """What cannot be true of a payload; empty if nothing is known against it.

    Args:
        summary: the payload's header.
        committed: the newest committed version: no token can be of weights that do not exist.
    """
    span = summary.span
    if len(summary.digest) > LONGEST_DIGEST:
        return f"its digest has {len(summary.digest)} characters"
    if summary.tokens > MOST_TOKENS:
        return f"more than {MOST_TOKENS} tokens cannot be"
    if not 1 <= summary.response_tokens <= summary.tokens:
        return f"{summary.response_tokens} of {summary.tokens} tokens are its response"
    if not 0 <= span.min <= span.max:
        return f"its tokens are of versions {span.min} to {span.max}"
    if span.max > committed:
        return f"its tokens are of versions up to {span.max}, where {committed} is the newest committed one"
    return ""
