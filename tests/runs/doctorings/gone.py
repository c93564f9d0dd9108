"""Evidence that is gone, altered or unreadable."""

from __future__ import annotations

from dataclasses import replace

from doctored_run import DoctoredRun

from doctorings.forging import feed
from doctorings.registry import DAMAGED, VIOLATED, expect

GONE = "evidence that is gone or cannot be read"


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


@expect(DAMAGED, GONE)
def the_trainers_log_is_cut(run: DoctoredRun) -> None:
    run.change_lines("trainer/*.jsonl", lambda lines: lines.pop())


@expect(DAMAGED, GONE)
def the_trainers_log_without_rewards_and_advantages(run: DoctoredRun) -> None:
    for step in range(6):
        feed(run, step, lambda item: (item.pop("reward"), item.pop("advantage")))


@expect(DAMAGED, GONE)
def the_trainers_log_without_the_advantages_of_a_step(run: DoctoredRun) -> None:
    feed(run, 3, lambda item: item.pop("advantage"))


@expect(DAMAGED, GONE)
def the_trainers_log_without_prompts(run: DoctoredRun) -> None:
    for step in range(6):
        feed(run, step, lambda item: item.pop("prompt"))


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
