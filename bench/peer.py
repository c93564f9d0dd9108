"""The demo job beside TRL's synchronous `GRPOTrainer` on the same cores: seconds to its end, and to a reward.

Both train the same model for as many steps of the same prompts and samples, with the same reward, and leave a model
that transformers scores on 1,000 other prompts. `rljob run` also scores held-out prompts four times meanwhile, keeps
checkpoints, and promises what its audit checks; TRL does neither. The two take turns. Then each mode of `rljob run` and
TRL train until the task is learned (`bench.peer_reward`).
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.heldout import right_answers
from bench.jobs import EXAMPLE, MODEL, run_job
from bench.peer_reward import TARGET, compare, train_by_trl
from rljob_cli.manifest.load import load_job


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is measured.

    Attributes:
        turns: runs of each.
        steps: of a run; None for the demo's.
        prompts: that score a model.
        every: steps between two scores on the way to the reward, and held_out: prompts of each.
        target: the reward.
    """

    turns: int = 3
    steps: int | None = None
    prompts: int = 1000
    every: int = 5
    held_out: int = 200
    target: float = TARGET


FULL = Sizes()
SMOKE = Sizes(turns=1, steps=2, prompts=20, every=1, held_out=4, target=0.0)
SIZES = {"full": FULL, "quick": Sizes(turns=1), "smoke": SMOKE}


def train_by_rljob(folder: Path, steps: int) -> Path:
    """Train; the folder of the model."""
    run_job(EXAMPLE, folder, [f"spec.steps={steps}"], audit=False)
    return folder / "checkpoint"


TRAINERS: dict[str, Callable[[Path, int], Path]] = {"TRL": train_by_trl, "rljob run": train_by_rljob}


def main(sizes: Sizes = FULL) -> dict[str, Any]:
    """Print the table; medians, and how much longer TRL takes."""
    steps = sizes.steps or load_job(EXAMPLE).spec.steps
    before = right_answers(MODEL, EXAMPLE, prompts=sizes.prompts)
    seconds: dict[str, list[float]] = {name: [] for name in TRAINERS}
    right: dict[str, list[float]] = {name: [] for name in TRAINERS}
    print(f"{steps} steps; right answers before: {before:.3f}")
    for _ in range(sizes.turns):
        for name, train in TRAINERS.items():
            with tempfile.TemporaryDirectory() as temporary:
                begun = time.perf_counter()
                model = train(Path(temporary) / "run", steps)
                seconds[name].append(time.perf_counter() - begun)
                right[name].append(right_answers(model, EXAMPLE, prompts=sizes.prompts))
            print(f"{name:<10} {seconds[name][-1]:>6.1f} s, right answers {right[name][-1]:.3f}", flush=True)
    ratio = statistics.median(seconds["TRL"]) / statistics.median(seconds["rljob run"])
    print(f"TRL takes {ratio:.2f} times as long")
    reached = compare(
        turns=sizes.turns, steps=steps, every=sizes.every, prompts=sizes.held_out, target=sizes.target
    )
    return {
        "reached": reached,
        "steps": steps,
        "seconds": seconds,
        "right": right,
        "right_before": before,
        "ratio": ratio,
    }
