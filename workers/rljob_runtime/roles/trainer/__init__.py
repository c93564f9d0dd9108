"""The trainer role: it turns micro-batches into optimizer steps, and publishes each step's weights."""

from rljob_runtime.roles.trainer.trainer import Trainer

__all__ = ["Trainer"]
