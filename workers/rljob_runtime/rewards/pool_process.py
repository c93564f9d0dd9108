"""A process of a scoring pool from outside: what it finds imported."""

from __future__ import annotations

from rljob_runtime.rewards.messages import ScoringSetup


def preloaded(setup: ScoringSetup) -> list[str]:
    """What the fork server imports: modules of the pool's processes, before any of them imports the job's functions."""
    generated = (items.generated for items in (setup.training, *setup.held_out))
    modules = {
        "rljob_runtime.process.fork_with_parent": True,
        "rljob_runtime.rewards.process": True,
        "rljob_runtime.data.gym": any(generated),
        "math_verify": "math_verify" in setup.functions,
    }
    return [module for module, wanted in modules.items() if wanted]
