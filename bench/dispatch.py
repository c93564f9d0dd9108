"""What each policy of dispatch brings on unequal engines, with real processes, NATS and the real protocol.

Two H100 and four L40S, emulated (they sleep) at a twentieth of their time, with 16 slots each; lengths as StreamRL
measured them: median 1,160 tokens, σ 0.99 of which 0.855 are the prompt's, cut at 16k. A step's 12 prompts with 8
samples fill all slots once; prompts come again, so that their lengths can be learnt. Training takes little.

Policies that came one after the other are compared by the sources of the commits that brought them (`before`: each
group goes to the engine with the most free slots), which need the repository's history; the newest are switched off by
the job's spec. The first steps fill the pipeline and teach the predictor, and are left out.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.jobs import ROOT, metrics, run_job

BEFORE, BY_PROFILE = "98acadc", "e8c73fe"
"""The last commit before engines were chosen by their profiles, and the first one after it."""

ALL: dict[str, Any] = {}
NO_MOVES: dict[str, Any] = {"progressTokens": 0}
NO_WINDOW: dict[str, Any] = {"window": 0}
STREAMING: dict[str, Any] = {"mode": "Streaming"}
ONE_AHEAD: dict[str, Any] = {"mode": "BoundedAsync", "maxStaleness": 1}
SYNCHRONOUS: dict[str, Any] = {"mode": "Synchronous"}


@dataclass(frozen=True, slots=True)
class Variant:
    """A way to dispatch.

    Attributes:
        name: for people.
        changes: of `spec.rollout`, and of `window` in `spec.pipeline`.
        pipeline: of the job, if it is not that of the comparison.
        commit: whose sources run it; empty for those that are here.
    """

    name: str
    changes: dict[str, Any]
    pipeline: dict[str, Any] | None = None
    commit: str = ""


VARIANTS = (
    Variant("Synchronous, before", ALL, SYNCHRONOUS, BEFORE),
    Variant("before", ALL, commit=BEFORE),
    Variant("by profile, siblings apart", NO_WINDOW, commit=BY_PROFILE),
    Variant("  and the longest first", NO_MOVES | NO_WINDOW),
    Variant("  and stragglers move", NO_WINDOW),
    Variant("  and the window: all", ALL),
)


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is measured.

    Attributes:
        pipelines: that are compared.
        variants: of dispatch.
        steps: of each job.
        skip: of these, the first that are left out.
        scale: of a device's time.
    """

    pipelines: tuple[dict[str, Any], ...] = (STREAMING, ONE_AHEAD)
    variants: tuple[Variant, ...] = VARIANTS
    steps: int = 16
    skip: int = 6
    scale: float = 0.05


FULL = Sizes()
SMOKE = Sizes((STREAMING,), VARIANTS[-1:], steps=3, skip=1, scale=0.002)
SIZES = {"full": FULL, "quick": Sizes((ONE_AHEAD,), VARIANTS[2:], steps=10, skip=4), "smoke": SMOKE}


def manifest(variant: Variant, pipeline: dict[str, Any], sizes: Sizes) -> dict[str, Any]:
    """The job."""
    rollout = {name: value for name, value in variant.changes.items() if name != "window"}
    window = {name: value for name, value in variant.changes.items() if name == "window"}
    lengths = {"median": 1160, "sigma": 0.99, "promptSigma": 0.855, "min": 16, "max": 16_384}
    engine = {"slots": 16, "device": "H100", "timeScale": sizes.scale, "lengths": lengths}
    return {
        "apiVersion": "rljob.dev/v1alpha1",
        "kind": "RLJob",
        "metadata": {"name": "dispatch"},
        "spec": {
            "steps": sizes.steps,
            "model": {"uri": str(ROOT / "manifests" / "examples" / "models" / "chain-sum")},
            "data": {
                "dataset": "chain_sum",
                "options": {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1, "size": 36},
                "promptTemplate": "{{ metadata.expression | replace(' ', '') }}=",
                "promptsPerStep": 12,
                "groupSize": 8,
            },
            "pipeline": (variant.pipeline or pipeline) | window,
            "rollout": {
                "engine": {"name": "Emulated", "options": engine},
                "sampling": {"maxTokens": 16_384},
                "pools": [
                    {"name": "h100", "replicas": 2},
                    {"name": "l40s", "replicas": 4, "engine": {"options": {"device": "L40S"}}},
                ],
                **rollout,
            },
            "trainer": {
                "backend": "Emulated",
                "microBatchTokens": 20_000,
                "checkpoint": {"everySteps": 1000},
                "options": {"secondsPerToken": sizes.scale * 8e-6},
            },
        },
    }


def unpack(commit: str, folder: Path) -> Path | None:
    """The product's sources as a commit has them, in a folder; None, and a line, if its history is not there."""
    found, archive = folder / commit, folder / f"{commit}.tar"
    command = ["git", "-C", str(ROOT), "archive", "-o", str(archive), commit, "operator", "workers"]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        print(f"the commit {commit} is not in this repository's history: it is not measured")
        return None
    found.mkdir()
    subprocess.run(["tar", "-xf", str(archive), "-C", str(found)], check=True)
    return found


def measure(variant: Variant, pipeline: dict[str, Any], sizes: Sizes, source: Path) -> dict[str, Any]:
    """Seconds per step, and mean staleness, of one job."""
    with tempfile.TemporaryDirectory() as temporary:
        file, folder = Path(temporary) / "job.yaml", Path(temporary) / "run"
        file.write_text(json.dumps(manifest(variant, pipeline, sizes)))
        run_job(file, folder, audit=False, source=source)
        lines = [m for m in metrics(folder) if m["reward_mean"] is not None]
    rest = lines[sizes.skip :]
    seconds = (lines[-1]["seconds"] - lines[sizes.skip - 1]["seconds"]) / len(rest)
    return {
        "variant": variant.name.strip(),
        "pipeline": variant.pipeline or pipeline,
        "seconds_per_step": seconds,
        "staleness": sum(m["stats"]["staleness_mean"] for m in rest) / len(rest),
    }


def main(sizes: Sizes = FULL) -> dict[str, Any]:
    """Print the table; seconds per step and ratios to the line named `before`, or to the first one."""
    rows = []
    with tempfile.TemporaryDirectory() as temporary:
        commits = {v.commit for v in sizes.variants if v.commit}
        sources = {"": ROOT} | {commit: unpack(commit, Path(temporary)) for commit in sorted(commits)}
        for pipeline in sizes.pipelines:
            print(f"η = {pipeline.get('maxStaleness', 0)}")
            print(f"{'dispatch':<30} {'s/step':>7} {'staleness':>9} {'speed-up':>8}")
            base = 0.0
            for variant in sizes.variants:
                if (source := sources[variant.commit]) is None:
                    continue
                row = measure(variant, pipeline, sizes, source)
                seconds = row["seconds_per_step"]
                base = seconds if not base or variant.name == "before" else base
                row["speed_up"] = base / seconds
                rows.append(row)
                print(
                    f"{variant.name:<30} {seconds:>7.2f} {row['staleness']:>9.2f} {base / seconds:>7.2f}x",
                    flush=True,
                )
    return {"rows": rows}
