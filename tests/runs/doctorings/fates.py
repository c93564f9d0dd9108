"""What was trained, when, and what was not."""

from __future__ import annotations

from doctored_run import DoctoredRun

from doctorings.forging import batch_with, drop_group, feed, name_true_digests, reordered, twice_in_manifests
from doctorings.registry import VIOLATED, expect

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
def tokens_of_a_version_that_did_not_exist_yet(run: DoctoredRun) -> None:
    span = {"min": 50, "max": 50}
    run.change("generated", lambda r: r["trajectory"] == "g20.0", span=span)
    feed(run, 5, lambda item: item.update(span=span) if item["trajectory"] == "g20.0" else None)
    name_true_digests(run)


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
