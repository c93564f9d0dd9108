"""What no claim depends on: the audit must not cry wolf."""

from __future__ import annotations

import json
from dataclasses import replace

from doctored_run import DoctoredRun, Json

from doctorings.forging import forge_claim
from doctorings.registry import HOLDS, expect

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
