"""Names that our process and vLLM's processes share; imports nothing."""

from __future__ import annotations

#: Environment variable with the process that vLLM's own end with.
OWNER = "RLJOB_VLLM_OWNER"
#: Of our weight transfer in vLLM's registry.
TRANSFER = "rljob"
#: The worker extension.
EXTENSION = "rljob_runtime.engines.vllm.RLJobWorker"
#: Of a request's extra arguments: its seed, as decimal digits, and how many numbers others have drawn from its stream.
SEED, DRAWN = "rljob_seed", "rljob_drawn"
