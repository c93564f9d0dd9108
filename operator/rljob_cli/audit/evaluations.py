"""Evaluations in the ledger: each must be of a version that exists and is due, on the spec's held-out prompts."""

from __future__ import annotations

from collections.abc import Container, Iterator
from typing import Any

from rljob_cli.audit.evidence import Violation
from rljob_core.records import Evaluated, evaluation_fails


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
    if not 0 <= record.mixed <= 2 * record.samples or bool(record.mixed) != (record.newest > record.version):
        text = f"has {record.mixed} answers with tokens of later versions, the newest of them {record.newest}"
        yield Violation(name, f"{text}: these contradict each other")
    if record.newest > version:
        text = f"has answers with tokens of version {record.newest}, which did not exist"
        yield Violation(name, text)
    if not len(record.given_up) <= record.failed <= 2 * record.samples:
        yield Violation(name, f"has {record.failed} answers without a score, of {2 * record.samples}")
    fails = evaluation_fails(failed=record.failed, samples=record.samples)
    if {record.sampled is None, record.greedy is None} != {fails}:
        text = f"has {record.failed} answers without a score, of {2 * record.samples}, and "
        yield Violation(name, text + ("a score all the same" if fails else "no score for it"))
    if spec is None:
        return
    settings = spec.get("evaluation")
    if settings is None:
        yield Violation(name, "was evaluated, but spec.evaluation is not set")
        return
    if not is_due(record.version, spec):
        text = f"was evaluated, but spec.evaluation.everySteps is {settings['everySteps']}: it was not due"
        yield Violation(name, text)
    if record.samples != settings["samples"]:
        text = (
            f"was evaluated on {record.samples} prompts, but spec.evaluation.samples is {settings['samples']}"
        )
        yield Violation(name, text)
