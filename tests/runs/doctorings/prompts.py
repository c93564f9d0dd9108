"""Which prompts were planned, in which order."""

from __future__ import annotations

from doctored_run import DoctoredRun, Json

from doctorings.forging import doubled, feed
from doctorings.registry import VIOLATED, expect

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
