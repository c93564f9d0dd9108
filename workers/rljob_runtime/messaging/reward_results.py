"""Results of reward workers: their digests, and how they are read from a message in which any may be damaged."""

from __future__ import annotations

import json
import logging
from dataclasses import asdict
from typing import Any

import xxhash
from pydantic import TypeAdapter, ValidationError

from rljob_core.failures import Failure, Reason
from rljob_core.messages import REWARD_BATCH, RewardResult
from rljob_core.messages.limits import MESSAGE_RESULTS, OutOfBounds, within_limits

log = logging.getLogger(__name__)

_RESULT = TypeAdapter(RewardResult)


def decode_results(data: bytes) -> tuple[RewardResult, ...]:
    """The results of one message of the reward stream, the first `MESSAGE_RESULTS`.

    A result that does not decode, or is out of bounds, becomes that attempt's failure, if the message says which
    attempt it is; whatever says not even that is left out. Its payload then counts as one whose score was lost.
    """
    try:
        return tuple(map(within_limits, REWARD_BATCH.validate_json(data).results[:MESSAGE_RESULTS]))
    except (ValidationError, OutOfBounds) as error:
        log.warning("a message of the reward stream does not decode: %s", str(error)[:500])
    try:
        listed = json.loads(data)["results"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return ()
    found = map(_result, listed[:MESSAGE_RESULTS] if isinstance(listed, list) else ())
    return tuple(result for result in found if result is not None)


def result_digest(result: RewardResult) -> str:
    """Return the xxh3-128 of a result without its digest, as JSON with sorted keys and no spaces."""
    fields = {name: value for name, value in asdict(result).items() if name != "digest"}
    # A whole number may have been given, and is read back as a float.
    fields |= {"reward": float(result.reward), "parts": {k: float(v) for k, v in result.parts.items()}}
    text = json.dumps(fields, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return xxhash.xxh3_128_hexdigest(text.encode())


def _result(value: Any) -> RewardResult | None:
    try:
        return within_limits(_RESULT.validate_python(value))
    except ValidationError as error:
        wrong = ", ".join(".".join(map(str, one["loc"])) for one in error.errors())
    except OutOfBounds as error:
        wrong = str(error)
    if not isinstance(value, dict):
        return None
    named = {name: value.get(name) for name in ("trajectory", "attempt", "payload_digest")}
    failure = {
        "reward": 0.0,
        "parts": {},
        "digest": "",
        "failure": Failure(Reason.REWARD_INVALID, f"it does not decode: {wrong[:200]}"),
    }
    try:
        return within_limits(_RESULT.validate_python({**named, **failure}))
    except (ValidationError, OutOfBounds):
        return None
