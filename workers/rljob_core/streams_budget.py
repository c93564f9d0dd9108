"""The size of a job's trajectory stream, large enough that a full stream can never block the protocol.

Every reserved group is counted with its largest possible size. Buffers of η + 1 steps can be open at once; one more
batch is for results that arrive while the newest consumed batch is being deleted, and the evaluation needs room of its
own. A wider staleness bound or longer responses need a larger stream: the stream grows before any group is reserved
under the new values, and never shrinks. See docs/design/streams.md.
"""

from __future__ import annotations

from rljob_core.spec import RLJobSpec

BYTES_PER_TOKEN = 4 + 1 + 4 + 4  # tokens, loss mask, log-probabilities, versions
HEADER_BYTES = 1024
PROMPT_TOKENS = 4096  # longest prompt; the real length is known only after the prompt is rendered
MINIMUM = 256 << 20


def trajectory_bytes(spec: RLJobSpec) -> int:
    """Largest size of one stored trajectory, in bytes."""
    return HEADER_BYTES + BYTES_PER_TOKEN * (PROMPT_TOKENS + spec.rollout.sampling.max_tokens)


def trajectory_stream_bytes(spec: RLJobSpec) -> int:
    """Size limit of the trajectory stream, in bytes."""
    batch = spec.data.prompts_per_step * spec.data.group_size
    evaluation = 2 * spec.evaluation.samples if spec.evaluation is not None else 0
    return max(MINIMUM, trajectory_bytes(spec) * (batch * (spec.pipeline.bound + 2) + evaluation))
