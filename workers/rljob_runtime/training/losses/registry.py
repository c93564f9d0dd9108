"""The losses by the names that `spec.algorithm.loss` uses."""

from __future__ import annotations

from rljob_core.spec import RLJobSpec
from rljob_runtime.plugins import Registry
from rljob_runtime.training.losses.cispo import CISPO
from rljob_runtime.training.losses.clipped import DAPO, DR_GRPO, GRPO, GSPO
from rljob_runtime.training.losses.loss import Loss


def _installed(offered: object) -> Loss:
    """What an entry point refers to, as a loss.

    Raises:
        TypeError: it is something else.
    """
    if not isinstance(offered, Loss):
        raise TypeError(f"it is not a Loss, but {type(offered).__name__}")
    return offered


LOSSES = Registry[Loss](
    "loss",
    "rljob.losses",
    {"GRPO": GRPO, "DrGRPO": DR_GRPO, "DAPO": DAPO, "GSPO": GSPO, "CISPO": CISPO},
    _installed,
)


def find_loss(name: str) -> Loss:
    """The loss of that name; loads no torch unless a plug-in's module does.

    Raises:
        SpecError: no loss has that name, or it does not load.
    """
    return LOSSES.find(name, field="spec.algorithm.loss")


def check_loss(spec: RLJobSpec) -> None:
    """Check that the job's loss exists, whatever its backend makes of it.

    Raises:
        SpecError: as `find_loss`.
    """
    find_loss(spec.algorithm.loss)
