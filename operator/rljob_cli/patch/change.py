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

from rljob_cli.job_checks.downloads import Downloads, download
from rljob_cli.job_checks.job import check_job, check_pods
from rljob_cli.manifest.differences import IMMUTABLE, by_name, differences, fixed_differences, moves
from rljob_cli.manifest.load import InvalidManifest, as_manifest, change_job, full_path, value_at
from rljob_cli.run_folder.folder import Identity, RunFolder
from rljob_cli.run_folder.job_file import stored_job
from rljob_core.errors import SpecError
from rljob_core.remote_uri import remote_sources
from rljob_core.spec import RLJob
from rljob_operator.children.cluster_defaults import ClusterDefaults
from rljob_operator.children.desired import Targets, desired
from rljob_operator.children.resolved_job import ResolvedJob, resolve_job
from rljob_operator.names import LABEL_ROLE, Role
from rljob_runtime.process.import_path import find_modules_in


@dataclass(frozen=True, slots=True)
class Change:
    """The effect of a patch.

    Attributes:
        identity: the content of `job.json` with the patch; the present content if nothing changes.
        before, after: the job without and with the patch.
        fields: the changed fields: path, value before, value after.
        warnings: of what fits, and is perhaps not meant.
    """

    identity: Identity
    before: RLJob
    after: RLJob
    fields: tuple[tuple[str, Any, Any], ...]
    warnings: tuple[str, ...] = ()


def patch(folder: RunFolder, texts: Sequence[str]) -> Change:
    """Check a change of the job in a folder and write it to `job.json`.

    Args:
        folder: the output folder.
        texts: `path=value` each, with or without a leading `spec.`; together they are one change.

    Raises:
        SpecError, InvalidManifest: the change is refused for all the reasons given, and nothing is written.
    """
    texts = [f"{full_path(text)}={text.partition('=')[2]}" for text in texts]
    downloads = _downloads(folder, texts)  # without the lock: it may take long
    with folder.changing():
        change = change_of(folder, _identity(folder), texts, downloads)
        if change.fields:
            folder.write(change.identity)
    return change


def _identity(folder: RunFolder) -> Identity:
    identity = folder.identity()
    if identity is None:
        raise SpecError(
            "DIR",
            f"{folder.path} holds no run: give the output folder of an `rljob run` (runs/<job's name>)",
        )
    return identity


def _downloads(folder: RunFolder, texts: Sequence[str]) -> Downloads | None:
    """What the changed job names by URI, downloaded; None if the change names nothing else than before."""
    identity = _identity(folder)
    before = stored_job(identity)
    after = change_job(before, texts, Path(identity.origin or "."))
    if remote_sources(after.spec) == remote_sources(before.spec):
        return None
    _refuse(
        folder, identity, after, tuple(differences(by_name(as_manifest(before)), by_name(as_manifest(after))))
    )
    return download(after.spec, identity.downloads)


def change_of(
    folder: RunFolder, identity: Identity, texts: Sequence[str], downloads: Downloads | None = None
) -> Change:
    """Check a change and return its effect; nothing is written.

    Args:
        folder, identity: the job's.
        texts: as of `patch`.
        downloads: what the changed job downloads; None if it is what `identity` has.

    Raises:
        SpecError, InvalidManifest: the change is refused for all the reasons given.
    """
    before = stored_job(identity)
    if downloads is not None:
        identity = replace(identity, downloads=downloads)
    origin = Path(identity.origin or ".")
    after = change_job(before, texts, origin)
    fields = tuple(differences(by_name(as_manifest(before)), by_name(as_manifest(after))))
    if not fields:
        return Change(identity, before, after, ())
    _refuse(folder, identity, after, fields)
    find_modules_in([str(origin)])
    resolved = resolve_job(identity.with_downloads(after), folder.defaults(nats_url=""))
    warnings = tuple(check_job(resolved.config))
    check_pods(resolved, os.environ)
    # One text per path: the newest replaces older ones.
    patches = {text.partition("=")[0].strip(): text for text in (*identity.patches, *texts)}
    changed = replace(
        identity,
        manifest=dict(as_manifest(after)),
        generation=identity.generation + 1,
        patches=list(patches.values()),
    )
    return Change(changed, before, after, fields, warnings)


def _refuse(
    folder: RunFolder, identity: Identity, job: RLJob, fields: Sequence[tuple[str, Any, Any]]
) -> None:
    """Refuse changes that a job never accepts, or not while it runs.

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
    if folder.in_use():
        problems += [
            SpecError(
                path,
                f"site is immutable while the job runs, because {mark.because}: leave it at "
                f"{json.dumps(before)}, {mark.instead}, or stop the run first and change it then",
            )
            for path, mark, before in moves(fields)
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
