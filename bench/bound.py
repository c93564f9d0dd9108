"""The cost of the staleness bound: throughput and discarded tokens at η = 1, 2, 4, beside a job without one.

Engines are emulated (they sleep), response lengths spread 1:16 (lognormal, clipped to 64–1,024), and training takes as
long as generation. A step has four trajectories for each slot. With one trajectory for each slot, the longest response
alone would take as long as three unbounded steps and be three versions old at its end, under any schedule: η = 2 would
then have to slow down a job that aborts nothing.

Reservations never start a trajectory that the bound would not let the trainer use, so the bound must discard nothing.
Discarded tokens were generated and not trained on: payloads by the reason in the ledger, and tokens of responses that
never ended (mostly those in progress when the job ends).
"""

from __future__ import annotations

import asyncio
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.jobs import MODEL, metrics, run_job
from bench.overlap import MANIFEST, steady
from rljob_cli.audit.history import ValidRecords
from rljob_cli.audit.read import read_folder
from rljob_cli.run_folder.folder import RunFolder
from rljob_core.records import Generated, GroupAborted, Record, SiblingReset, StepCommitted
from rljob_core.trajectory import group_of


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is measured.

    Attributes:
        bounds: η, a job each; the first one holds nothing back in so few steps, and the others are compared with it.
        steps: of each job.
        skipped: of them at the beginning, while the pipeline fills.
    """

    bounds: tuple[int, ...] = (64, 1, 2, 4)
    steps: int = 200
    skipped: int = 8


FULL = Sizes()
SMOKE = Sizes(bounds=(1,), steps=6, skipped=2)
SIZES = {"full": FULL, "quick": Sizes(steps=60), "smoke": SMOKE}
PROMPTS = 16
SLOTS = 32
STEP_SECONDS = 0.00125
TARGET = 0.95


def discarded(records: Iterable[Record]) -> Counter[str]:
    """Response tokens of payloads that no step trained on, by the reason in the ledger."""
    tokens: dict[str, int] = {}
    lost: Counter[str] = Counter()
    for record in records:
        match record:
            case Generated():
                tokens[record.trajectory] = record.response_tokens
            case SiblingReset():
                lost[record.reason] += tokens.pop(record.trajectory, 0)
            case GroupAborted():
                for trajectory in [t for t in tokens if group_of(t) == record.group]:
                    reason = record.causes.get(trajectory, record.reason)
                    lost[reason] += tokens.pop(trajectory)
            case StepCommitted():
                for trajectory in (t for part in record.micro_batches for t in part):
                    tokens.pop(trajectory, None)
    return Counter({reason: count for reason, count in lost.items() if count})


def measure(sizes: Sizes) -> Iterator[dict[str, Any]]:
    """Run a job for each bound, and yield its row as soon as it ends."""
    for bound in sizes.bounds:
        with tempfile.TemporaryDirectory() as temporary:
            manifest = Path(temporary) / "bound.yaml"
            text = MANIFEST.format(
                steps=sizes.steps,
                prompts=PROMPTS,
                mode="BoundedAsync",
                bound=f", maxStaleness: {bound}",
                model=MODEL,
                per_token=STEP_SECONDS / SLOTS,
            )
            engine = f"slots: {SLOTS // 4}, stepSeconds: {STEP_SECONDS}"
            manifest.write_text(text.replace("slots: 32, stepSeconds: 0.01", engine))
            folder = Path(temporary) / "run"
            summary = run_job(manifest, folder)
            seconds, _ = steady(folder, skip=sizes.skipped)
            lines = metrics(folder)
            evidence = asyncio.run(read_folder(RunFolder(folder)))
        batches = ValidRecords().batches(evidence.ledger)
        records = [record for _, batch in batches for record in batch.records]
        stored = sum(record.response_tokens for record in records if isinstance(record, Generated))
        yield {
            "max_staleness": bound,
            "seconds_per_step": seconds,
            "steps": sizes.steps,
            "aborted_because_of_staleness": sum(
                count for reason, count in summary["trajectories"]["aborted"].items() if "tale" in reason
            ),
            "discarded_tokens": dict(discarded(records)),
            "unfinished_tokens": max(line["tokens_generated"] for line in lines) - stored,
            "generated_tokens": stored,
            "staleness_max": summary["staleness_max"],
        }


def main(sizes: Sizes = FULL) -> dict[str, Any]:
    """Print the table; ratios to the job without a bound."""
    print(
        f"{'η':>4} {'s/step':>7} {'of no bound':>12} {'aborted, stale':>15} {'unfinished':>11}  "
        "discarded tokens by reason"
    )
    rows: list[dict[str, Any]] = []
    for row in measure(sizes):
        rows.append(row)
        row["of_unbounded"] = rows[0]["seconds_per_step"] / row["seconds_per_step"]
        reasons = (
            ", ".join(f"{reason} {count:,}" for reason, count in row["discarded_tokens"].items()) or "none"
        )
        print(
            f"{row['max_staleness']:>4} {row['seconds_per_step']:>7.3f} {row['of_unbounded']:>12.1%} "
            f"{row['aborted_because_of_staleness']:>15} {row['unfinished_tokens']:>11,}  {reasons}",
            flush=True,
        )
    print(f"at η = 2 at least {TARGET:.0%} of the throughput with no bound; aborted because of staleness: 0")
    return {"rows": rows}
