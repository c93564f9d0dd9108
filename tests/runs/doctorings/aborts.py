"""Groups that were given up for reasons that the ledger does not bear out, and a success that was none."""

from __future__ import annotations

from typing import Any

from doctored_run import DoctoredRun

from doctorings.forging import name_true_digests
from doctorings.registry import DOCTORINGS, VIOLATED, Doctoring, expect

ABORTS = "reasons of aborts and of the end"
GROUP = "g24"


def give_up(run: DoctoredRun, *before: dict[str, Any], **abort: Any) -> None:
    """Let the ledger plan one more group, and give it up; the digests and the counts follow.

    Args:
        run: the copy.
        before: records of the group before its end.
        abort: fields of the record of its end.
    """
    last = run.place("reserved", group="g23")
    reserved = next(r for _, r in run.records() if (r["kind"], r.get("group")) == ("reserved", "g23"))
    end = {"group": GROUP, "causes": {}, **abort, "kind": "aborted"}
    run.insert(last + 1, {**reserved, "group": GROUP, "prompt": 24}, *before, end)
    resets = [record["reason"] for record in before if record["kind"] == "reset"]
    causes = [end["causes"].get(f"{GROUP}.{n}", end["reason"]) for n in range(2)]

    def count(summary: dict[str, Any]) -> None:
        summary["trajectories"] |= {"planned": 50, "aborted": {c: causes.count(c) for c in causes}}
        summary["attempts_failed"] = {r: resets.count(r) for r in resets}

    run.change_json("summary.json", count)
    name_true_digests(run)


def failed(attempt: int, *, died: bool = False, failure: bool = True) -> dict[str, Any]:
    """A record by which the first of the group's trajectories is generated again."""
    reset = {"trajectory": f"{GROUP}.0", "attempt": attempt, "failure": failure, "kind": "reset"}
    return {**reset, "reason": "EngineLost" if died else "RewardRaised", "died": died}


for name, fields in {
    "an unknown reason": {"reason": "TooHard"},
    "no attempt that failed": {"reason": "PromptExhausted", "causes": {f"{GROUP}.0": "RewardRaised"}},
    "no trajectory that failed": {"reason": "PromptExhausted"},
    "scores that nobody gave": {"reason": "UniformGroup"},
    "a payload that nobody missed": {"reason": "PayloadLost"},
    "the job's end, before it": {"reason": "JobFinished"},
    "a loss of the ledger that was none": {"reason": "LedgerLost"},
    "a rollback that was none": {"reason": "VersionRevoked"},
}.items():

    def lie(run: DoctoredRun, fields: dict[str, Any] = fields) -> None:
        give_up(run, **fields)

    DOCTORINGS[f"given up for {name}"] = Doctoring(lie, VIOLATED, ABORTS)


@expect(VIOLATED, ABORTS)
def given_up_after_fewer_failures_than_max_attempts(run: DoctoredRun) -> None:
    give_up(run, failed(2), reason="PromptExhausted", causes={f"{GROUP}.0": "RewardRaised"})


@expect(VIOLATED, ABORTS)
def given_up_for_deaths_of_engines_that_were_not_its_failures(run: DoctoredRun) -> None:
    """Deaths count where they are the cause, and nowhere else."""
    deaths = [failed(attempt, died=True, failure=False) for attempt in (2, 3, 4)]
    give_up(run, *deaths, reason="PromptExhausted", causes={f"{GROUP}.0": "RewardRaised"})


@expect(VIOLATED, ABORTS)
def a_success_without_its_last_evaluation(run: DoctoredRun) -> None:
    run.change_records(lambda r: None if (r["kind"], r.get("version")) == ("evaluated", 6) else r)
    run.change_metrics_stream(forget)
    run.change_lines("metrics.jsonl", forget)
    middle = {f"heldout_{name}_after": 0.0 for name in ("reward", "greedy")}
    run.change_json("summary.json", lambda summary: summary.update(middle))


def forget(lines: list[dict[str, Any]]) -> None:
    """Make the last evaluation's line one of no news."""
    for line in lines:
        if line["version"] == 6 and line["heldout_sampled"] is not None:
            line |= {"heldout_sampled": None, "heldout_greedy": None}


@expect(VIOLATED, ABORTS)
def a_success_before_the_last_step(run: DoctoredRun) -> None:
    """All specs are of a longer job."""

    def longer(record: dict[str, Any]) -> dict[str, Any]:
        if record["kind"] == "spec":
            record["spec"]["steps"] = 9
        return record

    run.change_records(longer)
    run.change_json("job.json", lambda identity: identity["manifest"]["spec"].update(steps=9))
    name_true_digests(run)
