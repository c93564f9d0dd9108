"""What was done to each copy of a finished run, and the claim of the audit that must see it.

The run has 6 steps of 4 groups of 2, maxStaleness 2, and evaluations of versions 0, 3 and 6. What the ledger's own
records contradict is in tests/cli/test_audit.py; here is what depends on how the evidence is stored and read.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from doctored_run import DoctoredRun, Json

from rljob_core.ports import Channel

HOLDS, VIOLATED, UNFINISHED, DAMAGED = "holds", "violated", "unfinished", "damaged"
Doctor = Callable[[DoctoredRun], Any]
HALF = 3
"""The version up to which a ledger that was cut in half goes."""


@dataclass(frozen=True)
class Doctoring:
    """One way to doctor a copy; the verdict of the audit, and the claim that has a violation of that verdict."""

    apply: Doctor
    verdict: str
    claim: str = ""


DOCTORINGS: dict[str, Doctoring] = {}


def expect(verdict: str, claim: str = "") -> Callable[[Doctor], Doctor]:
    def register(apply: Doctor) -> Doctor:
        DOCTORINGS[apply.__name__] = Doctoring(apply, verdict, claim)
        return apply

    return register


# ---------------------------------------------------------------------------------------------- no claim depends on it


@expect(HOLDS)
def nothing(run: DoctoredRun) -> None:
    pass


@expect(HOLDS)
def a_claim_at_the_end_that_wrote_nothing(run: DoctoredRun) -> None:
    forge_claim(run, len(run.ledger))


@expect(HOLDS)
def a_message_of_a_writer_that_was_replaced(run: DoctoredRun) -> None:
    writer = json.loads(run.ledger[-1].data)["writer"]
    forge_claim(run, len(run.ledger))
    abort = {"group": "g0", "reason": "ZombieWasHere", "causes": {}, "kind": "aborted"}
    run.insert(len(run.ledger), abort, writer=writer)


@expect(HOLDS)
def a_message_that_follows_a_lost_one(run: DoctoredRun) -> None:
    headers = {"Rljob-After": "lost", "Rljob-Chain": "0" * 32, "Nats-Msg-Id": "astray"}
    run.ledger.append(replace(run.ledger[-1], headers=headers))


@expect(HOLDS)
def a_patch_that_no_coordinator_has_taken_over(run: DoctoredRun) -> None:
    def patch(identity: Json) -> None:
        identity["manifest"]["spec"]["pipeline"]["maxStaleness"] = 4
        identity["patches"] = ["spec.pipeline.maxStaleness=4"]

    run.change_json("job.json", patch)


@expect(HOLDS)
def a_line_of_the_trainer_that_was_cut_short(run: DoctoredRun) -> None:
    (file,) = run.folder.glob("trainer/*.jsonl")
    file.write_bytes(file.read_bytes() + b'{"step": 6, "micro')


@expect(HOLDS)
def no_summary(run: DoctoredRun) -> None:
    (run.folder / "summary.json").unlink()


@expect(HOLDS)
def no_metrics(run: DoctoredRun) -> None:
    (run.folder / "metrics.jsonl").unlink()


def forge_claim(run: DoctoredRun, place: int) -> None:
    records = [record for _, record in run.records()]
    job = next(record["job"] for record in records if record["kind"] == "epoch")
    spec = next(record for record in records if record["kind"] == "spec")
    writer = {"number": 90_000_001, "instance": "forger"}
    run.insert(place, {**writer, "job": job, "kind": "epoch"}, spec, writer=writer, suffix="claim")


# ---------------------------------------------------------------------------------------------- the ledger's end


def cut_in_half(run: DoctoredRun) -> None:
    run.cut(run.place("committed", version=HALF) + 1)


@expect(UNFINISHED, "sources")
def the_ledger_cut_in_half(run: DoctoredRun) -> None:
    cut_in_half(run)


@expect(UNFINISHED, "sources")
def the_ledger_without_its_newest_commit(run: DoctoredRun) -> None:
    run.cut(run.place("committed", version=6))


@expect(UNFINISHED, "summary")
def the_ledger_without_the_jobs_end(run: DoctoredRun) -> None:
    run.cut(run.place("finished"))


@expect(UNFINISHED, "summary")
def a_summary_of_more_than_an_open_ledger_has(run: DoctoredRun) -> None:
    run.cut(run.place("finished"))
    more = {"exit": "Interrupted", "coordinator_epochs": 3, "trainer_attempts": 2}
    run.change_json("summary.json", lambda summary: summary.update(more))


@expect(VIOLATED, "trained-rewards")
def cut_and_advantages_that_the_rewards_do_not_give(run: DoctoredRun) -> None:
    cut_in_half(run)
    feed(run, 4, lambda item: item.update(advantage=3.0))


@expect(VIOLATED, "prompts")
def cut_and_an_answer_to_another_prompt(run: DoctoredRun) -> None:
    cut_in_half(run)
    feed(run, 5, lambda item: item.update(prompt=0))


# ---------------------------------------------------------------------------------------------- gone, or not readable


@expect(DAMAGED, "sources")
def no_ledger(run: DoctoredRun) -> None:
    run.ledger.clear()


@expect(DAMAGED, "sources")
def the_header_of_one_message_altered(run: DoctoredRun) -> None:
    place = run.place("committed", version=HALF)
    message = run.ledger[place]
    run.ledger[place] = replace(message, headers={**message.headers, "Rljob-After": "another"})


@expect(DAMAGED, "sources")
def a_message_gone_from_the_middle(run: DoctoredRun) -> None:
    run.deleted.append(len(run.ledger) // 2)


@expect(DAMAGED, "sources")
def a_message_that_does_not_read(run: DoctoredRun) -> None:
    run.ledger[-1] = replace(run.ledger[-1], data=b"{")


@expect(DAMAGED, "sources")
def the_ledger_of_another_job(run: DoctoredRun) -> None:
    run.change_json("job.json", lambda identity: identity.update(uid="another"))


@expect(DAMAGED, "manifests")
def a_manifest_is_gone(run: DoctoredRun) -> None:
    sorted(run.folder.glob("weights/*/manifest.json"))[2].unlink()


@expect(DAMAGED, "manifests")
def a_manifest_altered(run: DoctoredRun) -> None:
    file = sorted(run.folder.glob("weights/*/manifest.json"))[2]
    file.write_text(file.read_text().replace('"random_state"', '"random_state" ').replace("a1-", "a2-"))


@expect(DAMAGED, "manifests")
def a_manifest_that_does_not_read(run: DoctoredRun) -> None:
    sorted(run.folder.glob("weights/*/manifest.json"))[2].write_text("{")


@expect(DAMAGED, "same-batches")
def the_trainers_log_is_gone(run: DoctoredRun) -> None:
    for file in run.folder.glob("trainer/*.jsonl"):
        file.unlink()


@expect(DAMAGED, "same-batches")
def the_trainers_log_is_cut(run: DoctoredRun) -> None:
    run.change_lines("trainer/*.jsonl", lambda lines: lines.pop())


@expect(DAMAGED, "sources")
def the_trainers_log_without_the_advantages_of_a_step(run: DoctoredRun) -> None:
    feed(run, 3, lambda item: item.pop("advantage"))


@expect(DAMAGED, "sources")
def the_trainers_log_without_prompts(run: DoctoredRun) -> None:
    for step in range(6):
        feed(run, step, lambda item: item.pop("prompt"))


@expect(VIOLATED, "trained-rewards")
def advantages_that_the_rewards_do_not_give(run: DoctoredRun) -> None:
    feed(run, 1, lambda item: item.update(advantage=3.0))


@expect(VIOLATED, "same-batches")
def a_micro_batch_of_another_number_in_the_trainers_log(run: DoctoredRun) -> None:
    run.change_lines("trainer/*.jsonl", lambda lines: lines[-1].update(micro_batch=7))


@expect(DAMAGED, "sources")
def a_line_of_the_trainer_that_does_not_read(run: DoctoredRun) -> None:
    (file,) = run.folder.glob("trainer/*.jsonl")
    file.write_text(file.read_text() + "{}\n")


@expect(DAMAGED, "sources")
def a_summary_that_does_not_read(run: DoctoredRun) -> None:
    (run.folder / "summary.json").write_text("{")


@expect(DAMAGED, "sources")
def metrics_that_do_not_read(run: DoctoredRun) -> None:
    (run.folder / "metrics.jsonl").write_text("{}\n")


def feed(run: DoctoredRun, step: int, change: Callable[[Json], Any]) -> None:
    """Change what the trainer's log says of the trajectories of a step."""

    def lines(found: list[Json]) -> None:
        for line in found:
            if line["step"] == step:
                for item in line["items"]:
                    change(item)

    run.change_lines("trainer/*.jsonl", lines)


# ---------------------------------------------------------------------------------------------- the chain of digests


@expect(DAMAGED, "unaltered")
def records_altered_in_place(run: DoctoredRun) -> None:
    run.change("dispatched", chained=False, engine="another")


@expect(VIOLATED, "unaltered")
def records_altered_and_the_chain_repaired(run: DoctoredRun) -> None:
    run.change("dispatched", engine="another")


@expect(VIOLATED, "unaltered")
def the_chain_of_digests_removed(run: DoctoredRun) -> None:
    for place, message in enumerate(run.ledger):
        headers = {name: value for name, value in message.headers.items() if name != "Rljob-Chain"}
        run.ledger[place] = replace(message, headers=headers)


@expect(VIOLATED, "unaltered")
def a_newer_epoch_slipped_in(run: DoctoredRun) -> None:
    forge_claim(run, run.place("committed", version=HALF))


# ---------------------------------------------------------------------------------------------- the spec


def in_job_json(path: str, value: Any) -> Doctor:
    def change(identity: Json) -> None:
        *sections, name = path.split(".")
        part = identity["manifest"]["spec"]
        for section in sections:
            part = part[section]
        part[name] = value

    return lambda run: run.change_json("job.json", change)


for field, value, verdict, claim in (
    ("pipeline.maxStaleness", 4, VIOLATED, "specs"),
    ("pipeline.mode", "Streaming", DAMAGED, "sources"),
    ("reward.functions", ["exact_match"], VIOLATED, "specs"),
    ("data.dataset", "leg_counting", VIOLATED, "specs"),
    ("evaluation.everySteps", 1, VIOLATED, "specs"),
    ("steps", 7, UNFINISHED, "specs"),
):
    DOCTORINGS[f"{field} in job.json"] = Doctoring(in_job_json(field, value), verdict, claim)


@expect(VIOLATED, "specs")
def a_reward_worker_with_another_function(run: DoctoredRun) -> None:
    in_config(run, "reward", lambda spec: spec["reward"].update(functions=["exact_match"]))


@expect(VIOLATED, "specs")
def an_engine_with_another_temperature(run: DoctoredRun) -> None:
    in_config(run, "rollout", lambda spec: spec["rollout"]["sampling"].update(temperature=0.5))


def in_config(run: DoctoredRun, role: str, change: Callable[[Json], Any]) -> None:
    (pod,) = [p.parts[-4] for p in run.folder.glob(f"pods/*-{role}-*/volumes/config/config.json")]
    run.change_json(f"pods/{pod}/volumes/config/config.json", lambda config: change(config["spec"]))


# ---------------------------------------------------------------------------------------------- evaluations, metrics


@expect(VIOLATED, "evaluations")
def an_evaluation_in_the_ledger(run: DoctoredRun) -> None:
    run.change("evaluated", lambda r: r["version"] == 6, sampled=0.9)


@expect(VIOLATED, "evaluations")
def an_evaluation_on_fewer_prompts(run: DoctoredRun) -> None:
    run.change("evaluated", lambda r: r["version"] == 6, samples=1)


@expect(VIOLATED, "evaluations")
def an_evaluation_with_answers_of_versions_that_do_not_exist(run: DoctoredRun) -> None:
    run.change("evaluated", lambda r: r["version"] == 6, mixed=2, newest=8)


for what, version in (("of no version", 9), ("that was not due", 2), ("that took place twice", 3)):

    def evaluate(run: DoctoredRun, version: int = version) -> None:
        record = next(r for _, r in run.records() if r["kind"] == "evaluated")
        run.insert(run.place("finished"), {**record, "version": version})

    DOCTORINGS[f"an evaluation {what}, in the ledger"] = Doctoring(evaluate, VIOLATED, "evaluations")


@expect(VIOLATED, "evaluations")
def an_evaluation_before_its_version(run: DoctoredRun) -> None:
    moved = next(r for _, r in run.records() if (r["kind"], r.get("version")) == ("evaluated", 3))
    run.change_records(lambda r: None if r == moved else r)
    run.insert(run.place("committed", version=2) + 1, moved)


@expect(VIOLATED, "unaltered")
def an_evaluation_everywhere_before_the_newest_manifest(run: DoctoredRun) -> None:
    forge_evaluation(run, 3)


@expect(HOLDS)
def an_evaluation_everywhere_after_the_newest_manifest(run: DoctoredRun) -> None:
    """What the audit cannot see: only the coordinator knows what held-out answers were scored."""
    forge_evaluation(run, 6)
    run.change_json("summary.json", lambda summary: summary.update(heldout_reward_after=0.9))


def forge_evaluation(run: DoctoredRun, version: int) -> None:
    """Change a version's evaluation in the ledger, the metrics and the file of metrics; the chain follows."""

    def forge(lines: list[Json]) -> None:
        set_in([line for line in lines if line["version"] == version], "heldout_sampled", 0.9)

    run.change("evaluated", lambda r: r["version"] == version, sampled=0.9)
    run.change_metrics_stream(forge)
    run.change_lines("metrics.jsonl", forge)


def set_in(lines: list[Json], field: str, value: float) -> None:
    """Set a field in every line that has it."""
    for line in lines:
        if line.get(field) is not None:
            line[field] = value


@expect(VIOLATED, "evaluations")
def an_evaluation_in_the_metrics_stream(run: DoctoredRun) -> None:
    run.change_metrics_stream(lambda lines: set_in(lines, "heldout_greedy", 0.9))


@expect(VIOLATED, "evaluations")
def mean_rewards_in_the_metrics_file(run: DoctoredRun) -> None:
    run.change_lines("metrics.jsonl", lambda lines: set_in(lines, "reward_mean", 7.5))


def of_step(lines: list[Json], **changes: Any) -> Json:
    """A second line of step 3."""
    return changed(lambda line: line["version"] == 3 and line["reward_mean"] is not None, lines, changes)


def of_evaluation(lines: list[Json], **changes: Any) -> Json:
    """A second line of the first evaluation."""
    return changed(lambda line: line["heldout_sampled"] is not None, lines, changes)


def changed(which: Callable[[Json], bool], lines: list[Json], changes: Json) -> Json:
    line: Json = json.loads(json.dumps(next(filter(which, lines))))
    stats = changes.pop("stats", {})
    if stats:
        line["stats"] |= stats
    return line | changes


INVENTED: dict[str, Callable[[list[Json]], Json]] = {
    "a second line of a step": lambda lines: of_step(lines, reward_mean=0.9),
    "a second line of a step, with other lengths": lambda lines: of_step(lines, response_tokens_mean=5.5),
    "a second line of a step, with no staleness": lambda lines: of_step(
        lines, stats={"staleness_mean": 0.0, "staleness_max": 0}
    ),
    "a step that was never made": lambda lines: of_step(lines, version=9, step=9),
    "a second evaluation": lambda lines: of_evaluation(lines, heldout_sampled=0.9),
    "an evaluation of mixed versions": lambda lines: of_evaluation(lines, heldout_mixed=3, heldout_newest=2),
    "an evaluation that was not due": lambda lines: of_evaluation(lines, version=2, step=2),
    "an evaluation of no version": lambda lines: of_evaluation(lines, version=9, step=9),
    "another end": lambda lines: {**lines[-1], "finished": "Failed"},
}
for what, make in INVENTED.items():

    def invent(run: DoctoredRun, make: Callable[[list[Json]], Json] = make) -> None:
        run.change_lines("metrics.jsonl", lambda lines: lines.insert(5, make(lines)))

    DOCTORINGS[f"{what}, in metrics.jsonl"] = Doctoring(invent, VIOLATED, "evaluations")


def of_all(lines: list[Json], field: str, value: Any) -> None:
    """Set a field of each line of a step; `a.b`: below another one."""
    *sections, name = field.split(".")
    for line in lines:
        if line["reward_mean"] is not None:
            part = line
            for section in sections:
                part = part[section]
            part[name] = value


WHOLE_JOB: dict[str, Any] = {
    "trajectories.planned": 400,
    "trajectories.consumed": 1,
    "aborted.PromptExhausted": 3,
    "attempts_failed.EngineLost": 2,
    "trainer_attempt": 3,
    "epoch": 4,
    "writer": 9_000_001,
    "pipeline.max_staleness": 8,
    "stats.staleness_max": 7,
}
for field, value in WHOLE_JOB.items():

    def in_stream(run: DoctoredRun, field: str = field, value: Any = value) -> None:
        run.change_metrics_stream(lambda lines: of_all(lines, field, value))

    def in_file(run: DoctoredRun, field: str = field, value: Any = value) -> None:
        run.change_lines("metrics.jsonl", lambda lines: of_all(lines, field, value))

    DOCTORINGS[f"{field} in the metrics stream"] = Doctoring(in_stream, VIOLATED, "evaluations")
    DOCTORINGS[f"{field} in metrics.jsonl"] = Doctoring(in_file, VIOLATED, "evaluations")


@expect(DAMAGED, "evaluations")
def a_loss_in_metrics_jsonl_that_the_stream_does_not_have(run: DoctoredRun) -> None:
    run.change_lines("metrics.jsonl", lambda lines: of_all(lines, "stats.loss", 0.125))


@expect(VIOLATED, "evaluations")
def other_rewards_and_a_rollback_that_hides_them(run: DoctoredRun) -> None:
    def forge(lines: list[Json]) -> None:
        of_all(lines, "reward_mean", 0.9)
        gone_back = {
            "version": 0,
            "step": 0,
            "gone_back": True,
            "finished": "",
            "reward_mean": None,
            "stats": None,
        }
        lines.append({**lines[-1], **gone_back})

    run.change_lines("metrics.jsonl", forge)


@expect(DAMAGED, "sources")
def counts_in_lines_of_no_writer(run: DoctoredRun) -> None:
    def forge(lines: list[Json]) -> None:
        of_all(lines, "trajectories.planned", 9)
        of_all(lines, "writer", 0)

    run.change_metrics_stream(forge)
    run.change_lines("metrics.jsonl", forge)


@expect(VIOLATED, "versions")
def an_announcement_after_the_end(run: DoctoredRun) -> None:
    announce(run, version=7, key="v7-a1", manifest="0" * 32)


@expect(VIOLATED, "versions")
def an_announcement_of_a_foreign_manifest(run: DoctoredRun) -> None:
    announce(run, manifest="0" * 32)


@expect(DAMAGED, "versions")
def a_version_that_only_its_announcement_knows(run: DoctoredRun) -> None:
    run.cut(run.place("finished"))
    announce(run, version=7, key="v7-a1", manifest="0" * 32)


@expect(DAMAGED, "sources")
def an_announcement_that_does_not_read(run: DoctoredRun) -> None:
    announce(run, version="none")


def announce(run: DoctoredRun, **changes: Any) -> None:
    (message,) = run.streams[Channel.VERSIONS]
    said = json.dumps({**json.loads(message.data), **changes})
    run.streams[Channel.VERSIONS] = [replace(message, data=said.encode())]


for name, value in {"NaN": float("nan"), "Infinity": float("inf"), "1e300": 1e300}.items():

    def score(run: DoctoredRun, value: float = value) -> None:
        run.change("rewarded", lambda r: r["trajectory"] == "g3.0", reward=value)

    DOCTORINGS[f"a reward of {name} in the ledger"] = Doctoring(score, DAMAGED, "sources")


@expect(DAMAGED, "sources")
def a_group_whose_name_is_none(run: DoctoredRun) -> None:
    run.change("reserved", lambda r: r["group"] == "g3", group="x.y.z")


@expect(DAMAGED, "sources")
def a_spec_that_is_none(run: DoctoredRun) -> None:
    run.change("spec", spec={})


@expect(VIOLATED, "digests")
def one_payload_under_two_ids(run: DoctoredRun) -> None:
    first = next(r for _, r in run.records() if (r["kind"], r.get("trajectory")) == ("generated", "g3.0"))
    run.change("generated", lambda r: r["trajectory"] == "g4.0", digest=first["digest"])


@expect(VIOLATED, "evaluations")
def another_end_in_the_metrics_stream(run: DoctoredRun) -> None:
    messages = run.streams[Channel.METRICS]
    line = INVENTED["another end"]([json.loads(message.data) for message in messages])
    headers = {**messages[0].headers, "Nats-Msg-Id": "invented"}
    messages.insert(5, replace(messages[0], data=json.dumps(line).encode(), headers=headers))


# ---------------------------------------------------------------------------------------------- summary.json

for field, value, verdict in (
    ("exit", "Failed", VIOLATED),
    ("exit", None, VIOLATED),
    ("exit", "Running", DAMAGED),
    ("steps", 60, VIOLATED),
    ("steps_planned", 60, VIOLATED),
    ("staleness_max", 0, VIOLATED),
    ("staleness_mean", 0.0, VIOLATED),
    ("mode", "Synchronous", VIOLATED),
    ("max_staleness", 1, VIOLATED),
    ("heldout_reward_before", 0.9, VIOLATED),
    ("heldout_reward_after", 0.9, VIOLATED),
    ("heldout_greedy_after", 0.9, VIOLATED),
    ("heldout_mixed_after", 3, VIOLATED),
    ("trajectories", {"planned": 60, "generated": 48, "consumed": 48, "aborted": {}}, VIOLATED),
    ("trajectories", {"planned": 48, "generated": 99, "consumed": 48, "aborted": {}}, VIOLATED),
    ("trajectories", {"planned": 48, "generated": 48, "consumed": 40, "aborted": {}}, VIOLATED),
    ("trajectories", {"planned": 48, "generated": 48, "consumed": 48, "aborted": {"Any": 2}}, VIOLATED),
    ("coordinator_epochs", 9, VIOLATED),
    ("coordinator_epochs", 0, VIOLATED),
    ("trainer_attempts", 5, VIOLATED),
    ("attempts_failed", {"RewardRaised": 3}, VIOLATED),
    ("message", "it went well", VIOLATED),
):

    def lie(run: DoctoredRun, field: str = field, value: Any = value) -> None:
        run.change_json("summary.json", lambda summary: summary.update({field: value}))

    DOCTORINGS[f"{field} in summary.json: {value}"] = Doctoring(lie, verdict, "summary")
