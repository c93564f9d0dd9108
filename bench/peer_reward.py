"""Seconds and tokens until the demo's task is learned, by `rljob run` in each mode and by TRL's `GRPOTrainer`.

Seconds count from the command, with all that starts. Tokens are those of the responses that were trained on. The
held-out reward is that of answers sampled at temperature 1, every few steps: `rljob run` evaluates while it trains, on
the same cores, so that its evaluations are in its seconds; TRL's clock stands still while its model is scored. With 200
prompts a score's standard error is 0.025, and what happens between two scores is not told apart.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bench.jobs import EXAMPLE, ROOT, metrics, run_job
from bench.learning import MODES

TARGET = 0.85
PEER = "TRL"
_LOOK_SECONDS = 0.1


class PeerFailed(Exception):
    """TRL did not exit with 0."""


@dataclass(frozen=True, slots=True)
class Reached:
    """When a run reached the reward first.

    Attributes:
        step: after which it was measured; None if it never was.
        seconds: since the command.
        tokens: of responses that were trained on until then.
        best: the highest reward that was measured.
    """

    step: int | None
    seconds: float | None
    tokens: int | None
    best: float


def train_by_trl(folder: Path, steps: int, *scored: int) -> Path:
    """Train, and score the model every so many steps by so many prompts, if these are given; the model's folder."""
    words = [sys.executable, "-m", "bench.peer_trl", str(EXAMPLE), str(steps), str(folder)]
    words += map(str, scored)
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise PeerFailed(done.stderr[-2000:])
    return folder


def by_trl(folder: Path, *, steps: int, every: int, prompts: int, target: float) -> Reached:
    """Train by TRL, which scores its model with its clock stopped."""
    begun = time.time()
    train_by_trl(folder, steps, every, prompts)
    scores = json.loads((folder / "scores.json").read_text())
    best = max(score["reward"] for score in scores)
    for score in scores:
        if score["reward"] >= target:
            seconds = score["at"] - begun - score["scoring"]
            return Reached(score["step"], seconds, score["tokens"], best)
    return Reached(None, None, None, best)


def by_rljob(folder: Path, mode: str, *, steps: int, every: int, prompts: int, target: float) -> Reached:
    """Train by `rljob run`, whose lines of metrics are seen as they come."""
    evaluation = f"spec.evaluation={{everySteps: {every}, samples: {prompts}}}"
    changes = [*MODES[mode], f"spec.steps={steps}", evaluation]
    seen: dict[int, float] = {}
    begun, over = time.perf_counter(), threading.Event()
    watching = threading.Thread(target=_watch, args=(folder / "metrics.jsonl", begun, seen, over))
    watching.start()
    try:
        run_job(EXAMPLE, folder, changes, audit=False)
    finally:
        over.set()
        watching.join()
    lines = metrics(folder)
    scores = {
        line["version"]: line["heldout_sampled"] for line in lines if line.get("heldout_sampled") is not None
    }
    step = min((version for version, score in scores.items() if score >= target), default=None)
    if step is None:
        return Reached(None, None, None, max(scores.values()))
    trained = (line for line in lines if line.get("reward_mean") is not None and line["version"] <= step)
    return Reached(step, seen[step], sum(line["stats"]["tokens"] for line in trained), max(scores.values()))


def _watch(file: Path, begun: float, seen: dict[int, float], over: threading.Event) -> None:
    """Note when each evaluation is in the file, until the run is over."""
    while True:
        last = over.wait(_LOOK_SECONDS)
        text = file.read_text() if file.exists() else ""
        for line in text.splitlines() if text.endswith("\n") else text.splitlines()[:-1]:
            found = json.loads(line)
            if found.get("heldout_sampled") is not None:
                seen.setdefault(found["version"], time.perf_counter() - begun)
        if last:
            return


def compare(
    *, turns: int, steps: int, every: int, prompts: int, target: float = TARGET
) -> dict[str, list[dict[str, Any]]]:
    """Print the table; every run of each, by name."""
    sizes: dict[str, Any] = {"steps": steps, "every": every, "prompts": prompts, "target": target}
    runs: dict[str, Callable[[Path], Reached]] = {PEER: lambda folder: by_trl(folder, **sizes)}
    for mode in MODES:
        runs[f"rljob, {mode}"] = lambda folder, mode=mode: by_rljob(folder, mode, **sizes)  # type: ignore[misc]
    found: dict[str, list[Reached]] = {name: [] for name in runs}
    print(
        f"\nto held-out reward {target}, scored every {every} steps by {prompts} prompts; {steps} steps at most"
    )
    for _ in range(turns):
        for name, run in runs.items():
            with tempfile.TemporaryDirectory() as temporary:
                found[name].append(run(Path(temporary) / "run"))
    print(
        f"{'':<20} {'step':>5} {'seconds':>8} {'ratio':>6} {'tokens':>9} {'ratio':>6} {'best':>6}   medians of {turns}"
    )
    peer = {field: _median(found[PEER], field) for field in ("seconds", "tokens")}
    for name, reached in found.items():
        seconds, tokens = _median(reached, "seconds"), _median(reached, "tokens")
        print(
            f"{name:<20} {_shown(_median(reached, 'step'), '.0f'):>5} {_shown(seconds, '.1f'):>8} "
            f"{_ratio(peer['seconds'], seconds):>6} {_shown(tokens, ',.0f'):>9} {_ratio(peer['tokens'], tokens):>6} "
            f"{_median(reached, 'best') or 0:>6.3f}",
            flush=True,
        )
    print(f"ratio: how many times as much {PEER} takes")
    return {name: [asdict(one) for one in reached] for name, reached in found.items()}


def _median(reached: list[Reached], field: str) -> float | None:
    """The median; None if any run never got there."""
    values = [getattr(one, field) for one in reached]
    return None if None in values else float(statistics.median(values))


def _shown(value: float | None, form: str) -> str:
    return "never" if value is None else format(value, form)


def _ratio(peer: float | None, own: float | None) -> str:
    return "–" if peer is None or not own else f"{peer / own:.2f}"
