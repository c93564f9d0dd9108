"""Does it learn: the demo job in each mode on three seeds, and two controls that must not.

Held-out prompts (200), answered at temperature 1 and greedily, before and after. Wall seconds and peak memory of
every process of the run are in the table too: the demo's limits are 300 s and 4 GiB on 2 cores.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from bench.jobs import EXAMPLE, run_job

MODES = {
    "Synchronous": ["spec.pipeline={mode: Synchronous}"],
    "Streaming": ["spec.pipeline={mode: Streaming}"],
    "BoundedAsync": [],
}
SEEDS = (1, 2, 3)
CONTROLS = {
    "learning rate 0": ["spec.algorithm.learningRate=0"],
    "shuffled rewards": ["spec.reward.functions=[bench.shuffled_reward:shuffled]"],
}


def main() -> dict[str, Any]:
    """Print the table."""
    runs = [(mode, changes, seed) for mode, changes in MODES.items() for seed in SEEDS]
    runs += [(name, changes, 1) for name, changes in CONTROLS.items()]
    rows = []
    print(
        f"{'run':<17} {'seed':>4} {'sampled':>15} {'rise':>6} {'greedy':>15} {'staleness':>9} {'s':>5} {'GiB':>5}"
    )
    for name, changes, seed in runs:
        with tempfile.TemporaryDirectory() as temporary:
            summary = run_job(EXAMPLE, Path(temporary) / "run", [*changes, f"spec.data.seed={seed}"])
        before, after = summary["heldout_reward_before"], summary["heldout_reward_after"]
        greedy = summary["heldout_greedy_before"], summary["heldout_greedy_after"]
        rows.append({"run": name, "seed": seed, **summary})
        print(
            f"{name:<17} {seed:>4} {before:>6.3f} → {after:.3f} {after - before:>+7.3f} "
            f"{greedy[0]:>6.3f} → {greedy[1]:.3f} {summary['staleness_max']:>9} {summary['wall_seconds']:>5.0f} "
            f"{summary['peak_memory_bytes'] / 2**30:>5.2f}",
            flush=True,
        )
    return {"rows": rows}
