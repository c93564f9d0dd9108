"""The configuration of a small job, for workers that run in processes of their own."""

from __future__ import annotations

from pathlib import Path

from rljob_core.config import JobConfig
from rljob_core.spec import RLJobSpec


def small_config(folder: Path, model: Path, *, job: str = "j", engine: str = "Emulated") -> JobConfig:
    """Two steps of an emulated trainer, with one pool `a` of engines; it keeps its files in the folder."""
    spec = {
        "steps": 2,
        "model": {"uri": str(model)},
        "data": {"dataset": "chain_sum"},
        "rollout": {"engine": {"name": engine}, "pools": [{"name": "a"}]},
        "trainer": {"backend": "Emulated"},
    }
    return JobConfig(
        namespace="default",
        job=job,
        uid="u1",
        spec=RLJobSpec.model_validate(spec),
        weights_uri=str(folder / "w"),
        checkpoint_uri=str(folder / "c"),
        trainer_log_uri=str(folder / "t"),
    )
