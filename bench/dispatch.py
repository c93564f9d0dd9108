"""What each policy of dispatch brings, with real processes, NATS and the real protocol.

Engines are emulated (they sleep) at a twentieth of their time, or at a fifth. `--full` runs all regimes; otherwise the
first one: two H100 and four L40S with 16 slots each; lengths as StreamRL measured them: median 1,160 tokens, σ 0.99 of
which 0.855 are the prompt's, cut at 16k. A step's 12 prompts with 8 samples fill all slots once. The prompts of three
steps come again and again, so that their lengths can be learnt: ρ is the rank correlation of what was predicted.
Training takes little.

Policies that came one after the other are compared by the sources of the commits that brought them (`before`: each
group goes to the engine with the most free slots), which need the repository's history; the newest are switched off by
the job's spec. The first steps fill the pipeline and teach the predictor, and are left out. What virtual time says of
the same regimes, exactly, is in docs/dispatch.md.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
from dataclasses import dataclass, field, replace
from itertools import islice, product
from pathlib import Path
from typing import Any

from bench.jobs import MODEL, ROOT, ahead, run_job, steps_of

BEFORE, BY_PROFILE = "98acadc", "e8c73fe"
"""The last commit before engines were chosen by their profiles, and the first one after it."""

NO_MOVES: dict[str, Any] = {"progressTokens": 0}
NO_WINDOW: dict[str, Any] = {"window": 0}
STREAMING: dict[str, Any] = {"mode": "Streaming"}
SYNCHRONOUS: dict[str, Any] = {"mode": "Synchronous"}
RATIOS = ("speed_up", "over_synchronous")


@dataclass(frozen=True, slots=True)
class Variant:
    """A way to dispatch.

    Attributes:
        name: for people.
        changes: of `spec.rollout`, and of `window` in `spec.pipeline`.
        commit: whose sources run it; empty for those that are here.
    """

    name: str
    changes: dict[str, Any] = field(default_factory=dict)
    commit: str = ""


BASE = Variant("before", commit=BEFORE)
SYNCHRONOUSLY = Variant("Synchronous, before", commit=BEFORE)
LADDER = (
    BASE,
    Variant("by profile, siblings apart", NO_WINDOW, BY_PROFILE),
    Variant("  and the window alone", commit=BY_PROFILE),
    Variant("  and the longest first", NO_MOVES | NO_WINDOW),
    Variant("  and stragglers move", NO_WINDOW),
    Variant("  and the window: all"),
)
SUMMARY = (BASE, Variant("all"))
FRESHNESS = (Variant("without the window", NO_WINDOW), Variant("all"))


@dataclass(frozen=True, slots=True)
class Regime:
    """What generates what.

    Attributes:
        name: for people.
        pools: names of devices and how many engines each has.
        pipelines: that are compared.
        variants: of dispatch.
        slots: of each engine.
        prompts, siblings: of a step.
        median, longest: of answers, in tokens.
        per_token: seconds of training for a token.
        scale: of a device's time; None for that of the sizes.
    """

    name: str
    pools: dict[str, int]
    pipelines: tuple[dict[str, Any], ...]
    variants: tuple[Variant, ...] = SUMMARY
    slots: int = 16
    prompts: int = 12
    siblings: int = 8
    median: int = 1160
    longest: int = 16_384
    per_token: float = 8e-6
    scale: float | None = None


UNEQUAL = Regime("2 H100 + 4 L40S", {"H100": 2, "L40S": 4}, (STREAMING, ahead(1)), LADDER)
# Messages and heartbeats take as long as ever: at a twentieth of an engine's time they are a third of a step at η = 0.
SLOWER = replace(
    UNEQUAL, name="2 H100 + 4 L40S, at a fifth", pipelines=(STREAMING,), variants=SUMMARY, scale=0.2
)
EQUAL = Regime("4 H100", {"H100": 4}, (STREAMING, ahead(1), ahead(2), ahead(4)), prompts=8)
FULL_CACHES = Regime(
    "4 L40S, full KV caches", {"L40S": 4}, (ahead(1),), slots=64, prompts=32, median=4000, longest=32_768
)
LONG_TAIL = Regime(
    "4 H100, groups of 16, answers up to 32k",
    {"H100": 4},
    (ahead(2), ahead(3)),
    slots=64,
    prompts=16,
    siblings=16,
    longest=32_768,
    per_token=3e-5,
)
TRAINER_BOUND = Regime(
    "4 H100, trainer-bound", {"H100": 4}, (ahead(2),), FRESHNESS, prompts=8, per_token=8e-4
)
BALANCED = Regime("4 H100, balanced", {"H100": 4}, (ahead(4),), FRESHNESS, prompts=8, per_token=2.8e-4)
REGIMES = (UNEQUAL, SLOWER, EQUAL, FULL_CACHES, LONG_TAIL, TRAINER_BOUND, BALANCED)


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is measured.

    Attributes:
        regimes: that are compared.
        synchronous: whether to compare with `Synchronous` as it was before.
        steps: of each job.
        skip: of these, the first that are left out.
        scale: of a device's time.
    """

    regimes: tuple[Regime, ...] = REGIMES
    synchronous: bool = True
    steps: int = 16
    skip: int = 6
    scale: float = 0.05


FULL = Sizes()
QUICK = Sizes((replace(UNEQUAL, pipelines=(ahead(1),)),), steps=10, skip=4)
SMOKE = Sizes(
    (replace(UNEQUAL, pipelines=(STREAMING,), variants=LADDER[-1:]),),
    synchronous=False,
    steps=3,
    skip=1,
    scale=0.002,
)
SIZES = {"full": FULL, "quick": QUICK, "smoke": SMOKE}


def manifest(
    regime: Regime, variant: Variant, pipeline: dict[str, Any], sizes: Sizes, data: Path
) -> dict[str, Any]:
    """The job, which asks for the sums of a file again and again."""
    rollout = {name: value for name, value in variant.changes.items() if name != "window"}
    window = {name: value for name, value in variant.changes.items() if name == "window"}
    first, *_ = regime.pools
    scale = regime.scale or sizes.scale
    lengths = {
        "median": regime.median, "sigma": 0.99, "promptSigma": 0.855, "min": 16, "max": regime.longest,
    }  # fmt: skip
    engine = {"slots": regime.slots, "device": first, "timeScale": scale, "lengths": lengths}
    return {
        "apiVersion": "rljob.dev/v1alpha1",
        "kind": "RLJob",
        "metadata": {"name": "dispatch"},
        "spec": {
            "steps": sizes.steps,
            "model": {"uri": str(MODEL)},
            "data": {
                "source": "jsonl",
                "dataset": str(data),
                "promptTemplate": "{{ sum }}=",
                "promptsPerStep": regime.prompts,
                "groupSize": regime.siblings,
            },
            "reward": {"functions": ["exact_match"]},
            "pipeline": pipeline | window,
            "rollout": {
                "engine": {"name": "Emulated", "options": engine},
                "sampling": {"maxTokens": regime.longest},
                "pools": [
                    {"name": device.lower(), "replicas": count, "engine": {"options": {"device": device}}}
                    for device, count in regime.pools.items()
                ],
                **rollout,
            },
            "trainer": {
                "backend": "Emulated",
                "microBatchTokens": regime.longest + 3616,
                "checkpoint": {"everySteps": 1000},
                "options": {"secondsPerToken": scale * regime.per_token},
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


def measure(
    regime: Regime, variant: Variant, pipeline: dict[str, Any], sizes: Sizes, source: Path
) -> dict[str, Any]:
    """Seconds per step, mean staleness, and how well lengths were known at the end, of one job."""
    with tempfile.TemporaryDirectory() as temporary:
        file, data, folder = (Path(temporary) / name for name in ("job.yaml", "sums.jsonl", "run"))
        rows = ({"sum": f"{a}+{b}", "answer": str(a + b)} for a, b in product(range(1, 20), repeat=2))
        data.write_text("".join(f"{json.dumps(row)}\n" for row in islice(rows, 3 * regime.prompts)))
        file.write_text(json.dumps(manifest(regime, variant, pipeline, sizes, data)))
        run_job(file, folder, audit=False, source=source)
        lines = steps_of(folder)
    rest = lines[sizes.skip :]
    seconds = (lines[-1]["seconds"] - lines[sizes.skip - 1]["seconds"]) / len(rest)
    return {
        "regime": regime.name,
        "variant": variant.name.strip(),
        "pipeline": pipeline,
        "seconds_per_step": seconds,
        "staleness": sum(m["stats"]["staleness_mean"] for m in rest) / len(rest),
        "length_correlation": lines[-1].get("length_correlation") or 0.0,
    }


def main(sizes: Sizes = FULL) -> dict[str, Any]:
    """Print a table for each regime; seconds per step, and throughput over the first line's and over `Synchronous`."""
    rows = []
    with tempfile.TemporaryDirectory() as temporary:
        commits = {v.commit for regime in sizes.regimes for v in regime.variants if v.commit}
        commits |= {BEFORE} if sizes.synchronous else set()
        sources = {"": ROOT} | {commit: unpack(commit, Path(temporary)) for commit in sorted(commits)}
        for regime in sizes.regimes:
            print(regime.name)
            print(
                f"{'dispatch':<30} {'s/step':>7} {'staleness':>9} {'ρ':>5} {'speed-up':>8} over Synchronous"
            )
            waits = 0.0
            if sizes.synchronous and (source := sources[BEFORE]) is not None:
                rows.append(measure(regime, SYNCHRONOUSLY, SYNCHRONOUS, sizes, source))
                waits = rows[-1]["seconds_per_step"]
                print(_line(rows[-1]), flush=True)
            for pipeline in regime.pipelines:
                print(f"η = {pipeline.get('maxStaleness', 0)}")
                first = 0.0
                for variant in regime.variants:
                    if (source := sources[variant.commit]) is None:
                        continue
                    row = measure(regime, variant, pipeline, sizes, source)
                    first = first or row["seconds_per_step"]
                    row["speed_up"] = first / row["seconds_per_step"]
                    if waits:
                        row["over_synchronous"] = waits / row["seconds_per_step"]
                    rows.append(row)
                    print(_line(row), flush=True)
    return {"rows": rows}


def _line(row: dict[str, Any]) -> str:
    ratios = " ".join(f"{row[name]:>7.2f}x" if name in row else " " * 8 for name in RATIOS)
    figures = f"{row['seconds_per_step']:>7.2f} {row['staleness']:>9.2f} {row['length_correlation']:>5.2f}"
    return f"{row['variant']:<30} {figures} {ratios}"
