"""Bytes of the trajectory stream: what one payload takes at most, and the size with which a job's stream begins.

The stream begins with room for all trajectories that can be under way, their prompts taken for `PROMPT_TOKENS` long:
buffers of η + 1 steps can be open at once; one more batch is for results that arrive while the newest consumed batch is
being deleted, and the evaluation needs room of its own. It never shrinks. Real prompts are known when their groups are
planned: the planner then dispatches only what fits (`rljob_core.planner.backpressure`).
"""

from __future__ import annotations

from rljob_core.spec import RLJobSpec

PROMPT_TOKEN_BYTES = 4
"""A prompt's tokens are stored raw; its loss mask, log-probabilities and versions are one run each."""
RESPONSE_TOKEN_BYTES = 4 + 4 + 4
"""Tokens, log-probabilities, and at most one version each; the loss mask is one run."""
PAYLOAD_BYTES = 2048
"""What a payload has besides its tokens: its summary in the message's headers, its own header, alignment, and what the
server adds to a message."""
TURN_BYTES = 320
"""What a further turn adds besides its tokens: two segments, each with a line of the header of up to 80 bytes, and with
four columns, whose runs and alignment take up to 16 bytes each."""
CHUNK_BYTES, CHUNK_OVERHEAD = 960 << 10, 1024
"""A payload is cut into messages of so many bytes at most, each with headers and the server's own bytes."""
PROMPT_TOKENS = 4096
"""Longest prompt with which the stream begins."""
LONGEST_PROMPT_TOKENS = CHUNK_BYTES
"""No prompt is longer: its text reaches an engine in one message, and it has no more tokens than its text has bytes."""
MINIMUM = 256 << 20


def payload_bytes(*, prompt_tokens: int, response_tokens: int, turns: int = 1) -> int:
    """Bytes of the trajectory stream that one payload takes at most.

    Args:
        prompt_tokens: of its prompt.
        response_tokens: of all that follows, observations of an environment included.
        turns: responses of the model in it at most.
    """
    size = PROMPT_TOKEN_BYTES * prompt_tokens + RESPONSE_TOKEN_BYTES * response_tokens + PAYLOAD_BYTES
    size += TURN_BYTES * (turns - 1)
    return size + CHUNK_OVERHEAD * (size // CHUNK_BYTES)


def largest_payload_bytes(spec: RLJobSpec, *, prompt_tokens: int) -> int:
    """Bytes that a payload of a job takes at most, however long its response becomes."""
    rollout = spec.rollout
    return payload_bytes(
        prompt_tokens=prompt_tokens, response_tokens=rollout.sampling.max_tokens, turns=rollout.max_turns
    )


def trajectory_stream_bytes(spec: RLJobSpec) -> int:
    """Size limit with which the trajectory stream begins, in bytes."""
    return _bytes_under_way(spec, prompt_tokens=PROMPT_TOKENS)


def largest_trajectory_stream_bytes(spec: RLJobSpec) -> int:
    """Size limit that the trajectory stream may come to need at most, in bytes, however long the job's prompts are."""
    return _bytes_under_way(spec, prompt_tokens=LONGEST_PROMPT_TOKENS)


def _bytes_under_way(spec: RLJobSpec, *, prompt_tokens: int) -> int:
    """Bytes of all trajectories that can be under way, if all prompts are that long."""
    batch = spec.data.prompts_per_step * spec.data.group_size
    held_out = spec.evaluation.held_out if spec.evaluation is not None else ()
    evaluation = sum((one.group_size + 1) * one.asked(None) for one in held_out)
    one = largest_payload_bytes(spec, prompt_tokens=prompt_tokens)
    return max(MINIMUM, one * (batch * (spec.pipeline.bound + 2) + evaluation))
