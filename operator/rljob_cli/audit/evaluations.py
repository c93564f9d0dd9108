"""Evaluations in the ledger: each must be of a version that exists and is due, on the spec's held-out prompts."""

from __future__ import annotations

from collections.abc import Container, Iterator
from typing import Any

from rljob_cli.audit.evidence import Violation
from rljob_core.held_out import HeldOutScore, evaluation_fails
from rljob_core.records import Evaluated
from rljob_core.spec import USUAL_SAMPLES


def is_due(version: int, spec: dict[str, Any]) -> bool:
    """Whether a job under this spec evaluates a version: each `everySteps`, and the last."""
    settings = spec.get("evaluation")
    return settings is not None and (version % settings["everySteps"] == 0 or version >= spec["steps"])


def unfounded(
    record: Evaluated, *, version: int, evaluated: Container[int], spec: dict[str, Any] | None
) -> Iterator[Violation]:
    """Say why an evaluation cannot have taken place as the ledger says.

    Args:
        record: the evaluation.
        version: the newest version at that time.
        evaluated: the versions whose evaluations the ledger had before.
        spec: the spec in force; None if it is not known.
    """
    name = (f"version {record.version}",)
    if not 0 <= record.version <= version:
        yield Violation(name, f"was evaluated, but the newest version at that time was {version}")
    if record.version in evaluated:
        yield Violation(name, "was evaluated twice")
    answers, failed = sum(score.answers for score in record.scores), sum(s.failed for s in record.scores)
    if not 0 <= record.mixed <= answers or bool(record.mixed) != (record.newest > record.version):
        text = f"has {record.mixed} answers with tokens of later versions, the newest of them {record.newest}"
        yield Violation(name, f"{text}: these contradict each other")
    if record.newest > version:
        text = f"has answers with tokens of version {record.newest}, which did not exist"
        yield Violation(name, text)
    if len(record.given_up) > failed:
        text = f"has given up {len(record.given_up)} prompts, and has {failed} answers without a score"
        yield Violation(name, text)
    for score in record.scores:
        yield from _contradictions(name, score)
    if spec is None:
        return
    settings = spec.get("evaluation")
    if settings is None:
        yield Violation(name, "was evaluated, but spec.evaluation is not set")
        return
    if not is_due(record.version, spec):
        text = f"was evaluated, but spec.evaluation.everySteps is {settings['everySteps']}: it was not due"
        yield Violation(name, text)
    yield from _unasked(name, record, settings)


def _contradictions(name: tuple[str, ...], score: HeldOutScore) -> Iterator[Violation]:
    """What the scores on one set say against each other."""
    text = f"has {score.failed} answers without a score, of {score.answers}"
    if not 0 <= score.failed <= score.answers:
        yield Violation(name, text)
    fails = evaluation_fails(failed=score.failed, answers=score.answers)
    if {score.sampled is None, score.greedy is None} != {fails}:
        yield Violation(name, f"{text}, and {'a score all the same' if fails else 'no score for it'}")
    rates = [rate for _, rate in sorted(score.pass_at.items())]
    if rates != sorted(rates) or not all(0 <= rate <= 1 for rate in rates):
        yield Violation(name, f"has pass@k {score.pass_at}: these are no rates that grow with k")


def _unasked(name: tuple[str, ...], record: Evaluated, settings: dict[str, Any]) -> Iterator[Violation]:
    """Where the record's sets are not those of spec.evaluation."""
    sets = settings.get("sets") or [{}]
    if [one.get("name") for one in sets[1:]] != list(record.sets):
        yield Violation(
            name, f"was evaluated on {len(record.scores)} held-out sets, which are not those of the spec"
        )
        return
    for one, score in zip(sets, record.scores, strict=True):
        asked, of = one.get("samples") or settings["samples"], f" of {one['name']}" if one else ""
        size = one.get("groupSize") or settings["groupSize"]
        if (asked is None and not 0 < score.samples <= USUAL_SAMPLES) or asked not in {None, score.samples}:
            text = f"was evaluated on {score.samples} prompts{of}, but spec.evaluation.samples is {asked}"
            yield Violation(name, text)
        if score.answers != score.samples * (size + 1):
            text = f"has {score.answers} answers{of}, but spec.evaluation.groupSize is {size}"
            yield Violation(name, text)
