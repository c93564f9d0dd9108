"""Does it learn: the demo job in each mode on three seeds, and two controls that must not.

Held-out prompts (200), answered at temperature 1 and greedily, before and after, by the reward that the run trains
on; `plain` is another opinion: what `checkpoint/` answers to 1,000 other prompts through transformers alone, always
scored by the true answer (for shuffled rewards, the only column that means anything). Wall seconds and peak memory of
all processes of the run are in the table too: the demo's limits are 300 s and 4 GiB on 2 cores.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.heldout import right_answers
from bench.jobs import EXAMPLE, run_job

MODES = {
    "Synchronous": ["spec.pipeline={mode: Synchronous}"],
    "Streaming": ["spec.pipeline={mode: Streaming}"],
    "BoundedAsync": [],
}
CONTROLS = {
    "learning rate 0": ["spec.algorithm.learningRate=0"],
    "shuffled rewards": ["spec.reward.functions=[bench.shuffled_reward:shuffled]"],
}


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is measured.

    Attributes:
        modes: names in `MODES`.
        seeds: a run for each mode and each seed.
        controls: names in `CONTROLS`, a run each.
        changes: of every run, as `rljob run --set` takes them.
        prompts: that score a run's checkpoint from outside.
    """

    modes: tuple[str, ...] = tuple(MODES)
    seeds: tuple[int, ...] = (1, 2, 3)
    controls: tuple[str, ...] = tuple(CONTROLS)
    changes: tuple[str, ...] = ()
    prompts: int = 1000


FULL = Sizes()
SMOKE = Sizes(
    modes=("BoundedAsync",), seeds=(1,), controls=("shuffled rewards",), changes=("spec.steps=2",), prompts=20
)
SIZES = {"full": FULL, "quick": Sizes(modes=("BoundedAsync",), seeds=(1,)), "smoke": SMOKE}


def main(sizes: Sizes = FULL) -> dict[str, Any]:
    """Print the table."""
    runs = [(mode, MODES[mode], seed) for mode in sizes.modes for seed in sizes.seeds]
    runs += [(name, CONTROLS[name], 1) for name in sizes.controls]
    rows = []
    plain_before = right_answers(EXAMPLE.parent / "models" / "chain-sum", EXAMPLE, prompts=sizes.prompts)
    print(
        f"{'run':<17} {'seed':>4} {'sampled':>15} {'rise':>6} {'greedy':>15} {'plain':>15} {'rise':>6} "
        f"{'staleness':>9} {'s':>5} {'GiB':>5}"
    )
    for name, changes, seed in runs:
        with tempfile.TemporaryDirectory() as temporary:
            folder = Path(temporary) / "run"
            summary = run_job(EXAMPLE, folder, [*changes, *sizes.changes, f"spec.data.seed={seed}"])
            plain = right_answers(folder / "checkpoint", EXAMPLE, prompts=sizes.prompts)
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
