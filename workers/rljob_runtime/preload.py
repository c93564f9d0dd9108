"""Names the modules that a role imports, so that a process can import them before it forks the role.

Only modules of this package, and what they import: what a user's code does when it is imported is not known.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from pydantic import ValidationError

from rljob_core import worker_protocol
from rljob_core.config import JobConfig
from rljob_core.spec import RLJobSpec

_EVERY_ROLE = ("rljob_runtime.worker", "rljob_runtime.messaging.nats.store")
_OF_ROLE = {
    "streams": ("rljob_runtime.roles.pipeline_updates",),
    "reward": ("rljob_runtime.roles.reward",),
    "coordinator": ("rljob_runtime.roles.coordinator", "rljob_runtime.data.prompts"),
    "rollout": ("rljob_runtime.roles.rollout", "rljob_runtime.weights.create"),
    "trainer": ("rljob_runtime.roles.trainer.setup", "rljob_runtime.weights.create"),
}


def modules(role: str, environment: Mapping[str, str]) -> Sequence[str]:
    """The modules that a role with these environment variables imports, with those of its engine or backend."""
    try:
        config = JobConfig.model_validate_json(Path(environment[worker_protocol.CONFIG]).read_bytes())
    except (KeyError, OSError, ValidationError):  # the role says what is wrong
        return _of(role)
    return [*_of(role), *_of_spec(role, config.spec)]


def modules_of_job(spec: RLJobSpec) -> Sequence[str]:
    """The modules that the roles of a job import, those first that start first and need least."""
    names = [name for role in _OF_ROLE for name in (*_of(role), *_of_spec(role, spec))]
    return list(dict.fromkeys(names))


def _of(role: str) -> Sequence[str]:
    return [*_EVERY_ROLE, *_OF_ROLE.get(role, ())]


def _of_spec(role: str, spec: RLJobSpec) -> Sequence[str]:
    if role == "rollout":
        from rljob_runtime.engines.registry import ENGINES

        engine = ENGINES.built_in(spec.rollout.engine.name)
        return engine.preload if engine else ()
    if role == "trainer":
        from rljob_runtime.training.registry import BACKENDS

        backend = BACKENDS.built_in(spec.trainer.backend)
        return backend.preload if backend else ()
    return ()
