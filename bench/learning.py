"""Does it learn: the demo job in each mode on three seeds, and two controls that must not.

Held-out prompts (200), answered at temperature 1 and greedily, before and after, by the reward that the run trains
on; `plain` is another opinion: what `checkpoint/` answers to 1,000 other prompts through transformers alone, always
scored by the true answer (for shuffled rewards, the only column that means anything). Wall seconds and peak memory of
all processes of the run are in the table too: the demo's limits are 300 s and 4 GiB on 2 cores.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from bench.heldout import right_answers
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
    plain_before = right_answers(EXAMPLE.parent / "models" / "chain-sum", EXAMPLE)
    print(
        f"{'run':<17} {'seed':>4} {'sampled':>15} {'rise':>6} {'greedy':>15} {'plain':>15} {'rise':>6} "
        f"{'staleness':>9} {'s':>5} {'GiB':>5}"
    )
    for name, changes, seed in runs:
        with tempfile.TemporaryDirectory() as temporary:
            folder = Path(temporary) / "run"
            summary = run_job(EXAMPLE, folder, [*changes, f"spec.data.seed={seed}"])
            plain = right_answers(folder / "checkpoint", EXAMPLE)
        before, after = summary["heldout_reward_before"], summary["heldout_reward_after"]
        greedy = summary["heldout_greedy_before"], summary["heldout_greedy_after"]
        rows.append(
            {"run": name, "seed": seed, "plain_before": plain_before, "plain_after": plain, **summary}
        )
        print(
            f"{name:<17} {seed:>4} {before:>6.3f} → {after:.3f} {after - before:>+7.3f} "
            f"{greedy[0]:>6.3f} → {greedy[1]:.3f} {plain_before:>6.3f} → {plain:.3f} {plain - plain_before:>+6.3f} "
            f"{summary['staleness_max']:>9} {summary['wall_seconds']:>5.0f} "
            f"{summary['peak_memory_bytes'] / 2**30:>5.2f}",
            flush=True,
        )
    return {"rows": rows}
