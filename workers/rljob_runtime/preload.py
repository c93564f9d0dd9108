"""Names the modules that a role imports, so that a process can import them before it forks the role.

Only modules of this package, and what they import: what a user's code does when it is imported is not known.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from pydantic import ValidationError

from rljob_core import worker_protocol
from rljob_core.config import JobConfig

_EVERY_ROLE = ("rljob_runtime.worker", "rljob_runtime.messaging.nats.store")
_OF_ROLE = {
    "streams": ("rljob_runtime.roles.pipeline_updates",),
    "coordinator": ("rljob_runtime.roles.coordinator", "rljob_runtime.data.prompts"),
    "rollout": ("rljob_runtime.roles.rollout", "rljob_runtime.weights.create"),
    "reward": ("rljob_runtime.roles.reward",),
    "trainer": ("rljob_runtime.roles.trainer.setup", "rljob_runtime.weights.create"),
}


def modules(role: str, environment: Mapping[str, str]) -> Sequence[str]:
    """The modules that a role with these environment variables imports, with those of its engine or backend."""
    names = [*_EVERY_ROLE, *_OF_ROLE.get(role, ())]
    try:
        config = JobConfig.model_validate_json(Path(environment[worker_protocol.CONFIG]).read_bytes())
    except (KeyError, OSError, ValidationError):  # the role says what is wrong
        return names
    if role == "rollout":
        from rljob_runtime.engines.registry import ENGINES

        factory = ENGINES.built_in(config.spec.rollout.engine.name)
        names += factory.preload if factory else ()
    elif role == "trainer":
        from rljob_runtime.training.registry import BACKENDS

        backend = BACKENDS.built_in(config.spec.trainer.backend)
        names += backend.preload if backend else ()
    return names
