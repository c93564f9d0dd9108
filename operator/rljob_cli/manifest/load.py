"""Loads a manifest file as a validated `RLJob`, or reports every invalid field with its path and line."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails
from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.nodes import MappingNode, Node, SequenceNode

from rljob_cli.manifest.advice import advice, dotted, location
from rljob_core.errors import SpecError
from rljob_core.spec import DataSpec, EvaluationDataSpec, RLJob

FieldPath = tuple[str | int, ...]

# Of metav1.ObjectMeta.
_METADATA = {
    "name", "generateName", "namespace", "selfLink", "uid", "resourceVersion", "generation", "creationTimestamp",
    "deletionTimestamp", "deletionGracePeriodSeconds", "labels", "annotations", "ownerReferences", "finalizers",
    "managedFields",
}  # fmt: skip
_STEP = re.compile(r"[^.\[\]]+")


class InvalidManifest(ExceptionGroup[SpecError]):
    """A manifest is invalid; the group has one `SpecError` per invalid field."""


def load_job(file: Path, overrides: Sequence[str] = ()) -> RLJob:
    """Load a job from a YAML 1.2 file; relative paths in it are resolved against the file's folder.

    Args:
        file: a file with one document, one RLJob.
        overrides: `spec.path=value` each; the value is YAML, list items are given by index or by name.

    Raises:
        SpecError: the file cannot be read, or the path of an override does not exist.
        InvalidManifest: fields are invalid.
    """
    root, content = _parse(_read(file), str(file))
    content = _as_json(content)
    if not isinstance(content, dict):
        raise SpecError(
            str(file),
            f"line 1, column 1: {_kind(content)}: write a mapping with apiVersion, kind, metadata and spec",
        )
    changed = [override(content, text) for text in overrides]
    job = _validated(content, str(file), lambda location: _place(file, root, location, changed))
    return resolve_paths(job, file.resolve().parent)


def change_job(job: RLJob, overrides: Sequence[str], folder: Path) -> RLJob:
    """Return a copy of a job with changed fields; relative paths are resolved against `folder`.

    Raises:
        SpecError: the path of an override does not exist.
        InvalidManifest: changed fields are invalid or contradict others.
    """
    content = dict(as_manifest(job))
    changed = [override(content, text) for text in overrides]
    return resolve_paths(_validated(content, "--set", lambda place: _given(place, changed)), folder)


def _validated(content: Mapping[str, Any], source: str, place: Callable[[FieldPath], str]) -> RLJob:
    """Validate a document as a job.

    Args:
        content: the document.
        source: where the document comes from, for messages about the whole of it.
        place: returns where a field is set, which ends the message about it.
    """
    wrong = list(_wrong_metadata(content))
    try:
        job = RLJob.model_validate(content, by_alias=True, by_name=False)
    except ValidationError as error:
        wrong += error.errors(include_url=False)
    if wrong:
        raise InvalidManifest(
            "the manifest is wrong",
            [
                SpecError(
                    dotted(location(detail)) or source,
                    advice(RLJob, content, detail) + place(location(detail)),
                )
                for detail in wrong
            ],
        )
    return job


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise SpecError(str(file), "there is no such file: give the path of an RLJob's YAML file") from error
    except UnicodeDecodeError as error:
        raise SpecError(str(file), f"byte {error.start} is not UTF-8: save the file as UTF-8 text") from error
    except OSError as error:
        raise SpecError(str(file), f"cannot be read: {error.strerror}") from error


def _parse(text: str, source: str) -> tuple[Node | None, Any]:
    """Parse one YAML document; return its nodes, which have line numbers, and its content.

    Raises:
        SpecError: the text is not YAML, has several documents, or a key is given twice.
    """
    # Pure Python, because only that reader is YAML 1.2, where 1e-4 is a number and `no` is a word.
    try:
        return YAML(typ="safe", pure=True).compose(text), YAML(typ="safe", pure=True).load(text)
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f"line {mark.line + 1}, column {mark.column + 1}: " if mark is not None else ""
        raise SpecError(source, place + _problem(error)) from error
    except YAMLError as error:  # characters that YAML does not know
        raise SpecError(source, f"not YAML: {' '.join(str(error).split())}") from error


def _as_json(content: Any) -> Any:
    """Convert integral floats such as 4.0 and 1e6 to integers, as kubectl does: JSON has only one number type."""
    if isinstance(content, dict):
        return {key: _as_json(value) for key, value in content.items()}
    if isinstance(content, list):
        return [_as_json(item) for item in content]
    return int(content) if isinstance(content, float) and content.is_integer() else content


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


def _problem(error: MarkedYAMLError) -> str:
    problem = (error.problem or "not YAML").strip()
    if "single document" in (error.context or ""):
        return "a second document begins here: keep one RLJob per file"
    if problem.startswith("found duplicate key"):
        key = re.match(r'found duplicate key "?([^"\s]+)"?', problem)
        return f"the key {key[1] if key else ''} is given twice: keep one of them"
    context = f" {error.context.strip()}" if error.context else ""
    return f"not YAML:{context}: {problem}"


def _kind(content: object) -> str:
    return "the file is empty" if content is None else f"the document is a {type(content).__name__}"


def _place(file: Path, root: Node | None, location: Sequence[str | int], changed: Sequence[FieldPath]) -> str:
    """Return the file and line of a field, or of the innermost object that should contain it; or that --set gave it."""
    if given := _given(location, changed):
        return given
    node = root
    for step in location:
        below = _child(node, step)
        if below is None:
            break
        node = below
    return "" if node is None else f" ({file.name}, line {node.start_mark.line + 1})"


def _given(location: Sequence[str | int], changed: Sequence[FieldPath]) -> str:
    return " (given by --set)" if any(tuple(location[: len(place)]) == place for place in changed) else ""


def _child(node: Node | None, step: str | int) -> Node | None:
    if isinstance(node, MappingNode):
        return next((value for key, value in node.value if key.value == step), None)
    if isinstance(node, SequenceNode) and isinstance(step, int) and step < len(node.value):
        found: Node = node.value[step]
        return found
    return None


def override(content: dict[str, Any], text: str) -> FieldPath:
    """Apply one `spec.path=value` to a manifest's content and return the location that it changed.

    Raises:
        SpecError: there is no `=`, the value is not YAML, or the path does not exist.
    """
    path, equals, value = text.partition("=")
    path = path.strip()
    steps = _STEP.findall(path)
    if not equals or len(steps) < 2 or steps[0] not in {"spec", "metadata"}:
        raise SpecError(
            "--set", f"{text!r}: write spec.path=value, for instance spec.pipeline.maxStaleness=2"
        )
    target: Any = content
    location: FieldPath = ()
    for step in steps[:-1]:
        key = _key(target, step, path)
        location = (*location, key)
        if isinstance(target, dict) and target.get(key) is None:
            target[key] = {}
        target = target[key]
    key = _key(target, steps[-1], path)
    target[key] = _as_json(_parse(value, f"--set {path}")[1])
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
        if step.isdecimal() and int(step) < len(target):
            return int(step)
        names = [item.get("name") if isinstance(item, dict) else None for item in target]
        if step in names:
            return names.index(step)
        known = ", ".join(str(name) for name in names if name) or f"0 to {len(target) - 1}"
        raise SpecError(f"--set {path}", f"the list has no item {step!r}: write one of {known}")
    raise SpecError(f"--set {path}", f"what stands before {step!r} has no fields: docs/api.md lists them all")


# ------------------------------------------------------------------------------------------------------ paths


def resolve_paths(job: RLJob, folder: Path) -> RLJob:
    """Return a copy of the job whose relative paths are resolved against `folder`."""
    spec = job.spec
    update: dict[str, object] = {
        "model": spec.model.model_copy(update={"uri": _absolute(spec.model.uri, folder)}),
        "data": _resolved(spec.data, spec.data.source, folder),
    }
    if spec.evaluation is not None:
        held_out = spec.evaluation.data
        resolved = _resolved(held_out, held_out.source or spec.data.source, folder)
        update["evaluation"] = spec.evaluation.model_copy(update={"data": resolved})
    if spec.weights.uri is not None:
        update["weights"] = spec.weights.model_copy(update={"uri": _absolute(spec.weights.uri, folder)})
    if (uri := spec.trainer.checkpoint.uri) is not None:
        checkpoint = spec.trainer.checkpoint.model_copy(update={"uri": _absolute(uri, folder)})
        update["trainer"] = spec.trainer.model_copy(update={"checkpoint": checkpoint})
    return job.model_copy(update={"spec": spec.model_copy(update=update)})


def _resolved(
    data: DataSpec | EvaluationDataSpec, source: str, folder: Path
) -> DataSpec | EvaluationDataSpec:
    if source == "reasoning-gym" or data.dataset is None:
        return data
    return data.model_copy(update={"dataset": _absolute(data.dataset, folder)})


def _absolute(uri: str, folder: Path) -> str:
    return uri if "://" in uri else str((folder / uri).resolve())


def as_manifest(job: RLJob) -> Mapping[str, Any]:
    """Return the job as a JSON object that includes every default."""
    dumped: Mapping[str, Any] = job.model_dump(mode="json", by_alias=True)
    return dumped
