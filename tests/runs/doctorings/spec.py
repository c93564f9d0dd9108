"""The spec, as ledger, user and workers have it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from doctored_run import DoctoredRun, Json

from doctorings.forging import forge_bound, in_config
from doctorings.registry import DAMAGED, DOCTORINGS, UNFINISHED, VIOLATED, Doctoring, expect

SPEC = "the spec"


@expect(VIOLATED, SPEC)
def a_coordinator_with_a_bound_of_its_own(run: DoctoredRun) -> None:
    forge_bound(run, 4)


@expect(VIOLATED, SPEC)
def a_coordinator_with_a_bound_and_a_spec_of_its_own(run: DoctoredRun) -> None:
    forge_bound(run, 4)

    def lie(record: Json) -> Json:
        if record["kind"] == "spec":
            record["spec"]["pipeline"]["maxStaleness"] = 4
        return record

    run.change_records(lie)


@expect(VIOLATED, SPEC)
def stamps_that_are_not_of_the_pipeline(run: DoctoredRun) -> None:
    run.change("opened", lambda r: r["step"] > 2, max_staleness=4)


def in_job_json(path: str, value: Any) -> Callable[[DoctoredRun], None]:
    def change(identity: Json) -> None:
        *sections, name = path.split(".")
        part = identity["manifest"]["spec"]
        for section in sections:
            part = part[section]
        part[name] = value

    return lambda run: run.change_json("job.json", change)


for field, value, verdict in (
    ("pipeline.maxStaleness", 4, VIOLATED),
    ("pipeline.mode", "Streaming", DAMAGED),
    ("pipeline.maxAttempts", 9, VIOLATED),
    ("data.groupSize", 4, VIOLATED),
    ("data.promptsPerStep", 8, VIOLATED),
    ("reward.functions", ["exact_match"], VIOLATED),
    ("algorithm.learningRate", 1.0, VIOLATED),
    ("algorithm.dropUniformGroups", True, VIOLATED),
    ("evaluation.everySteps", 1, VIOLATED),
    ("steps", 7, UNFINISHED),
):
    DOCTORINGS[f"{field} in job.json"] = Doctoring(in_job_json(field, value), verdict, SPEC)


@expect(VIOLATED, SPEC)
def a_trainer_under_another_bound(run: DoctoredRun) -> None:
    in_config(run, "trainer", lambda spec: spec["pipeline"].update(maxStaleness=4))


@expect(VIOLATED, SPEC)
def a_reward_worker_with_another_function(run: DoctoredRun) -> None:
    in_config(run, "reward", lambda spec: spec["reward"].update(functions=["exact_match"]))


@expect(VIOLATED, SPEC)
def groups_of_another_size_than_the_specs(run: DoctoredRun) -> None:
    run.change("reserved", lambda r: r["group"] == "g20", siblings=3)
