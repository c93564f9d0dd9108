"""The coordinator role: it reads every stream, decides with the planner, records its decisions and carries them out."""

from rljob_runtime.roles.coordinator.coordinator import Coordinator

__all__ = ["Coordinator"]
