"""PURE. How large the trajectory stream must be, so that a full store can never stop the protocol (MECHANISMS §2).

Every reserved group is charged its worst case; buffers for η + 1 steps can be open at once, one more batch covers
results that arrive while the last one is being deleted, and an evaluation runs beside them. A wider bound, or longer
responses, need a larger stream: it grows before anything is reserved under them, and never shrinks.
"""

from __future__ import annotations

from rljob_core.spec import RLJobSpec

BYTES_PER_TOKEN = 4 + 1 + 4 + 4  # tokens, loss mask, log-probabilities, versions
HEADER_BYTES = 1024
PROMPT_TOKENS = 4096  # of a prompt at most, where its length is not known before it is rendered
MINIMUM = 256 << 20


def trajectory_bytes(spec: RLJobSpec) -> int:
    """Worst-case bytes of one stored trajectory."""
    return HEADER_BYTES + BYTES_PER_TOKEN * (PROMPT_TOKENS + spec.rollout.sampling.max_tokens)


def trajectory_stream_bytes(spec: RLJobSpec) -> int:
    """Bytes that the trajectory stream may hold."""
    batch = spec.data.prompts_per_step * spec.data.group_size
    evaluation = 2 * spec.evaluation.samples if spec.evaluation is not None else 0
    return max(MINIMUM, trajectory_bytes(spec) * (batch * (spec.pipeline.bound + 2) + evaluation))
