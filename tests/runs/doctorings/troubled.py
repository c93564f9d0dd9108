"""What leniency for lost records could hide: doctored copies of a run whose coordinator was killed.

The run has 8 steps of 4 groups of 2, maxStaleness 2, and evaluations of versions 0, 4 and 8. One prompt's answers
cannot be scored. The coordinator was killed after version 2 and before version 8.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from doctored_run import DoctoredRun, Json

from doctorings.forging import name_true_digests
from doctorings.harmless import NOTHING
from doctorings.metrics import in_the_file, in_the_stream
from doctorings.registry import DAMAGED, HOLDS, VIOLATED, Doctoring

TROUBLED = "a run whose coordinator was replaced"
TROUBLED_DOCTORINGS: dict[str, Doctoring] = {}
LAST = 8


def expect(verdict: str) -> Callable[[Callable[[DoctoredRun], Any]], Callable[[DoctoredRun], Any]]:
    def register(apply: Callable[[DoctoredRun], Any]) -> Callable[[DoctoredRun], Any]:
        TROUBLED_DOCTORINGS[apply.__name__] = Doctoring(apply, verdict, TROUBLED)
        return apply

    return register


def evaluation(version: int, **changes: Any) -> Callable[[list[Json]], Json]:
    """A second line of the evaluation of a version."""

    def make(lines: list[Json]) -> Json:
        found = (x for x in lines if (x["version"], x["heldout_sampled"] is None) == (version, False))
        return {**next(found), "heldout_sampled": 0.9, **changes}

    return make


INVENTED = {
    "a second evaluation by the second coordinator": evaluation(LAST),
    "a second evaluation by the first coordinator": evaluation(0),
    "an evaluation before its version was made": evaluation(LAST, epoch=1),
    "an evaluation by a third coordinator": evaluation(LAST, epoch=3),
    "another end by the second coordinator": lambda lines: {**lines[-1], "finished": "Failed"},
}
TROUBLED_DOCTORINGS["nothing, after a kill"] = Doctoring(lambda run: None, HOLDS, NOTHING)
for what, make in INVENTED.items():
    for where, put in (("metrics.jsonl", in_the_file), ("the metrics stream", in_the_stream)):
        TROUBLED_DOCTORINGS[f"{what}, in {where}"] = Doctoring(put(make), VIOLATED, TROUBLED)


def exhausted(run: DoctoredRun) -> Json:
    return next(r for _, r in run.records() if (r["kind"], r.get("reason")) == ("aborted", "PromptExhausted"))


def second(run: DoctoredRun) -> int:
    """The place of the second coordinator's claim."""
    return [place for place, record in run.records() if record["kind"] == "epoch"][1]


def without(run: DoctoredRun, *dropped: Json) -> None:
    """The ledger lacks records; the manifests follow."""
    run.change_records(lambda r: None if r in dropped else r)
    name_true_digests(run)


@expect(VIOLATED)
def an_attempt_of_the_exhausted_prompt_that_never_failed(run: DoctoredRun) -> None:
    (trajectory, *_) = exhausted(run)["causes"]
    failures = [
        r
        for _, r in run.records()
        if (r["kind"], r.get("trajectory")) == ("reset", trajectory) and r["failure"]
    ]
    run.change("reset", lambda r: r == failures[-1], failure=False)
    name_true_digests(run)


@expect(VIOLATED)
def an_exhausted_prompt_that_was_uniform(run: DoctoredRun) -> None:
    run.change("aborted", reason="UniformGroup", causes={})
    name_true_digests(run)


@expect(VIOLATED)
def an_exhausted_prompt_that_engines_died_of(run: DoctoredRun) -> None:
    run.change("aborted", causes=dict.fromkeys(exhausted(run)["causes"], "PromptUnsendable"))
    name_true_digests(run)


@expect(VIOLATED)
def an_exhausted_prompt_that_the_ledger_lost(run: DoctoredRun) -> None:
    run.change("aborted", reason="LedgerLost", causes={})
    name_true_digests(run)


@expect(VIOLATED)
def an_exhausted_prompt_that_vanished(run: DoctoredRun) -> None:
    without(run, exhausted(run))


@expect(DAMAGED)
def a_second_claim_without_its_spec(run: DoctoredRun) -> None:
    place = second(run)
    specs = [r for at, r in run.records() if at == place and r["kind"] == "spec"]
    seen = iter([False, True])
    run.change_records(lambda r: None if r in specs and next(seen, False) else r)
    name_true_digests(run)


@expect(VIOLATED)
def other_rewards_under_the_first_coordinator(run: DoctoredRun) -> None:
    seen = iter([True, False])

    def change(record: Json) -> Json:
        if record["kind"] == "spec" and next(seen):
            record["spec"]["reward"]["functions"] = ["exact_match"]
        return record

    run.change_records(change)
    name_true_digests(run)


@expect(VIOLATED)
def a_step_by_the_first_coordinators_trainer(run: DoctoredRun) -> None:
    """Of two attempts of the trainer, the one that was not in charge has made the last version."""
    first = next(r for _, r in run.records() if r["kind"] == "attempt")
    run.change("committed", lambda r: r["version"] == LAST, epoch=first["epoch"], attempt=first["attempt"])
    name_true_digests(run)


@expect(VIOLATED)
def an_evaluation_that_the_summary_alone_has(run: DoctoredRun) -> None:
    run.change_json("summary.json", lambda summary: summary.update(heldout_reward_after=0.9))


@expect(VIOLATED)
def one_coordinator_in_the_summary(run: DoctoredRun) -> None:
    run.change_json("summary.json", lambda summary: summary.update(coordinator_epochs=1))


@expect(VIOLATED)
def no_failed_attempts_in_the_summary(run: DoctoredRun) -> None:
    run.change_json("summary.json", lambda summary: summary.update(attempts_failed={}))
