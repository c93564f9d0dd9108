"""What several doctored copies have in common: changes to several sources that a careful forger makes together."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from doctored_run import DoctoredRun, Json

HALF = 3
"""The version up to which a ledger that was cut in half goes."""


def cut_in_half(run: DoctoredRun) -> None:
    run.cut(run.place("committed", version=HALF) + 1)


def forge_claim(run: DoctoredRun, place: int) -> None:
    job = next(record["job"] for _, record in run.records() if record["kind"] == "epoch")
    number = 90_000_001
    claim = {"number": number, "instance": "forger", "job": job, "kind": "epoch"}
    run.insert(
        place, claim, spec_in_force(run), writer={"number": number, "instance": "forger"}, suffix="claim"
    )


def spec_in_force(run: DoctoredRun) -> Json:
    return next(record for _, record in run.records() if record["kind"] == "spec")


def forge_bound(run: DoctoredRun, bound: int) -> None:
    """Buffers, pipeline and commits tell of another bound, and so do the manifests."""
    kinds = {"pipeline", "opened", "committed"}
    run.change_records(lambda r: {**r, "max_staleness": bound} if r["kind"] in kinds else r)
    run.change_manifests(lambda m: m["proposal"].update(max_staleness=bound))


def feed(
    run: DoctoredRun,
    step: int,
    change: Callable[[Json], Any],
    *,
    keep: Callable[[Json], bool] = lambda i: True,
) -> None:
    """Change what the trainer's log says of the trajectories of a step."""

    def lines(found: list[Json]) -> None:
        for line in found:
            if line["step"] == step:
                for item in line["items"]:
                    change(item)
                line["items"] = [item for item in line["items"] if keep(item)]

    run.change_lines("trainer/*.jsonl", lines)


def batches(run: DoctoredRun, version: int) -> list[str]:
    """Trajectories of a version's commit, in order."""
    record = next(r for _, r in run.records() if r["kind"] == "committed" and r["version"] == version)
    return [trajectory for batch in record["micro_batches"] for trajectory in batch]


def batch_with(run: DoctoredRun, group: str) -> list[str]:
    """The last step's trajectories with a group in place of its last one."""
    others = [t for t in batches(run, 6) if not t.startswith(f"{group}.")]
    return [*others[:6], f"{group}.0", f"{group}.1"]


def reordered(run: DoctoredRun, version: int) -> list[str]:
    found = batches(run, version)
    return [*found[2:], *found[:2]]


def twice_in_manifests(run: DoctoredRun, *, ledger: bool = True) -> None:
    def twice(manifest: Json) -> None:
        if manifest["version"] == 6:
            batch = [t for part in manifest["proposal"]["micro_batches"] for t in part]
            manifest["proposal"]["micro_batches"] = [[t.replace(batch[-1][:-1], "g0.") for t in batch]]

    run.change_manifests(twice, ledger=ledger)


def doubled(parts: list[list[str]]) -> list[list[str]]:
    return [[f"g{2 * int(t[1:].split('.')[0])}.{t.split('.')[1]}" for t in part] for part in parts]


def drop_group(run: DoctoredRun, group: str, instead: Json | None = None) -> None:
    """The last step's commit does without a group, which ends otherwise or not at all."""
    left = [t for t in batches(run, 6) if not t.startswith(f"{group}.")]
    run.change("committed", lambda r: r["version"] == 6, micro_batches=[left])
    if instead is not None:
        run.insert(run.place("finished"), instead)


def in_config(run: DoctoredRun, role: str, change: Callable[[Json], Any]) -> None:
    (pod,) = [p.parts[-4] for p in run.folder.glob(f"pods/*-{role}-*/volumes/config/config.json")]
    run.change_json(f"pods/{pod}/volumes/config/config.json", lambda config: change(config["spec"]))


def set_in(lines: list[Json], field: str, value: float) -> None:
    """Set a field in every line that has it."""
    for line in lines:
        if line.get(field) is not None:
            line[field] = value


def name_true_digests(run: DoctoredRun) -> None:
    """Commits and manifests name the altered ledger as it was when the step's last micro-batch was assigned."""
    for version in sorted(r["version"] for _, r in run.records() if r["kind"] == "committed"):
        step = version - 1
        assigned = max(n for n, r in run.records() if r["kind"] == "training" and r["step"] == step)
        digest = run.ledger[assigned].headers["Rljob-Chain"]
        if any(
            r["kind"] == "committed" and (r["version"], r["ledger"]) == (version, digest)
            for _, r in run.records()
        ):
            continue  # what was altered comes later
        name_digest(run, version, digest)


def name_digest(run: DoctoredRun, version: int, digest: str) -> None:
    """A version's commit and its manifest name the ledger by a digest."""
    run.change("committed", lambda r: r["version"] == version, ledger=digest)
    run.change_manifests(lambda m: m["proposal"].update(ledger=digest) if m["version"] == version else None)
