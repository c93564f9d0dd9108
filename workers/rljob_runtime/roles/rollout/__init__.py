"""The rollout role: one engine instance generates the trajectories that the coordinator assigns to it."""

from rljob_runtime.roles.rollout.rollout import Rollout

__all__ = ["Rollout"]
