"""A base for trainer backends: weights, the optimizer's state and checkpoints, and how they are loaded and stored.

Weights are loaded and published one tensor at a time. All backends write the same checkpoints, so that any of them can
continue from any other's: the weights in Hugging Face format, and the optimizer's state in the layout of
`optimizer_state`. A subclass says which part of them a rank stores (the abstract methods here).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
import xxhash
from torch import Tensor

from rljob_core.config import JobConfig
from rljob_runtime.model.causal import checkpoint_activations, load_model, published, write_settings
from rljob_runtime.model.identity import WeightsCheck, tied_names
from rljob_runtime.model.lora import add_adapters, write_adapter_config
from rljob_runtime.model.lora_weights import initial_adapter, published_name
from rljob_runtime.model.tensor_bytes import code_of
from rljob_runtime.model.tensor_files import TensorLayout, TensorStream, write_model
from rljob_runtime.training.broadcast import broadcast_tensors
from rljob_runtime.training.forward import precision
from rljob_runtime.training.optimizer_state import Elements, SavedState, write_state
from rljob_runtime.training.options import TrainingOptions
from rljob_runtime.training.packing.rows import PADDED, Packing
from rljob_runtime.training.packing.shared import choose_packing


class BackendState(ABC):
    """One rank's part of weights and optimizer state.

    A subclass makes its model and hands it to `_adopt`, then sets `_optimizer`.

    Args:
        config: the job.
        options: of the backend.
        model_path: folder of the initial model, in Hugging Face format; also the reference.
        rank: this rank, from 0.
        world_size: ranks in all.
    """

    _optimizer: torch.optim.Optimizer
    _packing: Packing = PADDED
    """How a micro-batch becomes batches."""

    def __init__(
        self,
        config: JobConfig,
        *,
        options: TrainingOptions,
        model_path: Path,
        rank: int,
        world_size: int,
    ) -> None:
        if options.threads is not None:
            torch.set_num_threads(options.threads)
        self._options = options
        self._lora = config.spec.model.lora
        self._seed = config.spec.data.seed  # of the adapters' first values and of the random state
        self._dtype: torch.dtype = getattr(torch, options.dtype)
        self._wide = torch.promote_types(self._dtype, torch.float32)
        self._device = torch.device(options.device)
        self._model_path = model_path
        self._rank, self._world_size = rank, world_size
        self._pristine = True

    # ------------------------------------------------------------------------------------------ the model

    def _prepare(self, model: Any) -> Any:
        """A model to be trained: with adapters and activation checkpointing, if the job has them."""
        self._packing = choose_packing(self._options.packing, model)
        if self._lora is not None:
            add_adapters(model, self._lora)
        if self._options.activation_checkpointing:
            checkpoint_activations(model, again=partial(precision, self._dtype))
        return model

    def _prepare_frozen(self, model: Any) -> Any:
        """The reference: it reads the same batches."""
        choose_packing(self._options.packing, model)
        return model.requires_grad_(False)

    def _adopt(self, model: Any) -> None:
        """Train this model.

        Args:
            model: what `log_probabilities` is asked of; `_weights` of it are published and taken.
        """
        self._model = model
        #: All names of weights, those of tied ones too; and what is published, each once.
        self._named = {published_name(n): t for n, t in self._weights(model).items()}
        trained = {n: t for n, t in _unique(self._named).items() if t.requires_grad}
        published = trained if self._lora is not None else _unique(self._named)
        # Wider elements first, as files have them: what is stored can be written in the order in which it comes.
        self._published = dict(sorted(published.items(), key=lambda item: -self._empty(item[1]).itemsize))
        self._trained = trained

    def _weights(self, model: Any) -> dict[str, Tensor]:
        """The model's weights and persistent buffers, by name."""
        return dict(model.state_dict(keep_vars=True))

    def _initial(self) -> Iterator[tuple[str, Any]]:
        """What is published of the initial model; all ranks exhaust it."""
        if self._lora is None:
            yield from self._of_folder()
            return
        for name, tensor in self._published.items():
            yield name, initial_adapter(name, self._shape(tensor), seed=self._seed)

    def _of_folder(self) -> Iterator[tuple[str, Any]]:
        """The weights in the model's folder, which rank 0 reads for all; all ranks exhaust it."""
        source = None
        if self._rank == 0:
            model = load_model(self._model_path, dtype=self._dtype, device=torch.device("cpu"))
            source = ((name, tensor.detach()) for name, tensor in published(model))
        yield from broadcast_tensors(source)

    def _fill(self, named: Mapping[str, Tensor]) -> None:
        """Put the weights of the model's folder into a model's, by name."""
        with torch.no_grad():
            for name, value in self._of_folder():
                self._put(named[name], value)

    # ------------------------------------------------------------------------------------------ what differs

    @abstractmethod
    def _put(self, tensor: Tensor, value: Tensor) -> None:
        """Copy a whole tensor into this rank's part of one of the model's."""

    @abstractmethod
    def _whole(self, tensor: Tensor) -> Tensor:
        """A whole tensor of which this rank may hold a part; all ranks take part."""

    @abstractmethod
    def _elements(self) -> Iterator[Elements]:
        """What this rank's optimizer holds and is to save: together, every element of every parameter once."""

    def _shape(self, tensor: Tensor) -> tuple[int, ...]:
        """The shape of a whole tensor of which this rank may hold a part."""
        return tuple(tensor.shape)

    def _restored(self) -> Iterator[Elements]:
        """What this rank takes from a checkpoint."""
        return self._elements()

    def _writers(self) -> int:
        """How many ranks have elements to save."""
        return self._world_size

    @abstractmethod
    def begin_step(self, step: int) -> None:
        """Start step `step` with nothing accumulated."""

    # ------------------------------------------------------------------------------------------ in and out

    def load(self, tensors: Iterable[tuple[str, Any]] | None) -> None:
        """Take these weights (`None`: the initial model's), one at a time, and forget what was accumulated.

        Raises:
            WeightsRejected: a tensor is missing, unknown or of another shape; those before it were taken.
        """
        if tensors is not None or not self._pristine:
            self._take(self._initial() if tensors is None else tensors)
        self._pristine = tensors is None
        self.begin_step(0)

    def _take(self, tensors: Iterable[tuple[str, Any]]) -> None:
        self._pristine = False
        shapes = {name: self._shape(tensor) for name, tensor in self._named.items()}
        check = WeightsCheck(shapes, required=self._published, tied=tied_names(self._named))
        with torch.no_grad():
            for name, value in tensors:
                check.add(name, value.shape)
                self._put(self._named[name], torch.as_tensor(value))
        check.finish()

    def layout(self) -> list[TensorLayout]:
        """What `tensors` gives, before it does: names, dtypes and shapes in the same order."""
        return [TensorLayout(n, code_of(self._empty(t)), self._shape(t)) for n, t in self._published.items()]

    def tensors(self) -> TensorStream:
        """The weights (with adapters: these only) as CPU tensors under their published names, each storage once.

        One at a time: write each before the next, and before the next `finish_step`; all ranks exhaust it.
        """
        return TensorStream(self.layout(), self._whole_tensors())

    def _whole_tensors(self) -> Iterator[tuple[str, Any]]:
        for name, tensor in self._published.items():
            with torch.no_grad():
                whole = self._whole(tensor).detach().to(dtype=self._empty(tensor).dtype, device="cpu")
            yield name, whole
            del whole  # before the next is put together

    def _empty(self, tensor: Tensor) -> Tensor:
        """An empty tensor of the dtype that a tensor is published in."""
        return torch.empty(0, dtype=self._dtype if tensor.is_floating_point() else tensor.dtype)

    def random_state(self) -> str:
        """Xxh3-128 of torch's random state."""
        return xxhash.xxh3_128_hexdigest(torch.get_rng_state().numpy())

    def load_state(self, folder: str | None) -> None:
        """Take optimizer and random state from a checkpoint folder (`None`: fresh; the seed is spec.data.seed).

        Any backend's, of any number of ranks. Learning rate, weight decay and so on stay the specification's. Weights
        are to be loaded before: those that the optimizer keeps in float32 are taken where they round to them.

        Raises:
            CheckpointDamaged: the folder's state does not load or belongs to other weights; nothing was taken.
        """
        if folder is None:
            with torch.no_grad():
                for part in self._restored():
                    for values in part.moments.values():
                        values.zero_()
            self._set_steps(0)
            torch.manual_seed(self._seed)
            return
        with torch.no_grad(), SavedState(Path(folder), shapes=self._shapes()) as saved:
            saved.take_into(self._restored(), dtype=self._dtype)
            self._set_steps(saved.steps)
            torch.set_rng_state(saved.random)

    def save(self, folder: str) -> None:
        """Write this rank's part of model, optimizer and random state into a folder that all ranks see; all call it."""
        path, coming = Path(folder), self.tensors()
        try:
            if self._rank == 0:
                self._write_weights(path, coming)
        finally:
            # Ranks put each tensor together: they wait for one another, whatever rank 0's disk says.
            for _ in coming:
                pass
        elements = list(self._elements())
        if elements:
            write_state(
                path,
                elements,
                rank=self._rank,
                ranks=self._writers(),
                shapes=self._shapes(),
                steps=self._steps(),
                masters=self._dtype is torch.bfloat16,
                random=torch.get_rng_state(),
            )

    def _write_weights(self, path: Path, coming: TensorStream) -> None:
        if self._lora is None:
            write_settings(self._model_path, path, dtype=self._dtype)
            write_model(path, coming.layouts, coming)
            return
        named = [TensorLayout(f"base_model.model.{e.name}", e.dtype, e.shape) for e in coming.layouts]
        renamed = ((f"base_model.model.{name}", tensor) for name, tensor in coming)
        write_model(path, named, renamed, stem="adapter_model")
        names = [layout.name for layout in coming.layouts]
        write_adapter_config(path, self._lora, names, base=str(self._model_path))

    def _shapes(self) -> Mapping[str, tuple[int, ...]]:
        return {name: self._shape(tensor) for name, tensor in self._trained.items()}

    def _steps(self) -> int:
        return max((int(s["step"]) for s in self._optimizer.state.values() if "step" in s), default=0)

    def _set_steps(self, steps: int) -> None:
        for state in self._optimizer.state.values():
            if "step" in state:
                state["step"].fill_(steps)


def _unique(named: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Each tensor under its first name."""
    first: dict[int, tuple[str, Tensor]] = {}
    for name, tensor in named.items():
        first.setdefault(id(tensor), (name, tensor))
    return dict(first.values())
