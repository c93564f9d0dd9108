"""The spec, as ledger, user and workers have it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from doctored_run import DoctoredRun, Json

from doctorings.forging import forge_bound, forge_claim, in_config, name_true_digests, spec_in_force
from doctorings.registry import DAMAGED, DOCTORINGS, HOLDS, UNFINISHED, VIOLATED, Doctoring, expect

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


def lie_about_spec(run: DoctoredRun) -> None:
    """The claims are under another reward function, seed and rate."""

    def lie(record: Json) -> Json:
        if record["kind"] == "spec":
            record["spec"]["reward"]["functions"] = ["exact_match"]
            record["spec"]["data"]["seed"] += 1
            record["spec"]["algorithm"]["learningRate"] = 9.0
        return record

    run.change_records(lie)


@expect(VIOLATED, SPEC)
def another_spec_all_the_time_and_the_users_at_the_end(run: DoctoredRun) -> None:
    truth = spec_in_force(run)
    lie_about_spec(run)
    run.insert(run.place("finished"), truth)
    name_true_digests(run)


@expect(VIOLATED, SPEC)
def another_spec_all_the_time_and_a_last_claim_under_the_users(run: DoctoredRun) -> None:
    forge_claim(run, len(run.ledger))
    claim = run.ledger.pop()
    lie_about_spec(run)
    run.ledger.append(claim)
    run.chain()
    name_true_digests(run)


def for_a_while(run: DoctoredRun, section: str, field: str, value: Any) -> None:
    """A coordinator at work records a spec with another value, and later the one before."""
    truth = spec_in_force(run)["spec"]
    other = {**truth, section: {**truth[section], field: value}}
    for version, spec in ((2, other), (3, truth)):
        run.insert(run.place("committed", version=version) + 1, {"kind": "spec", "spec": spec})
    name_true_digests(run)


@expect(HOLDS, SPEC)
def another_number_of_reward_workers_for_a_while(run: DoctoredRun) -> None:
    """What the user may have changed, and changed back: it restarts no coordinator."""
    for_a_while(run, "reward", "replicas", 2)


@expect(VIOLATED, SPEC)
def another_learning_rate_for_a_while_without_another_coordinator(run: DoctoredRun) -> None:
    for_a_while(run, "algorithm", "learningRate", 9.0)


@expect(VIOLATED, SPEC)
def a_recorded_spec_with_a_bound_that_was_not_in_force(run: DoctoredRun) -> None:
    truth = spec_in_force(run)["spec"]
    other = {**truth, "pipeline": {**truth["pipeline"], "maxStaleness": 4}}
    run.insert(run.place("committed", version=2) + 1, {"kind": "spec", "spec": other})
    name_true_digests(run)


@expect(DAMAGED, SPEC)
def claims_without_a_spec(run: DoctoredRun) -> None:
    run.change_records(lambda r: None if r["kind"] == "spec" else r)
    name_true_digests(run)


@expect(HOLDS, SPEC)
def a_bound_of_its_own_for_one_buffer(run: DoctoredRun) -> None:
    """What the audit cannot see: the user may have changed the bound, and changed it back."""
    pipeline = next(r for _, r in run.records() if r["kind"] == "pipeline")
    other = {**pipeline, "step": 5, "max_staleness": 4}
    place = run.place("opened", step=5)
    run.change("opened", lambda r: r["step"] == 5, max_staleness=4)
    run.change("committed", lambda r: r["version"] == 6, max_staleness=4)
    run.change_manifests(lambda m: m["proposal"].update(max_staleness=4) if m["version"] == 6 else None)
    run.insert(place, other)
    run.insert(place + 2, {**pipeline, "step": 6})
    name_true_digests(run)


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
