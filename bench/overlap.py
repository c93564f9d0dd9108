"""How well rollout and training overlap in each pipeline mode, with real processes, NATS and the real protocol.

Engines and trainer are emulated (they sleep): 4 engines of 32 slots, a decode step of 10 ms whatever the batch,
8 samples a prompt, lengths lognormal (median 220, σ 0.8 of which 0.5 are the prompt's), clipped to 64–1,024; training
takes as long per token as generation at full batch (and trains on a short prompt besides). No schedule is faster than
the longer of the two stages, `bound`; `of bound` is how close a mode comes to it. The first steps fill the pipeline
and are left out.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.jobs import MODEL, run_job, steps_of

SLOTS = 128
STEP_SECONDS = 0.01
MODES = (("Synchronous", 0), ("Streaming", 0), ("BoundedAsync", 1), ("BoundedAsync", 2), ("BoundedAsync", 4))


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is measured.

    Attributes:
        jobs: a job for each mode and each of these: (prompts in a step, steps, steps at the beginning left out).
        modes: names of modes, with η; speed-ups are over the first.
    """

    jobs: tuple[tuple[int, int, int], ...] = ((16, 24, 8), (32, 14, 6), (64, 9, 4), (128, 6, 3))
    modes: tuple[tuple[str, int], ...] = MODES


FULL = Sizes()
SMOKE = Sizes(jobs=((4, 4, 2),), modes=(MODES[0], MODES[2]))
SIZES = {"full": FULL, "quick": Sizes(jobs=((16, 16, 8),)), "smoke": SMOKE}

MANIFEST = """\
apiVersion: rljob.dev/v1alpha1
kind: RLJob
metadata: {{name: overlap}}
spec:
  steps: {steps}
  model: {{uri: {model}}}
  data: {{dataset: chain_sum, options: {{min_terms: 2, max_terms: 2, min_digits: 1, max_digits: 2}},
         promptTemplate: "{{{{ metadata.expression | replace(' ', '') }}}}=", promptsPerStep: {prompts}, groupSize: 8}}
  pipeline: {{mode: {mode}{bound}}}
  rollout:
    engine: {{name: Emulated, options: {{slots: 32, stepSeconds: 0.01, lengths: {{median: 220, sigma: 0.8,
             promptSigma: 0.5, min: 64, max: 1024}}}}}}
    sampling: {{maxTokens: 1024}}
    pools: [{{name: emulated, replicas: 4}}]
  trainer: {{backend: Emulated, microBatchTokens: 2000, checkpoint: {{everySteps: 1000}},
            options: {{secondsPerToken: {per_token}}}}}
"""


def steady(folder: Path, *, skip: int) -> tuple[float, float]:
    """Seconds per step after the first `skip` steps, and what the longer stage alone would take of them."""
    lines = steps_of(folder)
    first, rest = lines[skip - 1], lines[skip:]
    seconds = (rest[-1]["seconds"] - first["seconds"]) / len(rest)
    generated = sum(m["response_tokens_mean"] for m in rest) * (
        rest[0]["trajectories"]["consumed"] - first["trajectories"]["consumed"]
    )
    trained = sum(m["stats"]["tokens"] for m in rest)
    return seconds, max(generated, trained) / len(rest) * STEP_SECONDS / SLOTS


def main(sizes: Sizes = FULL) -> dict[str, Any]:
    """Print the table; seconds per step and ratios."""
    rows = []
    print(f"{'prompts':>7} {'mode':<14} {'η':>2} {'s/step':>7} {'bound':>7} {'of bound':>8} {'speed-up':>8}")
    for prompts, steps, skip in sizes.jobs:
        base = 0.0
        for mode, bound in sizes.modes:
            with tempfile.TemporaryDirectory() as temporary:
                manifest = Path(temporary) / "overlap.yaml"
                manifest.write_text(
                    MANIFEST.format(
                        steps=steps,
                        prompts=prompts,
                        mode=mode,
                        bound=f", maxStaleness: {bound}" if bound else "",
                        model=MODEL,
                        per_token=STEP_SECONDS / SLOTS,
                    )
                )
                folder = Path(temporary) / "run"
                run_job(manifest, folder, audit=False)
                seconds, stage = steady(folder, skip=skip)
            base = base or seconds
            row = {
                "prompts": prompts,
                "mode": mode,
                "max_staleness": bound,
                "seconds_per_step": seconds,
                "bound_seconds": stage,
                "of_bound": stage / seconds,
                "speed_up": base / seconds,
            }
            rows.append(row)
            print(
                f"{prompts:>7} {mode:<14} {bound:>2} {seconds:>7.2f} {stage:>7.2f} {stage / seconds:>8.0%} "
                f"{base / seconds:>7.2f}x",
                flush=True,
            )
    return {"rows": rows}
