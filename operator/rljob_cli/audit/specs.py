"""The check that the job ran under the spec that its user gave: ledger, user and workers are compared."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

from pydantic import ValidationError

from rljob_cli.audit.audited_run import AuditedRun, CheckOutcome
from rljob_cli.audit.evidence import Evidence, Verdict, Violation
from rljob_cli.audit.history import History
from rljob_cli.audit.spec_changes import PIPELINE_FIELDS, completed
from rljob_cli.manifest.differences import value_in
from rljob_core.spec import CHANGEABLE_OF_ENVIRONMENT, PipelineSpec, RLJob, immutable_fields

_PROMISED = (
    "pipeline",
    "data",
    "reward",
    "algorithm",
    "model",
    "evaluation",
    "rollout.sampling",
    "rollout.environment",
)
"""Parts of the spec on which the audit's claims, or what the scores mean, depend."""
_PLACES = {"uri", "url", "dataset"}
"""Fields that name places: a run folder may be copied, and pods see other paths than users."""

_IMMUTABLE = {path.removeprefix("spec."): mark for path, mark in immutable_fields(RLJob)}
"""Fields that a job keeps for good."""

Difference = tuple[str, Any, Any]


def specs(run: AuditedRun) -> CheckOutcome:
    """Check the ledger's spec against job.json and the workers' configuration, and the ledger's records against it.

    A change by `rljob patch` that no coordinator has taken over yet is no contradiction.
    """
    evidence, history = run.evidence, run.history
    found = [*history.unlike_spec, *_changed_for_good(history.specs)]
    ours = _in_force(history)
    if evidence.user_spec:
        for path, ledger, user in _differences(ours, evidence.user_spec):
            if _is_patched(path, evidence):
                continue
            if path.startswith("pipeline.") and evidence.pipeline_refused:
                continue
            section = path.split(".")[0]
            may_be_ahead = evidence.spec_may_be_ahead and _may_be_ahead(path, ledger, user)
            if may_be_ahead and _is_at_rest(history, evidence.user_spec):
                continue
            text = f"is {_shown(ledger)} in the ledger, and {_shown(user)} in the user's spec"
            if may_be_ahead or (evidence.spec_may_be_ahead and section == "pipeline"):
                later = f"{text}: a change is in force within about a minute, so audit again"
                found.append(Violation((f"spec.{path}",), later, Verdict.UNFINISHED))
            elif _is_promised(path):
                found.append(Violation((f"spec.{path}",), text))
            else:
                later = f"{text}: `rljob run --resume` brings it into force"
                found.append(Violation((f"spec.{path}",), later, Verdict.UNFINISHED))
    for name, spec in evidence.worker_specs:
        found += _unlike(name, spec, history, evidence)
    return len(history.specs) + len(history.pipelines.settings) + len(evidence.worker_specs), found


def _changed_for_good(specs: Sequence[dict[str, Any]]) -> Iterator[Violation]:
    """Report the immutable fields that coordinators had different values of."""
    paths = [
        path for path, mark in _IMMUTABLE.items() if not mark.among and path.rpartition(".")[2] not in _PLACES
    ]
    for one, other in pairwise(map(completed, specs)):
        for path in paths:
            for leaf, before, after in _leaves(path, value_in(one, path), value_in(other, path)):
                if not _IMMUTABLE[path].keeps(path, leaf):
                    continue
                text = f"is immutable, but one coordinator had {_shown(before)}, and the next one {_shown(after)}"
                yield Violation((f"spec.{leaf}",), text)


def _in_force(history: History) -> dict[str, Any]:
    """What the ledger says of the newest spec."""
    spec: dict[str, Any] = completed(history.specs[-1]) if history.specs else {}
    if history.pipelines.settings:
        newest = history.pipelines.settings[-1]
        said = {field: getattr(newest, name) for field, name in PIPELINE_FIELDS.items()}
        try:
            spec["pipeline"] = PipelineSpec.model_validate(said).model_dump(mode="json", by_alias=True)
        except ValidationError:  # no spec has such settings, so it is compared as it is
            spec["pipeline"] = said
    return spec


def _unlike(name: str, spec: dict[str, Any], history: History, evidence: Evidence) -> Iterator[Violation]:
    """Report a worker whose configuration is neither the user's nor one that the ledger has had.

    Workers that do not read a changed field keep their configuration, so an earlier spec is no contradiction.
    """
    known = [*map(completed, history.specs), *([evidence.user_spec] if evidence.user_spec else [])]
    closest = min((list(_differences(one, spec)) for one in known), key=len, default=[])
    for path, ledger, theirs in closest:
        if _is_patched(path, evidence) or _was_set(history, path, theirs):
            continue
        if _is_promised(path):
            text = f"is {_shown(theirs)} in the configuration of {name}, and {_shown(ledger)} in the ledger"
            yield Violation((f"spec.{path}",), text)


def _is_at_rest(history: History, user: dict[str, Any]) -> bool:
    """Whether no coordinator is at work that could take a change over: the next one records it with its claim."""
    return history.finished is not None or bool(user.get("suspend"))


def _is_promised(path: str) -> bool:
    if path.removeprefix("rollout.environment.").partition(".")[0] in CHANGEABLE_OF_ENVIRONMENT:
        return False
    return any(path == part or path.startswith(f"{part}.") for part in _PROMISED)


def _may_be_ahead(path: str, ledger: Any, user: Any) -> bool:
    """Whether the user can have changed a field since the coordinator saw the spec last."""
    section = path.partition(".")[0]
    if section == "pipeline":
        return False
    marks = [mark for field, mark in _IMMUTABLE.items() if path == field or path.startswith(f"{field}.")]
    return not _is_promised(path) or all(mark.allows(ledger, user) for mark in marks)


def _is_patched(path: str, evidence: Evidence) -> bool:
    """Whether the user has changed a field while the job ran, which the ledger may not have seen."""
    return any(path == one or path.startswith(f"{one}.") for one in evidence.patched)


def _was_set(history: History, path: str, value: Any) -> bool:
    """Whether a value of `spec.pipeline` was in force at some time."""
    section, _, field = path.partition(".")
    name = PIPELINE_FIELDS.get(field) if section == "pipeline" else None
    return name is not None and any(getattr(s, name) == value for s in history.pipelines.settings)


def _differences(ledger: dict[str, Any], other: dict[str, Any]) -> Iterator[Difference]:
    """The leaves that both have and that differ; where the ledger has no section at all, nothing is compared."""
    for name, section in ledger.items():
        yield from _leaves(name, section, other.get(name))


def _leaves(path: str, one: Any, other: Any) -> Iterator[Difference]:
    if isinstance(one, dict) and isinstance(other, dict):
        for name in {**one, **other}:
            if name not in _PLACES or _is_name(name, one, other):
                yield from _leaves(f"{path}.{name}", one.get(name), other.get(name))
    elif (ours := _by_name(one)) and (theirs := _by_name(other)) and list(ours) == list(theirs):
        yield from _leaves(path, ours, theirs)
    elif one != other and not _is_default_bound(path, one, other):
        yield path, one, other


def _is_name(field: str, *sections: dict[str, Any]) -> bool:
    """Whether a field that may name a place names a task, a model or a data set, which is the same everywhere."""
    tasks = field == "dataset" and all(one.get("source") == "reasoning-gym" for one in sections)
    return tasks or all(str(one.get(field)).startswith("hf://") for one in sections)


def _by_name(value: Any) -> dict[str, Any]:
    """The objects of a list by their names, in its order; empty of anything else."""
    if not isinstance(value, list) or not all(isinstance(one, dict) and "name" in one for one in value):
        return {}
    return {one["name"]: one for one in value}


def _is_default_bound(path: str, one: Any, other: Any) -> bool:
    """Whether one side leaves `maxStaleness` to the mode, which the other has filled in."""
    return path == "pipeline.maxStaleness" and (one is None or other is None) and (one or other or 0) <= 1


def _shown(value: Any) -> str:
    return "absent" if value is None else str(value)
