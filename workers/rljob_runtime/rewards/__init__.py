"""Rewards score answers. This module is what authors of rewards import.

A reward is a callable `(*, completion, item)` that returns a number, as `rljob_core.ports.reward` says. `resolve` finds
rewards by the names that a manifest uses, for the items of a `PromptSource`, which reads what a `DataSpec` names, and
`score` calls one as a reward worker does. Names that this module does not export may change in any release. Each is
imported when it is first used, because processes that score are forked from one that has imported as little as
possible.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rljob_core.errors import RewardFailed, SpecError
    from rljob_core.ports import Reward
    from rljob_core.spec import DataSpec
    from rljob_runtime.data.prompts import PromptSource
    from rljob_runtime.rewards.registry import exact_match, resolve, score

__all__ = [
    "DataSpec",
    "PromptSource",
    "Reward",
    "RewardFailed",
    "SpecError",
    "exact_match",
    "resolve",
    "score",
]

_MODULES = {
    "DataSpec": "rljob_core.spec",
    "PromptSource": "rljob_runtime.data.prompts",
    "Reward": "rljob_core.ports",
    "RewardFailed": "rljob_core.errors",
    "SpecError": "rljob_core.errors",
    "exact_match": "rljob_runtime.rewards.registry",
    "resolve": "rljob_runtime.rewards.registry",
    "score": "rljob_runtime.rewards.registry",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)
