"""The trainer backend on PyTorch: any Hugging Face causal model, data-parallel over the ranks of a gang.

A micro-batch adds unnormalised sums to the gradients; `finish_step` adds those of all ranks, divides once by the
step's divisor, clips and steps AdamW. Every rank is given every micro-batch and takes its share, so that normalisers
need no communication and a rank without work still takes part. Dropout is off: the log-probabilities are those of
the distribution that samples came from.

A trajectory with advantage 0 has no gradient: without a KL term it costs no forward, but it counts in the normalisers
(a group that teaches nothing must not make its neighbours louder). Figures over tokens are over the computed ones.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import xxhash
from torch import Tensor

from rljob_core.config import JobConfig
from rljob_core.errors import JobFailed
from rljob_core.messages import StepStats
from rljob_core.ports import TrainingSample
from rljob_runtime.backend_torch_model import InFloat64, load_model, published, take_weights
from rljob_runtime.backends import TorchOptions
from rljob_runtime.loss import LossSettings, divisor, loss_sums, token_log_probabilities, token_weight
from rljob_runtime.packing import PaddedBatch, Row, batches, pad, row, share

OPTIMIZER = "optimizer.pt"
RANDOM = "random.pt"
_FIGURES = 5


@dataclass(slots=True)
class StepSums:
    """What a step has accumulated besides gradients; all but `figures` are alike on every rank."""

    step: int
    figures: Tensor
    sequences: int = 0
    tokens: int = 0
    staleness: list[int] = field(default_factory=list)
    normalised: bool = False


class TorchBackend:
    """One rank of the trainer. With more than one, the default process group must exist before a step ends.

    Args:
        config: the job.
        options: of this backend.
        model_path: folder of the initial model, in Hugging Face format; also the reference.
        rank: this rank, from 0.
        world_size: ranks in all.

    Raises:
        SpecError: the folder holds no causal language model.
    """

    def __init__(
        self, config: JobConfig, *, options: TorchOptions, model_path: Path, rank: int, world_size: int
    ) -> None:
        if options.threads is not None:
            torch.set_num_threads(options.threads)
        self._algorithm = config.spec.algorithm
        self._sampling = config.spec.rollout.sampling
        self._settings = LossSettings.of(self._algorithm)
        self._seed = config.spec.data.seed
        self._forward_tokens = options.forward_tokens or config.spec.trainer.micro_batch_tokens
        self._dtype = getattr(torch, options.dtype)
        self._device = torch.device(options.device)
        self._rank, self._world_size = rank, world_size
        self._load_initial = partial(load_model, model_path, dtype=self._dtype, device=self._device)
        self._model = self._load_initial()
        self._parameters = [p for p in self._model.parameters() if p.requires_grad]
        self._cuts_logits = "logits_to_keep" in inspect.signature(self._model.forward).parameters
        self._reference = self._load_initial().requires_grad_(False) if self._settings.kl > 0 else None
        self._pristine = True
        self.load_state(None)
        self.begin_step(0)

    # ------------------------------------------------------------------------------------------ state

    def load(self, tensors: Iterable[tuple[str, Any]] | None) -> None:
        """Take these weights (`None`: the initial model's) and forget what was accumulated.

        Raises:
            WeightsRejected: a tensor is missing, unknown or of another shape; nothing was taken.
        """
        if tensors is not None:
            take_weights(self._model, dict(tensors))
        elif not self._pristine:
            take_weights(self._model, dict(published(self._load_initial())))
        self._pristine = tensors is None
        self.begin_step(0)

    def load_state(self, folder: str | None) -> None:
        """Take optimizer and random state from a checkpoint folder (`None`: fresh; the seed is spec.data.seed).

        Learning rate, weight decay and so on stay the specification's.

        Raises:
            JobFailed: the folder's state does not load or belongs to other weights.
        """
        self._optimizer = torch.optim.AdamW(
            [(n, p) for n, p in self._model.named_parameters() if p.requires_grad],
            lr=self._algorithm.learning_rate,
            weight_decay=self._algorithm.weight_decay,
            fused=True,
        )
        if folder is None:
            torch.manual_seed(self._seed)
            return
        current = self._optimizer.state_dict()
        try:
            saved = torch.load(Path(folder) / OPTIMIZER, map_location=self._device, weights_only=True)
            random = torch.load(Path(folder) / RANDOM, weights_only=True)
            names = saved["param_groups"][0]["param_names"]
        except Exception as error:
            of_the_moment = isinstance(error, OSError) and not isinstance(error, FileNotFoundError)
            if of_the_moment or isinstance(error, torch.OutOfMemoryError):
                raise  # another attempt may have more luck
            raise JobFailed(f"checkpoint {folder} does not load: {error}") from error
        if names != current["param_groups"][0]["param_names"]:
            raise JobFailed(f"checkpoint {folder} holds the optimizer state of another model")
        self._optimizer.load_state_dict({**current, "state": saved["state"]})
        torch.set_rng_state(random)

    def tensors(self) -> Iterator[tuple[str, Any]]:
        """The weights as CPU tensors under their published names, each storage once (tied ones under the first name).

        On a CPU they are views: write them before the next `finish_step`.
        """
        for name, tensor in published(self._model):
            yield name, tensor.detach().cpu()

    def random_state(self) -> str:
        """Xxh3-128 of torch's random state."""
        return xxhash.xxh3_128_hexdigest(torch.get_rng_state().numpy())

    def save(self, folder: str) -> None:
        """Write model, optimizer and random state into an empty folder (rank 0 only; ranks hold the same)."""
        if self._rank:
            return
        self._model.save_pretrained(folder)
        torch.save(self._optimizer.state_dict(), Path(folder) / OPTIMIZER)
        torch.save(torch.get_rng_state(), Path(folder) / RANDOM)

    # ------------------------------------------------------------------------------------------ a step

    def begin_step(self, step: int) -> None:
        """Start step `step` with nothing accumulated."""
        self._optimizer.zero_grad(set_to_none=True)
        figures = torch.zeros(_FIGURES, dtype=torch.float64, device=self._device)
        self._sums = StepSums(step, figures)

    def accumulate(self, samples: Sequence[TrainingSample]) -> None:
        """Forward and backward over this rank's share of a micro-batch."""
        sums = self._sums
        rows = [row(sample) for sample in samples]
        sums.sequences += len(rows)
        sums.tokens += sum(r.trained for r in rows)
        sums.staleness += [sums.step - sample.trajectory.span.min for sample in samples]
        computed = [r for r in rows if r.trained and (r.advantage or self._settings.kl)]
        lengths = [len(r.tokens) for r in computed]
        mine = [computed[i] for i in share(lengths, rank=self._rank, world_size=self._world_size)]
        for indices in batches([len(r.tokens) for r in mine], tokens=self._forward_tokens):
            self._backward([mine[i] for i in indices])

    def normalise(self) -> None:
        """Turn sums into the step's gradient: add up all ranks', divide by the step's divisor. Once per step."""
        sums, scale = self._sums, 1.0 / self._divisor()
        if sums.normalised:
            return
        for parameter in self._parameters:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        reduced = [*(p.grad for p in self._parameters), sums.figures]
        if self._world_size > 1:
            for work in [dist.all_reduce(tensor, async_op=True) for tensor in reduced]:
                work.wait()
        for parameter in self._parameters:
            parameter.grad.mul_(scale)
        sums.normalised = True

    def gradients(self) -> dict[str, Tensor]:
        """The step's gradient by parameter, after `normalise`; clipped in place by `finish_step`."""
        return {name: p.grad for name, p in self._model.named_parameters() if p.grad is not None}

    def finish_step(self) -> StepStats:
        """Normalise, clip, take the optimizer step. The caller fills in the seconds.

        Raises:
            JobFailed: the gradient is not finite; the weights are as before.
        """
        self.normalise()
        sums = self._sums
        norm = float(torch.nn.utils.clip_grad_norm_(self._parameters, self._algorithm.max_grad_norm))
        loss, divergence, tokens, clipped, importance = sums.figures.tolist()
        if not norm < float("inf"):
            raise JobFailed(
                f"step {sums.step}: the gradient is not finite (loss {loss}); "
                "lower spec.algorithm.learningRate or spec.algorithm.kl"
            )
        rate = self._learning_rate(sums.step)
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        self._optimizer.step()
        self._pristine = False
        return StepStats(
            loss=loss / self._divisor(),
            kl=divergence / self._divisor(),
            clip_fraction=clipped / max(1.0, tokens),
            importance_mean=importance / tokens if tokens else 1.0,
            grad_norm=norm,
            learning_rate=rate,
            tokens=sums.tokens,
            staleness_mean=sum(sums.staleness) / max(1, len(sums.staleness)),
            staleness_max=max(sums.staleness, default=0),
        )

    # ------------------------------------------------------------------------------------------ inside

    def _backward(self, rows: Sequence[Row]) -> None:
        weight = partial(token_weight, self._algorithm.loss)
        batch = pad(rows, weight=weight, dtype=self._dtype, device=self._device)
        reference = None
        if self._reference is not None:
            with torch.no_grad():
                reference = self._log_probabilities(self._reference, batch)
        sums = loss_sums(
            self._log_probabilities(self._model, batch),
            behaviour=batch.behaviour,
            advantages=batch.advantages,
            weights=batch.weights,
            settings=self._settings,
            reference=reference,
        )
        sums.loss.backward()
        self._sums.figures += sums.figures

    def _log_probabilities(self, model: Any, batch: PaddedBatch) -> Tensor:
        """Of the tokens trained on, [tokens] in the order of the batch's mask."""
        with InFloat64() if self._dtype is torch.float64 else nullcontext():
            if self._cuts_logits:
                keep = torch.arange(batch.first, batch.inputs.shape[1], device=self._device)
                logits = model(input_ids=batch.inputs, use_cache=False, logits_to_keep=keep).logits
            else:
                logits = model(input_ids=batch.inputs, use_cache=False).logits[:, batch.first :]
        return token_log_probabilities(
            logits[batch.mask], batch.targets[batch.mask], temperature=self._sampling.temperature
        )

    def _divisor(self) -> float:
        return divisor(
            self._algorithm.loss,
            sequences=self._sums.sequences,
            tokens=self._sums.tokens,
            max_tokens=self._sampling.max_tokens,
        )

    def _learning_rate(self, step: int) -> float:
        warmup = self._algorithm.warmup_steps
        return self._algorithm.learning_rate * (min(1.0, (step + 1) / warmup) if warmup else 1.0)
