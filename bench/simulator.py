"""How well `rljob simulate` foretells jobs of real processes: seconds per step, simulated and measured, side by side.

Each job runs as it would anywhere, on real NATS and by the real protocol; only engines and trainer are emulated (they
sleep). The same manifest is simulated on virtual time. The first steps fill the pipeline and are left out of both.
"""

from __future__ import annotations

import json
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from bench.jobs import MODEL, ahead, run_job, steps_of
from rljob_cli.commands import app

PROMPT_TOKENS = 6
"""Of the task's prompts, such as `12+34=`, at most."""

MANIFEST = """\
apiVersion: rljob.dev/v1alpha1
kind: RLJob
metadata: {{name: simulator}}
spec:
  steps: {steps}
  model: {{uri: {model}}}
  data: {{dataset: chain_sum, options: {{min_terms: 2, max_terms: 2, min_digits: 1, max_digits: 2}},
         promptTemplate: "{{{{ metadata.expression | replace(' ', '') }}}}=", promptsPerStep: 16, groupSize: 8}}
  pipeline: {pipeline}
  rollout:
    engine: {{name: Emulated, options: {{slots: 32, stepSeconds: 0.01, stepSecondsPerSlot: 0.0001,
             lengths: {{median: 110, sigma: 0.6, promptSigma: 0.2, min: 16, max: 512}}}}}}
    sampling: {{maxTokens: 512}}
    pools: {pools}
  trainer: {{backend: Emulated, microBatchTokens: 2000, checkpoint: {{everySteps: 1000}},
            options: {{secondsPerToken: {per_token}, stepSeconds: 0.05}}}}
"""
SITE = """\
---
apiVersion: rljob.dev/v1alpha1
kind: Site
metadata: {name: west}
spec:
  link: {bitsPerSecond: 100000000, latencySeconds: 0.06}
"""
EQUAL = [{"name": "equal", "replicas": 4}]
MIXED = [
    {"name": "fast", "replicas": 2},
    {
        "name": "slow",
        "replicas": 4,
        "engine": {"options": {"stepSeconds": 0.03, "stepSecondsPerSlot": 0.0003}},
    },
]
FULL_CACHES = [
    {"name": "full", "replicas": 4, "engine": {"options": {"kvTokens": 2500, "prefillSecondsPerToken": 1e-5}}}
]
TWO_SITES = [{"name": "near", "replicas": 2}, {"name": "far", "replicas": 2, "site": "west"}]
SLOW_SWAPS = [{"name": "swapping", "replicas": 4, "engine": {"options": {"swapSeconds": 0.5}}}]


@dataclass(frozen=True, slots=True)
class Case:
    """One job.

    Attributes:
        name: of what is special about it.
        per_token: seconds of training for a token.
    """

    name: str
    pipeline: dict[str, Any]
    pools: list[dict[str, Any]] = field(default_factory=lambda: EQUAL)
    per_token: float = 8e-5

    def manifest(self, *, steps: int) -> str:
        """The job."""
        job = MANIFEST.format(
            steps=steps,
            model=MODEL,
            pipeline=json.dumps(self.pipeline),
            pools=json.dumps(self.pools),
            per_token=self.per_token,
        )
        return job + SITE if any("site" in pool for pool in self.pools) else job


CASES = (
    Case("synchronous", {"mode": "Synchronous"}),
    Case("streaming", {"mode": "Streaming"}),
    Case("η = 1", ahead(1)),
    Case("η = 4", ahead(4)),
    Case("2 fast + 4 slow, streaming", {"mode": "Streaming"}, MIXED),
    Case("2 fast + 4 slow, η = 1", ahead(1), MIXED),
    Case("full KV caches, η = 1", ahead(1), FULL_CACHES),
    Case("2 near + 2 far, 60 ms, 100 Mbit, η = 2", ahead(2), TWO_SITES),
    Case("slow swaps, trainer-bound, η = 2", ahead(2), SLOW_SWAPS, per_token=3e-4),
)


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is measured.

    Attributes:
        cases: the jobs.
        steps: of each, and six times its bound more: a bound is filled at the beginning and emptied at the end.
        skip: of these, the first that are left out, and twice the bound more.
    """

    cases: tuple[Case, ...] = CASES
    steps: int = 20
    skip: int = 8


FULL = Sizes()
SMOKE = Sizes(CASES[:1], steps=4, skip=1)
SIZES = {"full": FULL, "quick": Sizes(CASES[2:7:2], steps=10), "smoke": SMOKE}


def measured(folder: Path, *, skip: int) -> float:
    """Seconds per step of a real run."""
    lines = steps_of(folder)
    return (lines[-1]["seconds"] - lines[skip - 1]["seconds"]) / len(lines[skip:])


def simulated(manifest: Path, *, steps: int, skip: int) -> float:
    """Seconds per step of the same job, simulated; the command's own figures leave out as many steps."""
    words = ["simulate", str(manifest), "--json", f"--steps={steps}", f"--skip={skip}"]
    done = CliRunner().invoke(app, [*words, f"--prompt-tokens={PROMPT_TOKENS}"], catch_exceptions=False)
    seconds: float = json.loads(done.stdout)["seconds_per_step"]
    return seconds


def main(sizes: Sizes = FULL) -> dict[str, Any]:
    """Print the table; seconds per step and ratios."""
    rows = []
    print(f"{'job':<40} {'real s/step':>11} {'simulated':>9} {'ratio':>6}")
    for case in sizes.cases:
        with tempfile.TemporaryDirectory() as temporary:
            manifest = Path(temporary) / "job.yaml"
            bound = case.pipeline.get("maxStaleness", 0)
            steps, skip = sizes.steps + 6 * bound, sizes.skip + 2 * bound
            manifest.write_text(case.manifest(steps=steps))
            foretold = simulated(manifest, steps=steps, skip=skip)
            folder = Path(temporary) / "run"
            run_job(manifest, folder, audit=False)
            seconds = measured(folder, skip=skip)
        rows.append(
            {"job": case.name, "seconds": seconds, "simulated": foretold, "ratio": foretold / seconds}
        )
        print(f"{case.name:<40} {seconds:>11.2f} {foretold:>9.2f} {foretold / seconds:>6.2f}", flush=True)
    return {"rows": rows}
