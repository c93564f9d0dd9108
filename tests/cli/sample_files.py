"""A run's folder with samples, as reward workers and the trainer leave it."""

from __future__ import annotations

from pathlib import Path

from invocation import started
from sample_answers import answer, keep

from rljob_cli.run_folder.folder import RunFolder
from rljob_core.failures import Failure, Reason
from rljob_core.records import FED, FedMicroBatch, FedTrajectory
from rljob_core.trajectory import VersionSpan


def write_samples(manifest: Path, folder: Path) -> RunFolder:
    """Two steps of sums, of which one answer crosses a version, and one has no score; and two evaluations."""
    run = started(manifest, folder)
    keep(
        run.samples,
        answer("g3.0", prompt="7+5=", response="12.", versions=[1, 1, 2], reward=1.0, at=1),
        answer("g3.1", prompt="7+5=", response="13.", versions=[1, 1, 1], reward=0.0, at=1),
        answer("g4.0", prompt="40-8=", response="32.", versions=[2, 2, 2], reward=1.0, at=2),
        answer(
            "g4.1",
            prompt="40-8=",
            response="32",
            versions=[2, 2],
            failure=Failure(Reason.REWARD_TIMEOUT, "exact_match"),
            at=3,
        ),
        answer("e2-0.0", prompt="9+9=", response="18.", versions=[2, 2, 2], reward=1.0, at=4),
        answer("e2-0.1", prompt="9+9=", response="18.", versions=[2, 2, 2], reward=1.0, at=4),
    )
    items = [
        FedTrajectory("g3.0", 1, "g3.0@1", VersionSpan(1, 2), 3, 1.0, 1.0),
        FedTrajectory("g3.1", 1, "g3.1@1", VersionSpan(1, 1), 3, 0.0, -1.0),
    ]
    log = run.trainer / "attempt-1.jsonl"
    log.write_bytes(FED.dump_json(FedMicroBatch(2, 0, 1, 1, tuple(items))) + b"\n")
    return run
