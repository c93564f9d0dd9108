"""A base for trainer backends that train a Hugging Face model with PyTorch: one step, from micro-batches to an update.

A micro-batch adds unnormalised sums to the gradients; `finish_step` adds up those of all ranks, divides once by the
step's divisor, clips and takes the optimizer's step. Every rank gets every micro-batch and computes its share, so that
normalisers need no communication and a rank without work still takes part. Dropout is off: the log-probabilities are
those of the distribution that samples came from.

A trajectory with advantage 0 has no gradient: without a KL term it costs no forward, but it counts in the normalisers,
since otherwise groups without a gradient would make their neighbours' larger. Statistics over tokens cover the computed
ones.

A subclass says how gradients are added up and how the optimizer takes its step (the abstract methods here), and how
weights and state are stored (those of `BackendState`).
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from rljob_core.config import JobConfig
from rljob_core.errors import JobFailed, NotFinite
from rljob_core.failures import Reason
from rljob_core.messages import StepStats
from rljob_core.ports import TrainingSample
from rljob_runtime.model.lora import without_adapters
from rljob_runtime.training.backends.state import BackendState
from rljob_runtime.training.forward import log_probabilities
from rljob_runtime.training.losses.loss import LossSettings, StepTotals
from rljob_runtime.training.losses.registry import find_loss
from rljob_runtime.training.losses.sums import loss_sums
from rljob_runtime.training.optimizer import learning_rate
from rljob_runtime.training.options import TrainingOptions
from rljob_runtime.training.packing.rows import Row, row
from rljob_runtime.training.step_count import StepCount

_STATISTICS = 5
#: Tokens of a forward beyond which a CPU takes longer for each of them: its caches hold no more activations.
_CACHED = 2048
#: What a rank computes that has nothing to compute while others have.
_PLACEHOLDER = Row(np.zeros(2, np.int32), np.array([False, True]), np.zeros(2, np.float32), 0.0, 1)


@dataclass(slots=True, kw_only=True)
class StepSums(StepCount):
    """What a step has accumulated besides gradients; all but `statistics` are alike on every rank."""

    statistics: Tensor
    losses: list[Tensor] = field(default_factory=list)
    """This rank's sum of losses after each micro-batch: where a sum that is not finite began to be so."""
    forwards: int = 0
    normalised: bool = False


class BackendBase(BackendState):
    """One rank of a trainer. With more than one, the default process group must exist.

    Args:
        config: the job.
        options: of the backend.
        model_path: folder of the initial model, in Hugging Face format; also the reference.
        rank: this rank, from 0.
        world_size: ranks in all.

    Raises:
        SpecError: the folder holds no causal language model.

    Attributes:
        in_step: whether a forward of one rank needs all others to run one too; ranks with fewer then run empty ones.
    """

    in_step: ClassVar[bool] = False

    def __init__(
        self,
        config: JobConfig,
        *,
        options: TrainingOptions,
        model_path: Path,
        rank: int,
        world_size: int,
    ) -> None:
        super().__init__(config, options=options, model_path=model_path, rank=rank, world_size=world_size)
        self._algorithm = config.spec.algorithm
        self._sampling = config.spec.rollout.sampling
        self._loss = find_loss(self._algorithm.loss)
        self._settings = LossSettings.of(self._algorithm)
        self._forward_tokens = options.forward_tokens or config.spec.trainer.micro_batch_tokens
        on_cpu = self._device.type == "cpu" and options.forward_tokens is None
        self._best_tokens = _CACHED if on_cpu else self._forward_tokens
        self._make()
        self.load_state(None)
        self.begin_step(0)

    # ------------------------------------------------------------------------------------------ what differs

    @abstractmethod
    def _make(self) -> None:
        """Make the model, with its initial weights, and the optimizer; called once, by the constructor."""

    @abstractmethod
    def _zero_gradients(self) -> None:
        """Forget the gradients."""

    @abstractmethod
    def _reduce_gradients(self, scale: float) -> None:
        """Add up the gradients of all ranks, where that is not done yet, and multiply them by `scale`."""

    @abstractmethod
    def _update(self, learning_rate: float) -> float:
        """Clip the reduced gradients to spec.algorithm.maxGradNorm and take the optimizer's step.

        Returns:
            The gradient's global norm before it was clipped. If that is not finite, nothing has changed.
        """

    def _backward(self, loss: Tensor) -> None:
        """Add the loss's gradient to what is accumulated."""
        loss.backward()

    def _reference(self) -> AbstractContextManager[Any]:
        """The reference model, ready for use. Called with a KL term only; with adapters, it is the base model."""
        raise NotImplementedError

    # ------------------------------------------------------------------------------------------ a step

    def begin_step(self, step: int) -> None:
        """Start step `step` with nothing accumulated."""
        self._zero_gradients()
        self._sums = StepSums(
            step=step, statistics=torch.zeros(_STATISTICS, dtype=torch.float64, device=self._device)
        )

    def accumulate(self, samples: Sequence[TrainingSample]) -> None:
        """Forward and backward over this rank's share of a micro-batch."""
        sums = self._sums
        rows = [row(sample) for sample in samples]
        sums.add(samples, tokens=sum(r.trained for r in rows))
        computed = [r for r in rows if r.trained and (r.advantage or self._settings.kl)]
        ranks = range(self._world_size) if self.in_step else (self._rank,)
        shares = {rank: self._batches_of(computed, rank) for rank in ranks}
        mine, forwards = shares[self._rank], max(map(len, shares.values()))
        self._accumulate_batches(mine + [[]] * (forwards - len(mine)))
        sums.losses.append(sums.statistics[0].clone())

    def normalise(self) -> None:
        """Turn sums into the step's gradient: add up all ranks', divide by the step's divisor. Once per step."""
        sums = self._sums
        if sums.normalised:
            return
        if self.in_step and not sums.forwards:
            self._accumulate_batches([[]])
        if self._world_size > 1:
            dist.all_reduce(sums.statistics)
        self._reduce_gradients(1.0 / self._divisor())
        sums.normalised = True

    def finish_step(self) -> StepStats:
        """Normalise, clip, take the optimizer step. The caller fills in the seconds.

        Raises:
            NotFinite: the loss or the gradient is not; the weights are as before.
        """
        self.normalise()
        sums = self._sums
        loss, divergence, tokens, clipped, importance = sums.statistics.tolist()
        if not math.isfinite(loss):
            raise self._not_finite(f"the loss ({loss})")
        rate = learning_rate(self._algorithm, sums.step)
        norm = self._update(rate)
        if not math.isfinite(norm):
            raise self._not_finite(f"the gradient (its norm is {norm}, the loss {loss:g})")
        return sums.stats(
            loss=loss / self._divisor(),
            kl=divergence / self._divisor(),
            clip_fraction=clipped / max(1.0, tokens),
            importance_mean=importance / tokens if tokens else 1.0,
            grad_norm=norm,
            learning_rate=rate,
        )

    # ------------------------------------------------------------------------------------------ inside

    def _batches_of(self, rows: Sequence[Row], rank: int) -> list[list[Row]]:
        """A rank's share of a micro-batch's rows, in batches for one forward each."""
        return self._packing.split(
            rows,
            tokens=self._forward_tokens,
            best=self._best_tokens,
            rank=rank,
            world_size=self._world_size,
        )

    def _accumulate_batches(self, parts: Sequence[Sequence[Row]]) -> None:
        """A forward and backward for each of these; one without rows adds nothing and keeps other ranks company."""
        made = [self._batch(rows or [_PLACEHOLDER]) for rows in parts]
        references: Sequence[Tensor | None] = [None] * len(made)
        if self._settings.kl > 0 and made:
            frozen = without_adapters(self._model) if self._lora is not None else self._reference()
            with torch.no_grad(), frozen as model:
                references = [
                    self._log_probabilities(model, batch, rows)
                    for rows, batch in zip(parts, made, strict=True)
                ]
        for rows, batch, reference in zip(parts, made, references, strict=True):
            self._accumulate_batch(rows, batch, reference)

    def _accumulate_batch(self, rows: Sequence[Row], batch: Any, reference: Tensor | None) -> None:
        found = self._log_probabilities(self._model, batch, rows)
        with self._explaining_memory(rows):
            sums = loss_sums(
                found,
                behaviour=batch.columns.behaviour,
                advantages=batch.columns.advantages,
                weights=batch.columns.weights,
                sequences=batch.columns.sequences,
                loss=self._loss,
                settings=self._settings,
                reference=reference,
            )
            self._backward(sums.loss if rows else found.sum() * 0.0)
        self._sums.forwards += 1
        if rows:
            self._sums.statistics += sums.statistics

    def _batch(self, rows: Sequence[Row]) -> Any:
        weight = self._loss.average.token_weight
        with self._explaining_memory(rows):
            return self._packing.pack(rows, weight=weight, dtype=self._wide, device=self._device)

    def _log_probabilities(self, model: Any, batch: Any, rows: Sequence[Row]) -> Tensor:
        with self._explaining_memory(rows):
            temperature = self._sampling.temperature
            return log_probabilities(model, batch, temperature=temperature, dtype=self._dtype)

    def _explaining_memory(self, rows: Sequence[Row]) -> AbstractContextManager[None]:
        return explain_out_of_memory(
            sequences=len(rows), tokens=sum(len(r.tokens) for r in rows), step=self._sums.step
        )

    def _not_finite(self, what: str) -> NotFinite:
        """The error that names the first micro-batch whose loss was not finite on any rank; all ranks call it."""
        finite = torch.stack([loss.isfinite() for loss in self._sums.losses]).to(torch.int32)
        if self._world_size > 1:
            dist.all_reduce(finite, op=dist.ReduceOp.MIN)
        bad = (finite == 0).nonzero()
        return NotFinite(what, micro_batch=int(bad[0]) if len(bad) else None)

    def _divisor(self) -> float:
        return self._loss.average.divisor(
            StepTotals(
                sequences=self._sums.sequences,
                tokens=self._sums.tokens,
                max_tokens=self._sampling.max_tokens,
            )
        )


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
        if not isinstance(error, torch.OutOfMemoryError | MemoryError) and not any(
            words in str(error) for words in _CPU
        ):
            raise
        raise JobFailed(
            f"step {step}: out of memory in the forward and backward of {sequences} sequences, {tokens} tokens, of a "
            "micro-batch: lower spec.trainer.options.forwardTokens or spec.trainer.microBatchTokens, or set "
            f"spec.trainer.options.activationCheckpointing: true ({_first_line(error)})",
            Reason.OUT_OF_MEMORY,
        ) from error


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


class Reference:
    """The frozen initial model that the KL divergence is measured against; it can stay in host memory between its uses.

    Every rank has a whole one.

    Args:
        model: on its device; on the CPU if it is to be offloaded.
        device: where it computes.
        offload: whether it leaves the device between uses.
    """

    def __init__(self, model: Any, *, device: torch.device, offload: bool) -> None:
        self._model = model
        self._device, self._offload = device, offload
        if offload and device.type == "cuda":
            for tensor in self._tensors():
                tensor.data = tensor.data.pin_memory()

    @contextmanager
    def ready(self) -> Iterator[Any]:
        """The model on its device."""
        if not self._offload:
            yield self._model
            return
        home = [tensor.data for tensor in self._tensors()]
        for tensor in self._tensors():
            tensor.data = tensor.data.to(self._device, non_blocking=True)
        try:
            yield self._model
        finally:  # weights do not change, so nothing is copied back to host memory
            for tensor, data in zip(self._tensors(), home, strict=True):
                tensor.data = data

    def _tensors(self) -> list[Any]:
        return [*self._model.parameters(), *self._model.buffers()]
