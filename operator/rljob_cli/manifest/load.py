"""Loads a manifest file as a validated `RLJob`, or reports every invalid field with its path and line."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError
from pydantic_core import ErrorDetails
from ruamel.yaml.nodes import MappingNode, Node, SequenceNode

from rljob_cli.manifest.documents import Document, documents_of, is_site, job_document, parse
from rljob_core.advice import advice, dotted, location, nearest
from rljob_core.errors import SpecError
from rljob_core.remote_uri import sources, with_paths
from rljob_core.spec import RLJob, RLJobSpec, Site, SiteLinkSpec

FieldPath = tuple[str | int, ...]
Kind = TypeVar("Kind", RLJob, Site)

# Of metav1.ObjectMeta.
_METADATA = {
    "name", "generateName", "namespace", "selfLink", "uid", "resourceVersion", "generation", "creationTimestamp",
    "deletionTimestamp", "deletionGracePeriodSeconds", "labels", "annotations", "ownerReferences", "finalizers",
    "managedFields",
}  # fmt: skip
_ROOTS = ("spec", "metadata")
_NOT_SET = {"status", "apiVersion", "kind"}
_SPEC_FIELDS = {field.alias or name for name, field in RLJobSpec.model_fields.items()}
_MOST_MEANT = 4
_STEP = re.compile(r"[^.\[\]]+")


class InvalidManifest(ExceptionGroup[SpecError]):
    """A manifest is invalid; the group has one `SpecError` per invalid field."""


def load_job(file: Path, overrides: Sequence[str] = (), *, text: str | None = None) -> RLJob:
    """Load a job from a YAML 1.2 file; relative paths in it are resolved against the file's folder.

    Args:
        file: a file with one RLJob; other documents in it may be Sites (`load_job_and_links`).
        overrides: `path=value` each; `spec.` may be left out, the value is YAML, list items are given by index or name.
        text: what the file is going to hold; None: it is there.

    Raises:
        SpecError: the file cannot be read, or the path of an override does not exist.
        InvalidManifest: fields are invalid.
    """
    return _job(file, documents_of(file, text), overrides)


def load_job_and_links(file: Path, overrides: Sequence[str] = ()) -> tuple[RLJob, dict[str, SiteLinkSpec]]:
    """Load a job, and from the Sites that its file describes the link of each, by name.

    `kubectl apply` takes the same file. Arguments and errors as of `load_job`; Sites are checked, too, and no name may
    be given to two of them.
    """
    documents = documents_of(file)
    return _job(file, documents, overrides), _links(file, documents)


def _job(file: Path, documents: Sequence[Document], overrides: Sequence[str]) -> RLJob:
    root, content = job_document(file, documents)
    if not isinstance(content, dict):
        raise SpecError(
            str(file),
            f"line 1, column 1: {_kind(content)}: write a mapping with apiVersion, kind, metadata and spec",
        )
    changed = [override(content, text) for text in overrides]
    job = _validated(RLJob, content, str(file), lambda location: _place(file, root, location, changed))
    return resolve_paths(job, file.resolve().parent)


def _links(file: Path, documents: Sequence[Document]) -> dict[str, SiteLinkSpec]:
    found: dict[str, SiteLinkSpec] = {}
    for root, content in documents:
        if not is_site(content):
            continue
        site = _validated(Site, content, str(file), partial(_place, file, root, changed=()))
        if site.metadata.name in found:
            raise SpecError(str(file), f"describes the Site {site.metadata.name} twice: keep one of them")
        found[site.metadata.name] = site.spec.link
    return found


def change_job(job: RLJob, overrides: Sequence[str], folder: Path) -> RLJob:
    """Return a copy of a job with changed fields; relative paths are resolved against `folder`.

    Raises:
        SpecError: the path of an override does not exist.
        InvalidManifest: changed fields are invalid or contradict others.
    """
    content = dict(as_manifest(job))
    changed = [override(content, text) for text in overrides]
    return resolve_paths(_validated(RLJob, content, "--set", lambda place: _given(place, changed)), folder)


def _validated(
    kind: type[Kind], content: Mapping[str, Any], source: str, place: Callable[[FieldPath], str]
) -> Kind:
    """Validate a document as a job, or as another kind.

    Args:
        content: the document.
        source: where the document comes from, for messages about the whole of it.
        place: returns where a field is set, which ends the message about it.
    """
    wrong = list(_wrong_metadata(content))
    try:
        found = kind.model_validate(content, by_alias=True, by_name=False)
    except ValidationError as error:
        wrong += error.errors(include_url=False)
    if wrong:
        raise InvalidManifest(
            "the manifest is wrong",
            [
                SpecError(
                    dotted(location(detail)) or source,
                    advice(kind, content, detail) + place(location(detail)),
                )
                for detail in wrong
            ],
        )
    return found


def _wrong_metadata(content: Mapping[str, Any]) -> Iterator[ErrorDetails]:
    """Yield an error for each metadata field that Kubernetes does not define, and each label that is not text.

    The model itself accepts unknown metadata, so that fields of a newer API server are not lost.
    """
    metadata = content.get("metadata")
    for name, value in metadata.items() if isinstance(metadata, dict) else ():
        if name not in _METADATA:
            known = ["name", "namespace", "labels", "annotations"]
            yield _details("extra_forbidden", ("metadata", name), value, known=known)
        elif name in {"labels", "annotations"} and not isinstance(value, dict | None):
            yield _details("dict_type", ("metadata", name), value)
        elif name in {"labels", "annotations"}:
            for key, text in (value or {}).items():
                if not isinstance(text, str | None):
                    yield _details("string_type", ("metadata", name, key), text)


def _details(kind: str, place: FieldPath, given: Any, **context: Any) -> ErrorDetails:
    return {"type": kind, "loc": place, "msg": "", "input": given, "ctx": context}


def _kind(content: object) -> str:
    return "the file is empty" if content is None else f"the document is a {type(content).__name__}"


def _place(file: Path, root: Node | None, location: Sequence[str | int], changed: Sequence[FieldPath]) -> str:
    """Return the file and line of a field, or of the innermost object that should contain it; or that --set gave it."""
    node, is_there = root, True
    for step in location:
        below = _child(node, step)
        if below is None:
            is_there = False
            break
        node = below
    if given := _given(location, changed, is_there=is_there):
        return given
    return "" if node is None else f" ({file.name}, line {node.start_mark.line + 1})"


def _given(location: Sequence[str | int], changed: Sequence[FieldPath], *, is_there: bool = False) -> str:
    """Return that --set gave a field, or a part of it, if it did.

    Args:
        location: of the field.
        changed: the locations that --set changed.
        is_there: the field stands in a file, too, so that a --set of a part of it has not created it.
    """
    place = tuple(location)
    given = any(
        place[: len(path)] == path or (not is_there and path[: len(place)] == place) for path in changed
    )
    return " (given by --set)" if given else ""


def _child(node: Node | None, step: str | int) -> Node | None:
    if isinstance(node, MappingNode):
        return next((value for key, value in node.value if key.value == step), None)
    if isinstance(node, SequenceNode) and isinstance(step, int) and step < len(node.value):
        found: Node = node.value[step]
        return found
    return None


def full_path(text: str) -> str:
    """The path of an override, from the manifest's root on: `spec.` may be left out of `path=value`.

    Raises:
        SpecError: there is no `=`, or no path before it; or the path is nearly another, or a part of it.
    """
    path, equals, _ = text.partition("=")
    path = path.strip()
    steps = _STEP.findall(path)
    if not equals or not steps or steps[0] in _NOT_SET or (len(steps) == 1 and steps[0] in _ROOTS):
        raise SpecError("--set", f"{text!r}: write path=value, for instance pipeline.maxStaleness=2")
    if steps[0] in _ROOTS:
        return path
    if steps[0] not in _SPEC_FIELDS and (meant := _meant(path, steps[0])):
        raise SpecError("--set", f"{text!r}: did you mean {' or '.join(meant)}?")
    return f"spec.{path}"


def _meant(path: str, first: str) -> list[str]:
    """The paths with nearly the same root; else those that end with this one: `sampling.maxTokens` is of `rollout`."""
    if root := nearest(first, _ROOTS, n=1):
        return [f"{root[0]}{path.removeprefix(first)}"]
    from rljob_cli.manifest.fields import tree  # which imports all engines' options

    found: dict[str, None] = {}  # engines have options of the same name
    lists: list[str] = []
    for field in tree().walk():
        if field.type == "[]Object":
            lists.append(f"{field.path}.")
        if field.path.startswith("spec.") and field.path.endswith(f".{path}"):
            place = field.path
            for parent in lists:  # whose items `--set` finds by their names
                place = place.replace(parent, f"{parent}NAME.", 1) if place.startswith(parent) else place
            found[place] = None
    return [*found][:_MOST_MEANT] + ["another field of this name"] * (len(found) > _MOST_MEANT)


def override(content: dict[str, Any], text: str) -> FieldPath:
    """Apply one `path=value` to a manifest's content and return the location that it changed.

    Raises:
        SpecError: as `full_path`, the value is not YAML, or the path does not exist.
    """
    path, value = full_path(text), text.partition("=")[2]
    steps = _STEP.findall(path)
    target: Any = content
    location: FieldPath = ()
    for step in steps[:-1]:
        key = _key(target, step, path)
        location = (*location, key)
        if isinstance(target, dict) and target.get(key) is None:
            target[key] = {}
        target = target[key]
    key = _key(target, steps[-1], path)
    values = parse(value, f"--set {path}")
    if len(values) > 1:
        raise SpecError(f"--set {path}", "a second document begins in the value: write one value")
    target[key] = values[0][1] if values else None
    return (*location, key)


def value_at(content: Mapping[str, Any], path: str) -> Any:
    """Return the value at the path of an override; None if the manifest has none there."""
    found: Any = content
    for step in _STEP.findall(path):
        try:
            found = found[_key(found, step, path)]
        except (SpecError, KeyError, TypeError):
            return None
    return found


def _key(target: object, step: str, path: str) -> str | int:
    """Return the key or list index that one step of an override's path names in `target`."""
    if isinstance(target, dict):
        return step
    if isinstance(target, list):
        indices = [str(index) for index in range(len(target))]
        if step in indices:
            return indices.index(step)
        names = [item.get("name") if isinstance(item, dict) else None for item in target]
        if step in names:
            return names.index(step)
        known = ", ".join(str(name) for name in names if name) or f"0 to {len(target) - 1}"
        raise SpecError(f"--set {path}", f"the list has no item {step!r}: write one of {known}")
    raise SpecError(
        f"--set {path}", f"what stands before {step!r} has no fields: `rljob explain` lists them all"
    )


# ------------------------------------------------------------------------------------------------------ paths


def resolve_paths(job: RLJob, folder: Path) -> RLJob:
    """Return a copy of the job whose relative paths are resolved against `folder`."""
    spec = job.spec
    named = (one for one in sources(spec) if one.source != "reasoning-gym")
    spec = with_paths(spec, {one.name: _absolute(one.uri, folder) for one in named})
    update: dict[str, object] = {}
    if spec.weights.uri is not None:
        update["weights"] = spec.weights.model_copy(update={"uri": _absolute(spec.weights.uri, folder)})
    if (uri := spec.trainer.checkpoint.uri) is not None:
        checkpoint = spec.trainer.checkpoint.model_copy(update={"uri": _absolute(uri, folder)})
        update["trainer"] = spec.trainer.model_copy(update={"checkpoint": checkpoint})
    return job.model_copy(update={"spec": spec.model_copy(update=update)})


def _absolute(uri: str, folder: Path) -> str:
    return uri if "://" in uri else str((folder / uri).resolve())


def as_manifest(job: RLJob) -> Mapping[str, Any]:
    """Return the job as a JSON object that includes every default."""
    dumped: Mapping[str, Any] = job.model_dump(mode="json", by_alias=True)
    return dumped
