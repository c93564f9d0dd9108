"""`rljob patch`: changes the spec of the job in an output folder, after checking the new spec as a whole.

The new spec is written to `job.json`. A running `rljob run` reads the file and passes the spec to its reconciler, which
restarts the processes that read the changed fields, as the operator does on a cluster. `rljob run --resume` applies the
change to the manifest.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rljob_cli.job_checks.job import check_job, check_pods
from rljob_cli.manifest.differences import IMMUTABLE, differences, fixed_differences
from rljob_cli.manifest.import_path import allow_modules_in
from rljob_cli.manifest.load import InvalidManifest, as_manifest, change_job, value_at
from rljob_cli.run_folder.folder import Identity, RunFolder
from rljob_cli.run_folder.job_file import stored_job
from rljob_core.errors import SpecError
from rljob_core.spec import RLJob
from rljob_operator.children.cluster_defaults import ClusterDefaults
from rljob_operator.children.desired import Targets, desired
from rljob_operator.children.resolved_job import ResolvedJob, resolve_job
from rljob_operator.names import LABEL_ROLE, Role

_ROOTS = ("spec.", "metadata.", "status.", "apiVersion", "kind")


@dataclass(frozen=True, slots=True)
class Change:
    """The effect of a patch.

    Attributes:
        identity: the content of `job.json` with the patch; the present content if nothing changes.
        before, after: the job without and with the patch.
        fields: the changed fields: path, value before, value after.
    """

    identity: Identity
    before: RLJob
    after: RLJob
    fields: tuple[tuple[str, Any, Any], ...]


def patch(folder: RunFolder, texts: Sequence[str]) -> Change:
    """Check a change of the job in a folder and write it to `job.json`.

    Args:
        folder: the output folder.
        texts: `path=value` each, with or without a leading `spec.`; together they are one change.

    Raises:
        SpecError, InvalidManifest: the change is refused for all the reasons given, and nothing is written.
    """
    with folder.changing():
        identity = folder.identity()
        if identity is None:
            raise SpecError(
                "DIR",
                f"{folder.path} holds no run: give the output folder of an `rljob run` (runs/<job's name>)",
            )
        change = change_of(folder, identity, [_full_path(text) for text in texts])
        if change.fields:
            folder.write(change.identity)
    return change


def _full_path(text: str) -> str:
    return text if text.strip().startswith(_ROOTS) else f"spec.{text.strip()}"


def change_of(folder: RunFolder, identity: Identity, texts: Sequence[str]) -> Change:
    """Check a change and return its effect; nothing is written.

    Raises:
        SpecError, InvalidManifest: the change is refused for all the reasons given.
    """
    summary = folder.earlier_summary()
    if summary.get("exit") == "Succeeded" and not folder.in_use():
        raise SpecError(
            "DIR",
            f"the job in {folder.path} is finished after {summary.get('steps')} steps, for good: start another one "
            f"from its checkpoint, with spec.model.uri={folder.checkpoint} and another --output",
        )
    before = stored_job(identity)
    origin = Path(identity.origin or ".")
    after = change_job(before, texts, origin)
    fields = tuple(differences(_by_name(as_manifest(before)), _by_name(as_manifest(after))))
    if not fields:
        return Change(identity, before, after, ())
    _refuse(folder, identity, after)
    allow_modules_in(origin)
    resolved = resolve_job(after, folder.defaults(nats_url=""))
    check_job(resolved.config)
    check_pods(resolved, os.environ)
    # One text per path: the newest replaces older ones.
    patches = {text.partition("=")[0].strip(): text for text in (*identity.patches, *texts)}
    changed = replace(
        identity,
        manifest=dict(as_manifest(after)),
        generation=identity.generation + 1,
        patches=list(patches.values()),
    )
    return Change(changed, before, after, fields)


def _by_name(value: Any) -> Any:
    """JSON with lists of named objects as mappings, so that a change of one pool is reported under the pool's name."""
    if isinstance(value, Mapping):
        return {key: _by_name(below) for key, below in value.items()}
    if isinstance(value, list) and all(isinstance(item, dict) and "name" in item for item in value):
        return {item["name"]: _by_name(item) for item in value} or value
    return value


def _refuse(folder: RunFolder, identity: Identity, job: RLJob) -> None:
    """Refuse changes that a job never accepts.

    Raises:
        InvalidManifest: all of them.
    """
    problems = [
        SpecError(
            path,
            f"{path.rpartition('.')[2]} is immutable, because {because}: leave it at {json.dumps(before)}, or start "
            "another job with another --output",
        )
        for path, because, before, _ in fixed_differences(identity.manifest, job, IMMUTABLE)
    ]
    problems += [
        SpecError(path, "belongs to the job for good: start another job with another --output")
        for path, *_ in differences(identity.manifest, dict(as_manifest(job)))
        if not path.startswith("spec.")
    ]
    if job.spec.suspend:
        holder = folder.holder()
        how = f"`kill -INT {holder}` stops it (Ctrl-C)" if holder else "it does not run"
        problems.append(
            SpecError(
                "spec.suspend",
                f"only a cluster suspends jobs; {how}, and `rljob run … --resume` continues it",
            )
        )
    if problems:
        raise InvalidManifest("a job cannot be changed so", problems)


def kept_patches(identity: Identity, job: RLJob) -> list[str]:
    """The patches that `rljob run --resume` applies to `job`.

    A patch is dropped if the manifest, or a `--set` of this command, has another value at its path than last time.
    """
    given: Mapping[str, Any] = as_manifest(job)
    paths = {text: text.partition("=")[0] for text in identity.patches}
    return [text for text, path in paths.items() if value_at(given, path) == value_at(identity.given, path)]


# -------------------------------------------------------------------------------------------- its effect


def restarts(change: Change, defaults: ClusterDefaults) -> Iterator[str]:
    """Lines that say which processes the reconciler will start, stop or restart; none if all keep running."""
    before, after = (_pods(resolve_job(job, defaults)) for job in (change.before, change.after))
    changed = [name for name, pods in after.items() if name in before and before[name][0] != pods[0]]
    if changed:
        yield f"restarts: {', '.join(changed)}"
    for name, (_, replicas) in after.items():
        if name not in before:
            yield f"starts: {name}, {replicas}"
        elif before[name][1] != replicas:
            yield f"{name}: {before[name][1]} → {replicas} processes"
    yield from (f"stops: {name}" for name in before if name not in after)


def _pods(job: ResolvedJob) -> dict[str, tuple[Any, int]]:
    """The pod template and the number of pods of each role or pool."""
    found: dict[str, tuple[Any, int]] = {}
    for manifest in desired(job, Targets(attempt=1, failures=0, pools={})):
        spec = manifest.get("spec", {})
        if manifest["kind"] == "Deployment":
            role = manifest["metadata"]["labels"][LABEL_ROLE]
            found[role] = spec["template"], spec["replicas"]
        elif manifest["kind"] == "RolloutPool":
            found[f"{Role.ROLLOUT} pool {spec['pool']}"] = spec["template"], spec["replicas"]
        elif manifest["kind"] == "Job":
            found[str(Role.TRAINER)] = spec["template"], spec["completions"]
    return found
