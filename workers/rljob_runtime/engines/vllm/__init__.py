"""The engine `vLLM`: vLLM in processes of its own, with weights replaced in place and our random numbers.

`RLJobWorker` is the worker extension that a vLLM server of one's own is started with:
`--worker-extension-cls rljob_runtime.engines.vllm.RLJobWorker`. It is imported when it is asked for, in vLLM's worker
processes; importing this package loads no vLLM.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rljob_runtime.engines.vllm.worker import RLJobWorker

__all__ = ["RLJobWorker"]


def __getattr__(name: str) -> Any:
    if name != "RLJobWorker":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from rljob_runtime.engines.vllm.worker import RLJobWorker

    return RLJobWorker
