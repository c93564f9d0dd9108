"""What was done to each copy of a finished run, and what the audit must say of it.

The run has 6 steps of 4 groups of 2, maxStaleness 2, and evaluations of versions 0, 3 and 6.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from doctored_run import DoctoredRun, Json

HOLDS, VIOLATED, UNFINISHED, DAMAGED = "holds", "violated", "unfinished", "damaged"
HALF = 3
"""The version up to which a ledger that was cut in half goes."""


@dataclass(frozen=True)
class Doctoring:
    """One way to doctor a copy.

    Attributes:
        verdict: what the audit must conclude.
        what: the part of the run that was altered, for the table in docs/audit.md.
    """

    apply: Callable[[DoctoredRun], Any]
    verdict: str
    what: str


DOCTORINGS: dict[str, Doctoring] = {}


def expect(verdict: str, what: str) -> Callable[[Callable[[DoctoredRun], Any]], Callable[[DoctoredRun], Any]]:
    def register(apply: Callable[[DoctoredRun], Any]) -> Callable[[DoctoredRun], Any]:
        DOCTORINGS[apply.__name__] = Doctoring(apply, verdict, what)
        return apply

    return register


# --------------------------------------------------------------------------------------------- nothing that matters

NOTHING = "what no claim depends on"


@expect(HOLDS, NOTHING)
def nothing(run: DoctoredRun) -> None:
    pass


@expect(HOLDS, NOTHING)
def a_claim_at_the_end_that_wrote_nothing(run: DoctoredRun) -> None:
    forge_claim(run, len(run.ledger))


@expect(HOLDS, NOTHING)
def a_message_of_a_writer_that_was_replaced(run: DoctoredRun) -> None:
    writer = json.loads(run.ledger[-1].data)["writer"]
    forge_claim(run, len(run.ledger))
    abort = {"group": "g0", "reason": "ZombieWasHere", "causes": {}, "kind": "aborted"}
    run.insert(len(run.ledger), abort, writer=writer)


@expect(HOLDS, NOTHING)
def a_message_that_follows_a_lost_one(run: DoctoredRun) -> None:
    last = run.ledger[-1]
    headers = {"Rljob-After": "lost", "Rljob-Chain": "0" * 32, "Nats-Msg-Id": "astray"}
    run.ledger.append(replace(last, headers=headers))


@expect(HOLDS, NOTHING)
def a_patch_that_no_coordinator_has_taken_over(run: DoctoredRun) -> None:
    def patch(identity: Json) -> None:
        identity["manifest"]["spec"]["pipeline"]["maxStaleness"] = 4
        identity["patches"] = ["spec.pipeline.maxStaleness=4"]

    run.change_json("job.json", patch)


@expect(HOLDS, NOTHING)
def a_line_of_the_trainer_that_was_cut_short(run: DoctoredRun) -> None:
    (file,) = run.folder.glob("trainer/*.jsonl")
    file.write_bytes(file.read_bytes() + b'{"step": 6, "micro')


@expect(HOLDS, NOTHING)
def no_summary(run: DoctoredRun) -> None:
    (run.folder / "summary.json").unlink()


@expect(HOLDS, NOTHING)
def no_metrics(run: DoctoredRun) -> None:
    (run.folder / "metrics.jsonl").unlink()


# --------------------------------------------------------------------------------------------- the ledger's end

END = "the ledger's end"


@expect(UNFINISHED, END)
def the_ledger_cut_in_half(run: DoctoredRun) -> None:
    cut_in_half(run)


@expect(UNFINISHED, END)
def the_ledger_without_its_newest_commit(run: DoctoredRun) -> None:
    run.cut(run.place("committed", version=6))


@expect(UNFINISHED, END)
def the_ledger_without_the_jobs_end(run: DoctoredRun) -> None:
    run.cut(run.place("finished"))


@expect(DAMAGED, END)
def no_ledger(run: DoctoredRun) -> None:
    run.ledger.clear()


@expect(DAMAGED, END)
def the_header_of_one_message_altered(run: DoctoredRun) -> None:
    place = run.place("committed", version=HALF)
    message = run.ledger[place]
    run.ledger[place] = replace(message, headers={**message.headers, "Rljob-After": "another"})


@expect(VIOLATED, END)
def a_newer_epoch_slipped_in(run: DoctoredRun) -> None:
    forge_claim(run, run.place("committed", version=HALF))


@expect(VIOLATED, END)
def cut_and_trained_twice_by_the_trainers_log(run: DoctoredRun) -> None:
    cut_in_half(run)
    feed(run, 5, lambda item: item.update(trajectory=item["trajectory"].replace("g20.", "g0.")))


@expect(VIOLATED, END)
def cut_and_trained_twice_by_all_that_is_left(run: DoctoredRun) -> None:
    cut_in_half(run)
    twice_in_manifests(run, ledger=False)
    feed(run, 5, lambda item: item.update(trajectory=item["trajectory"].replace("g20.", "g0.")))


@expect(VIOLATED, END)
def cut_and_past_the_bound(run: DoctoredRun) -> None:
    cut_in_half(run)
    feed(run, 5, lambda item: item.update(span={"min": 1, "max": 5}))


@expect(VIOLATED, END)
def cut_and_past_the_bound_under_a_forged_one(run: DoctoredRun) -> None:
    cut_in_half(run)
    feed(run, 5, lambda item: item.update(span={"min": 1, "max": 5}))
    run.change_manifests(lambda m: m["proposal"].update(max_staleness=4) if m["version"] == 6 else None)


@expect(VIOLATED, END)
def cut_and_a_version_under_a_forged_bound(run: DoctoredRun) -> None:
    cut_in_half(run)
    feed(run, 4, lambda item: item.update(span={"min": 0, "max": 4}))
    run.change_manifests(lambda m: m["proposal"].update(max_staleness=4) if m["version"] == 5 else None)


@expect(VIOLATED, END)
def cut_and_ended_there(run: DoctoredRun) -> None:
    cut_in_half(run)
    run.insert(len(run.ledger), {"outcome": "Succeeded", "message": "", "kind": "finished"})


@expect(DAMAGED, END)
def cut_with_the_manifests_after_it(run: DoctoredRun) -> None:
    cut_in_half(run)
    for file in run.folder.glob("weights/*/manifest.json"):
        if json.loads(file.read_text())["version"] > HALF:
            file.unlink()


# --------------------------------------------------------------------------------------------- trained twice, too stale

FATES = "what was trained, when"


@expect(VIOLATED, FATES)
def twice_in_the_ledger(run: DoctoredRun) -> None:
    run.change("committed", lambda r: r["version"] == 6, micro_batches=[batch_with(run, "g0")])


@expect(VIOLATED, FATES)
def twice_in_ledger_and_manifests(run: DoctoredRun) -> None:
    run.change("committed", lambda r: r["version"] == 6, micro_batches=[batch_with(run, "g0")])
    twice_in_manifests(run)


@expect(VIOLATED, FATES)
def twice_in_the_manifests(run: DoctoredRun) -> None:
    twice_in_manifests(run)


@expect(VIOLATED, FATES)
def twice_in_the_trainers_log(run: DoctoredRun) -> None:
    run.change_lines("trainer/*.jsonl", lambda lines: lines.append(lines[-1]))


@expect(VIOLATED, FATES)
def fed_again_in_another_step(run: DoctoredRun) -> None:
    feed(run, 5, lambda item: item.update(trajectory=item["trajectory"].replace("g20.", "g0.")))


@expect(VIOLATED, FATES)
def too_stale_in_the_ledger(run: DoctoredRun) -> None:
    run.change("generated", lambda r: r["trajectory"] == "g20.0", span={"min": 1, "max": 5})


@expect(VIOLATED, FATES)
def too_stale_by_the_payload(run: DoctoredRun) -> None:
    feed(run, 5, lambda item: item.update(span={"min": 1, "max": 5}))


@expect(VIOLATED, FATES)
def consumed_and_aborted(run: DoctoredRun) -> None:
    abort = {"group": "g20", "reason": "UniformGroup", "causes": {}, "kind": "aborted"}
    run.insert(run.place("finished"), abort)


@expect(VIOLATED, FATES)
def aborted_without_a_reason(run: DoctoredRun) -> None:
    drop_group(run, "g20", {"group": "g20", "reason": "", "causes": {}, "kind": "aborted"})


@expect(VIOLATED, FATES)
def a_group_that_vanished(run: DoctoredRun) -> None:
    drop_group(run, "g20")


@expect(VIOLATED, FATES)
def a_sibling_left_out(run: DoctoredRun) -> None:
    run.change("committed", lambda r: r["version"] == 6, micro_batches=[batch_with(run, "g20")[:-1]])


@expect(VIOLATED, FATES)
def a_version_that_was_left_out(run: DoctoredRun) -> None:
    run.change_records(lambda r: None if (r["kind"], r.get("version")) == ("committed", 4) else r)


@expect(VIOLATED, FATES)
def a_commit_of_a_gang_that_was_not_in_charge(run: DoctoredRun) -> None:
    run.change("committed", lambda r: r["version"] == 4, attempt=7)


@expect(VIOLATED, FATES)
def a_buffer_opened_too_early(run: DoctoredRun) -> None:
    last = run.place("opened", step=5)
    record = next(
        r for place, r in run.records() if place == last and r["kind"] == "opened" and r["step"] == 5
    )
    run.change_records(lambda r: None if r == record else r)
    run.insert(run.place("opened", step=2) + 1, record)


@expect(VIOLATED, FATES)
def micro_batches_in_another_order(run: DoctoredRun) -> None:
    run.change("committed", lambda r: r["version"] == 2, micro_batches=[reordered(run, 2)])


# --------------------------------------------------------------------------------------------- evidence destroyed

GONE = "evidence that is gone or does not read"


@expect(DAMAGED, GONE)
def a_manifest_is_gone(run: DoctoredRun) -> None:
    sorted(run.folder.glob("weights/*/manifest.json"))[2].unlink()


@expect(DAMAGED, GONE)
def a_manifest_altered(run: DoctoredRun) -> None:
    file = sorted(run.folder.glob("weights/*/manifest.json"))[2]
    file.write_text(file.read_text().replace('"random_state"', '"random_state" ').replace("a1-", "a2-"))


@expect(DAMAGED, GONE)
def a_manifest_that_does_not_read(run: DoctoredRun) -> None:
    sorted(run.folder.glob("weights/*/manifest.json"))[2].write_text("{")


@expect(DAMAGED, GONE)
def the_trainers_log_is_gone(run: DoctoredRun) -> None:
    for file in run.folder.glob("trainer/*.jsonl"):
        file.unlink()


@expect(DAMAGED, GONE)
def the_trainers_log_is_empty(run: DoctoredRun) -> None:
    for file in run.folder.glob("trainer/*.jsonl"):
        file.write_text("")


@expect(VIOLATED, GONE)
def the_trainers_log_lacks_half_a_step(run: DoctoredRun) -> None:
    feed(run, 5, lambda item: None, keep=lambda item: not item["trajectory"].startswith("g20."))


@expect(DAMAGED, GONE)
def a_line_of_the_trainer_that_does_not_read(run: DoctoredRun) -> None:
    (file,) = run.folder.glob("trainer/*.jsonl")
    file.write_text(file.read_text() + "{}\n")


@expect(DAMAGED, GONE)
def a_message_gone_from_the_middle(run: DoctoredRun) -> None:
    run.deleted.append(len(run.ledger) // 2)


@expect(DAMAGED, GONE)
def a_message_that_does_not_read(run: DoctoredRun) -> None:
    run.ledger[-1] = replace(run.ledger[-1], data=b"{")


@expect(DAMAGED, GONE)
def a_summary_that_does_not_read(run: DoctoredRun) -> None:
    (run.folder / "summary.json").write_text("{")


@expect(DAMAGED, GONE)
def metrics_that_do_not_read(run: DoctoredRun) -> None:
    (run.folder / "metrics.jsonl").write_text("{}\n")


@expect(DAMAGED, GONE)
def the_ledger_of_another_job(run: DoctoredRun) -> None:
    run.change_json("job.json", lambda identity: identity.update(uid="another"))


@expect(DAMAGED, GONE)
def records_altered_in_place(run: DoctoredRun) -> None:
    run.change_records(
        lambda r: {**r, "engine": "another"} if r["kind"] == "dispatched" else r, chained=False
    )


@expect(VIOLATED, GONE)
def records_altered_and_the_chain_repaired(run: DoctoredRun) -> None:
    run.change("dispatched", engine="another")


@expect(VIOLATED, GONE)
def the_chain_of_digests_removed(run: DoctoredRun) -> None:
    for place, message in enumerate(run.ledger):
        headers = {name: value for name, value in message.headers.items() if name != "Rljob-Chain"}
        run.ledger[place] = replace(message, headers=headers)


# --------------------------------------------------------------------------------------------- the spec

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


# --------------------------------------------------------------------------------------------- prompts

PROMPTS = "prompts"


@expect(VIOLATED, PROMPTS)
def every_second_prompt_skipped(run: DoctoredRun) -> None:
    run.rename({f"g{n}": f"g{2 * n}" for n in range(24)})

    def double(record: Json) -> Json:
        return {**record, "prompt": 2 * record["prompt"]} if record["kind"] == "reserved" else record

    run.change_records(double)
    run.change_manifests(
        lambda m: m["proposal"].update(micro_batches=doubled(m["proposal"]["micro_batches"]))
    )
    for step in range(6):
        feed(run, step, lambda item: item.update(prompt=2 * item["prompt"]))


@expect(VIOLATED, PROMPTS)
def one_prompt_under_two_groups(run: DoctoredRun) -> None:
    run.change("reserved", lambda r: r["group"] == "g9", prompt=8)


@expect(VIOLATED, PROMPTS)
def prompts_out_of_order(run: DoctoredRun) -> None:
    swap = {"g8": "g9", "g9": "g8"}

    def swapped(record: Json) -> Json:
        if record["kind"] == "reserved" and record["group"] in swap:
            group = swap[record["group"]]
            return {**record, "group": group, "prompt": int(group[1:])}
        return record

    run.change_records(swapped)


@expect(VIOLATED, PROMPTS)
def an_answer_to_another_prompt(run: DoctoredRun) -> None:
    feed(run, 3, lambda item: item.update(prompt=0))


# --------------------------------------------------------------------------------------------- scores and reports

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


@expect(VIOLATED, SCORES)
def an_evaluation_in_the_metrics_file(run: DoctoredRun) -> None:
    run.change_lines("metrics.jsonl", lambda lines: set_in(lines, "heldout_sampled", 0.9))


@expect(VIOLATED, SCORES)
def an_evaluation_in_the_metrics_stream(run: DoctoredRun) -> None:
    run.change_metrics_stream(lambda lines: set_in(lines, "heldout_greedy", 0.9))


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
    ("steps", 60),
    ("staleness_max", 0),
    ("mode", "Synchronous"),
    ("max_staleness", 1),
    ("heldout_reward_before", 0.9),
    ("heldout_reward_after", 0.9),
    ("heldout_greedy_after", 0.9),
    ("trajectories", {"planned": 48, "generated": 48, "consumed": 40, "aborted": {}}),
    ("trajectories", {"planned": 60, "generated": 48, "consumed": 48, "aborted": {}}),
):

    def lie(run: DoctoredRun, field: str = field, value: Any = value) -> None:
        run.change_json("summary.json", lambda summary: summary.update({field: value}))

    DOCTORINGS[f"{field} in summary.json: {value}"] = Doctoring(lie, VIOLATED, SCORES)


# --------------------------------------------------------------------------------------------- how


def cut_in_half(run: DoctoredRun) -> None:
    run.cut(run.place("committed", version=HALF) + 1)


def forge_claim(run: DoctoredRun, place: int) -> None:
    job = next(record["job"] for _, record in run.records() if record["kind"] == "epoch")
    number = 90_000_001
    claim = {"number": number, "instance": "forger", "job": job, "kind": "epoch"}
    run.insert(place, claim, writer={"number": number, "instance": "forger"}, suffix="claim")


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
