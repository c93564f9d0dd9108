"""The worker extension, which runs inside vLLM's processes: loads weights from a folder, draws our random numbers.

vLLM imports this module in each worker because its `worker_extension_cls` is `rljob_runtime.engines.vllm.RLJobWorker`,
set by our engine, or on the command line of a server as `--worker-extension-cls`.
"""

from __future__ import annotations

import os
import select
import signal
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)
from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory

from rljob_runtime.engines.vllm import internals
from rljob_runtime.engines.vllm.names import OWNER, TRANSFER
from rljob_runtime.model.settings import weight_files


def end_with(owner: int) -> None:
    """Kill this process as soon as another one has ended, however it ended; vLLM's other processes end with a worker.

    On a kernel without `pidfd_open`, vLLM's processes end with a regular end only.
    """
    try:
        process = os.pidfd_open(owner)
    except ProcessLookupError:
        os.kill(os.getpid(), signal.SIGKILL)
        return
    except (OSError, AttributeError):
        return

    def watch() -> None:
        select.select([process], [], [])
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=watch, name="lifeline", daemon=True).start()


@dataclass
class NoInit(WeightTransferInitInfo):  # type: ignore[misc]
    """Nothing: files need no connection."""


@dataclass
class Folder(WeightTransferUpdateInfo):  # type: ignore[misc]
    """Where the tensors are, as safetensors files under the names that the model's own have."""

    folder: str


class FolderTransfer(WeightTransferEngine[NoInit, Folder]):  # type: ignore[misc]
    """Loads weights from files, layer by layer, as vLLM loads a model: so any layout, quantization or split is kept."""

    init_info_cls = NoInit
    update_info_cls = Folder

    def init_transfer_engine(self, init_info: NoInit) -> None:
        """Nothing to set up or tear down."""

    def start_weight_update(self) -> None:
        """Expect new weights."""
        internals.begin_reload(self.model)

    def receive_weights(self, update_info: Folder) -> None:
        """Read the new weights, one tensor at a time.

        Raises:
            ValueError: the folder lacks weights of the model, which would then be a mixture of two versions.
        """
        loaded = self.model.load_weights(_tensors(Path(update_info.folder)))
        # Not every model says what it has loaded; quantized ones have parameters that come from no file.
        if loaded is None or self.model_config.quantization is not None:
            return
        missing = sorted(internals.required_parameters(self.model) - set(loaded))
        if missing:
            raise ValueError(
                f"{update_info.folder} lacks weights of {missing[0]}, and of {len(missing) - 1} others"
            )

    def finish_weight_update(self) -> None:
        """Put them to use."""
        internals.finish_reload(self.model, self.model_config)

    def shutdown(self) -> None:
        """Nothing to set up or tear down."""


def _tensors(folder: Path) -> Iterator[tuple[str, Any]]:
    from safetensors import safe_open

    read = False
    for file in weight_files(folder):
        with safe_open(file, framework="pt") as tensors:
            for name in tensors.keys():  # noqa: SIM118  it is no mapping
                read = True
                yield name, tensors.get_tensor(name)
    if not read:
        raise ValueError(f"{folder} holds no weights, or not on the machine where vLLM runs")


class RLJobWorker:
    """Mixed into vLLM's worker; its methods are called on all workers by `collective_rpc`."""

    def rljob_sampler(self) -> bool:
        """Draw our random numbers from now on (`sampler`); whether this worker can."""
        from rljob_runtime.engines.vllm.sampler import install

        return install(self.model_runner)  # type: ignore[attr-defined]


WeightTransferEngineFactory.register_engine(TRANSFER, FolderTransfer)
if OWNER in os.environ:
    end_with(int(os.environ[OWNER]))
