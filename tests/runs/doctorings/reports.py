"""Rewards, evaluations, metrics and the summary."""

from __future__ import annotations

from typing import Any

from doctored_run import DoctoredRun, Json

from doctorings.forging import feed, name_digest, name_true_digests, set_in
from doctorings.registry import DAMAGED, DOCTORINGS, HOLDS, UNFINISHED, VIOLATED, Doctoring, expect

SCORES = "rewards, evaluations and reports"


@expect(VIOLATED, SCORES)
def a_reward_in_the_ledger(run: DoctoredRun) -> None:
    run.change("rewarded", lambda r: r["trajectory"] == "g5.0", reward=7.5)


@expect(VIOLATED, SCORES)
def all_rewards_in_the_ledger(run: DoctoredRun) -> None:
    run.change("rewarded", reward=1.0)


@expect(VIOLATED, SCORES)
def a_reward_that_is_missing(run: DoctoredRun) -> None:
    run.change_records(lambda r: None if r["kind"] == "rewarded" and r["trajectory"] == "g5.0" else r)


@expect(VIOLATED, SCORES)
def a_reward_in_the_trainers_log(run: DoctoredRun) -> None:
    feed(run, 1, lambda item: item.update(reward=7.5))


@expect(VIOLATED, SCORES)
def advantages_that_the_rewards_do_not_give(run: DoctoredRun) -> None:
    feed(run, 1, lambda item: item.update(advantage=3.0))


@expect(VIOLATED, SCORES)
def a_payload_digest_in_the_ledger(run: DoctoredRun) -> None:
    run.change("generated", lambda r: r["trajectory"] == "g5.0", digest="0" * 32)


@expect(VIOLATED, SCORES)
def an_evaluation_in_the_ledger(run: DoctoredRun) -> None:
    run.change("evaluated", lambda r: r["version"] == 6, sampled=0.9)


def evaluate(run: DoctoredRun, version: int, **fields: Any) -> None:
    """Let the ledger have one more evaluation, at the job's end."""
    record = next(r for _, r in run.records() if r["kind"] == "evaluated")
    run.insert(run.place("finished"), {**record, "version": version, **fields})


@expect(VIOLATED, SCORES)
def an_evaluation_of_a_version_that_does_not_exist(run: DoctoredRun) -> None:
    evaluate(run, 9)
    scores = {f"heldout_{name}_after": 0.0 for name in ("reward", "greedy")}
    run.change_json("summary.json", lambda summary: summary.update(scores))


@expect(VIOLATED, SCORES)
def an_evaluation_of_a_version_that_was_not_due(run: DoctoredRun) -> None:
    evaluate(run, 2)


@expect(VIOLATED, SCORES)
def an_evaluation_that_took_place_twice(run: DoctoredRun) -> None:
    evaluate(run, 3)


@expect(VIOLATED, SCORES)
def an_evaluation_before_its_version(run: DoctoredRun) -> None:
    moved = next(r for _, r in run.records() if (r["kind"], r.get("version")) == ("evaluated", 3))
    run.change_records(lambda r: None if r == moved else r)
    run.insert(run.place("committed", version=2) + 1, moved)
    name_true_digests(run)


@expect(VIOLATED, SCORES)
def an_evaluation_on_fewer_prompts(run: DoctoredRun) -> None:
    run.change("evaluated", lambda r: r["version"] == 6, samples=1)


@expect(VIOLATED, SCORES)
def an_evaluation_with_answers_of_versions_that_do_not_exist(run: DoctoredRun) -> None:
    run.change("evaluated", lambda r: r["version"] == 6, mixed=2, newest=8)


@expect(VIOLATED, SCORES)
def an_evaluation_in_the_metrics_file(run: DoctoredRun) -> None:
    run.change_lines("metrics.jsonl", lambda lines: set_in(lines, "heldout_sampled", 0.9))


@expect(VIOLATED, SCORES)
def an_evaluation_in_the_metrics_stream(run: DoctoredRun) -> None:
    run.change_metrics_stream(lambda lines: set_in(lines, "heldout_greedy", 0.9))


@expect(VIOLATED, SCORES)
def an_evaluation_everywhere_before_the_newest_manifest(run: DoctoredRun) -> None:
    forge_evaluation(run, 3)


@expect(HOLDS, SCORES)
def an_evaluation_everywhere_after_the_newest_manifest(run: DoctoredRun) -> None:
    """What the audit cannot see: only the coordinator knows what held-out answers were scored."""
    forge_evaluation(run, 6)
    run.change_json("summary.json", lambda summary: summary.update(heldout_reward_after=0.9))


@expect(VIOLATED, SCORES)
def an_evaluation_everywhere_and_manifests_that_name_the_first_message(run: DoctoredRun) -> None:
    for version in range(1, 7):
        name_digest(run, version, run.ledger[0].headers["Rljob-Chain"])
    forge_evaluation(run, 0)
    run.change_json("summary.json", lambda summary: summary.update(heldout_reward_before=0.9))


def forge_evaluation(run: DoctoredRun, version: int) -> None:
    """Change a version's evaluation in the ledger, the metrics and the file of metrics; the chain follows."""

    def forge(lines: list[Json]) -> None:
        set_in([line for line in lines if line["version"] == version], "heldout_sampled", 0.9)

    run.change("evaluated", lambda r: r["version"] == version, sampled=0.9)
    run.change_metrics_stream(forge)
    run.change_lines("metrics.jsonl", forge)


@expect(VIOLATED, SCORES)
def mean_rewards_in_the_metrics_file(run: DoctoredRun) -> None:
    run.change_lines("metrics.jsonl", lambda lines: set_in(lines, "reward_mean", 7.5))


@expect(VIOLATED, SCORES)
def staleness_in_the_metrics_file(run: DoctoredRun) -> None:
    def hide(lines: list[Json]) -> None:
        for line in lines:
            if line["stats"] is not None:
                line["stats"]["staleness_max"] = 0

    run.change_lines("metrics.jsonl", hide)


for field, value in (
    ("exit", "Failed"),
    ("exit", "Done"),
    ("exit", None),
    ("steps", 60),
    ("staleness_max", 0),
    ("mode", "Synchronous"),
    ("max_staleness", 1),
    ("heldout_reward_before", 0.9),
    ("heldout_reward_after", 0.9),
    ("heldout_greedy_after", 0.9),
    ("trajectories", {"planned": 48, "generated": 48, "consumed": 40, "aborted": {}}),
    ("trajectories", {"planned": 60, "generated": 48, "consumed": 48, "aborted": {}}),
    ("trajectories", {"planned": 48, "generated": 99, "consumed": 48, "aborted": {}}),
    ("trajectories", {"planned": 48, "generated": 48, "consumed": 48, "aborted": {"UniformGroup": 2}}),
    ("coordinator_epochs", 9),
    ("coordinator_epochs", 0),
    ("trainer_attempts", 5),
    ("attempts_failed", {"RewardRaised": 3}),
    ("heldout_mixed_before", 3),
    ("heldout_mixed_after", 3),
    ("staleness_mean", 0.0),
    ("steps_planned", 60),
):

    def lie(run: DoctoredRun, field: str = field, value: Any = value) -> None:
        run.change_json("summary.json", lambda summary: summary.update({field: value}))

    DOCTORINGS[f"{field} in summary.json: {value}"] = Doctoring(lie, VIOLATED, SCORES)


for end in ("Running", "Interrupted"):

    def hide(run: DoctoredRun, end: str = end) -> None:
        run.change_json("summary.json", lambda summary: summary.update(exit=end))

    DOCTORINGS[f"exit in summary.json: {end}, though the job has ended"] = Doctoring(hide, DAMAGED, SCORES)


@expect(UNFINISHED, SCORES)
def a_summary_of_more_than_an_open_ledger_has(run: DoctoredRun) -> None:
    run.cut(run.place("finished"))
    more = {"exit": "Interrupted", "coordinator_epochs": 3, "trainer_attempts": 2}
    run.change_json("summary.json", lambda summary: summary.update(more))
