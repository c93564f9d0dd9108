"""The ledger cut, or broken off, while other sources go on."""

from __future__ import annotations

import json
from dataclasses import replace

from doctored_run import DoctoredRun

from doctorings.forging import HALF, cut_in_half, feed, forge_claim, twice_in_manifests
from doctorings.registry import DAMAGED, UNFINISHED, VIOLATED, expect

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
def cut_and_advantages_that_the_rewards_do_not_give(run: DoctoredRun) -> None:
    cut_in_half(run)
    feed(run, 4, lambda item: item.update(advantage=3.0))


@expect(VIOLATED, END)
def cut_and_an_answer_to_another_prompt(run: DoctoredRun) -> None:
    cut_in_half(run)
    feed(run, 5, lambda item: item.update(prompt=0))


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
