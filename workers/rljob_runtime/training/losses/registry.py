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


_SEQUENCE_CLIP, _SEQUENCE_CLIP_HIGH = 3e-4, 4e-4
"""The ranges of GSPO's paper."""
_WIDE = 30.0
"""How much wider a range is no variant of the paper's."""

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


def check_loss(spec: RLJobSpec) -> list[str]:
    """Check that the job's loss exists, whatever its backend makes of it; returns what is perhaps not meant.

    Raises:
        SpecError: as `find_loss`.
    """
    loss, clip = find_loss(spec.algorithm.loss), spec.algorithm.clip
    if loss is not GSPO or clip < _WIDE * _SEQUENCE_CLIP:
        return []
    said = (
        f"spec.algorithm.clip: {clip:g} hardly ever acts with the loss GSPO, which clips the mean ratio of a whole "
        f"sequence: its paper's ranges are {_SEQUENCE_CLIP:g} and {_SEQUENCE_CLIP_HIGH:g} (arXiv 2507.18071, section "
        f"5.1); write clip: {_SEQUENCE_CLIP:g} and clipHigh: {_SEQUENCE_CLIP_HIGH:g}"
    )
    return [said]
