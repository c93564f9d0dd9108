"""URIs of models and data sets that are downloaded before a job uses them: `hf://`, `s3://`, `gs://`.

| URI | what it names |
|---|---|
| `hf://org/name@revision` | a model on a hub; without a revision: `main` |
| `hf://datasets/org/name@revision/path` | a data set: a file, a folder of files, a pattern such as `train-*.parquet` |
| `s3://bucket/prefix`, `gs://bucket/prefix` | a model's folder, or a data set as above, in an object store |

A slash in a revision is written `%2F`, as in `refs%2Fpr%2F1`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from hashlib import sha256

from rljob_core.errors import SpecError
from rljob_core.spec import EvaluationDataSpec, HeldOutSetSpec, RLJob, RLJobSpec
from rljob_core.spec.remote_forms import HUB_DATA, HUB_MODEL, SCHEMES

_DATASETS = "hf://datasets/"


@dataclass(frozen=True, slots=True)
class RemoteUri:
    """A URI, in its parts.

    Attributes:
        scheme: `hf`, `s3` or `gs`.
        place: of a hub `org/name`; of an object store `bucket/prefix`.
        revision: of a hub, as it was written; empty: `main`.
        path: of a data set on a hub: the file, folder or pattern in it.
        is_data: whether it names a data set rather than a model.
    """

    scheme: str
    place: str
    revision: str = ""
    path: str = ""
    is_data: bool = False

    @property
    def without_revision(self) -> str:
        """What stays the same when another revision is asked for."""
        kind = "datasets/" if self.is_data and self.scheme == "hf" else ""
        return f"{self.scheme}://{kind}{self.place}" + (f"/{self.path}" if self.path else "")

    def pinned(self, revision: str) -> RemoteUri:
        """This URI with another revision."""
        return replace(self, revision=revision)


def is_remote(uri: str) -> bool:
    """Whether a model or a data set at that URI is downloaded before it is used."""
    return uri.startswith(SCHEMES)


def remote_uri(uri: str, *, is_data: bool) -> RemoteUri | None:
    """The parts of a URI; None if it has none of the schemes, or not the form that the schema asks for."""
    scheme, _, rest = uri.partition("://")
    if not is_remote(uri):
        return None
    if scheme != "hf":
        return RemoteUri(scheme, rest.rstrip("/"), is_data=is_data)
    if re.fullmatch(HUB_DATA if is_data else HUB_MODEL, uri) is None:
        return None
    rest = uri.removeprefix(_DATASETS) if is_data else rest
    organisation, _, rest = rest.partition("/")
    name, _, path = rest.partition("/")
    name, _, revision = name.partition("@")
    return RemoteUri(scheme, f"{organisation}/{name}", revision, path, is_data)


@dataclass(frozen=True, slots=True)
class RemoteSource:
    """The model or a data set of a job.

    Attributes:
        name: `model`, `data`, `evaluation`, or `evaluation.<name>` of a held-out set.
        field: the manifest's field that gives the URI.
        uri: as it is written there.
        source: of a data set, as `spec.data.source`; empty for the model.
    """

    name: str
    field: str
    uri: str
    source: str = ""


def sources(spec: RLJobSpec) -> tuple[RemoteSource, ...]:
    """The model and the data sets that a job names, downloaded or not."""
    found = [
        RemoteSource("model", "spec.model.uri", spec.model.uri),
        RemoteSource("data", "spec.data.dataset", spec.data.dataset, spec.data.source),
    ]
    if (evaluation := spec.evaluation) is None:
        return tuple(found)
    held_out = [("evaluation", "spec.evaluation.data", evaluation.data)]
    for one in evaluation.sets:
        data = one.data.model_copy(update={"source": one.data.source or evaluation.data.source})
        held_out.append((_name_of(one), f"spec.evaluation.sets.{one.name}.data", data))
    found += [
        RemoteSource(name, f"{field}.dataset", data.dataset, data.source or spec.data.source)
        for name, field, data in held_out
        if data.dataset is not None
    ]
    return tuple(found)


def remote_sources(spec: RLJobSpec) -> tuple[RemoteSource, ...]:
    """What a job downloads before it uses it.

    Raises:
        SpecError: a held-out data set is downloaded, and its source generates data.
    """
    found = tuple(one for one in sources(spec) if is_remote(one.uri))
    for one in found:
        if one.source == "reasoning-gym":
            raise SpecError(
                one.field.replace(".dataset", ".source"),
                "must be jsonl or parquet, as the data set's files are",
            )
    return found


def _name_of(held_out: HeldOutSetSpec) -> str:
    return f"evaluation.{held_out.name}"


def uri_digest(uri: str) -> str:
    """A short word for a URI, as a message with all of a job's may be too short for the URIs."""
    return sha256(uri.encode()).hexdigest()[:12]


def known_revision(
    source: RemoteSource, sources: Iterable[RemoteSource], known: Mapping[tuple[str, str], str]
) -> str:
    """The revision of a source that is known: its own, or else that of another that names the same.

    Args:
        source: the one.
        sources: all of the job.
        known: revisions by a source's name and URI: of another URI, they say nothing.
    """
    for one in (source, *sources):
        # In a bucket, the revision is a digest of the files of that kind.
        is_same = one.uri == source.uri and (one.source == source.source or one.uri.startswith("hf://"))
        if is_same and (revision := known.get((one.name, one.uri))):
            return revision
    return ""


def with_paths(spec: RLJobSpec, paths: Mapping[str, str]) -> RLJobSpec:
    """The spec with the URIs of its model and data sets replaced.

    Args:
        spec: the spec.
        paths: what replaces them, by the name of the source; others stay.
    """
    update: dict[str, object] = {}
    if "model" in paths:
        update["model"] = spec.model.model_copy(update={"uri": paths["model"]})
    if "data" in paths:
        update["data"] = spec.data.model_copy(update={"dataset": paths["data"]})
    if (evaluation := spec.evaluation) is not None:
        sets = [
            one.model_copy(update={"data": _with_dataset(one.data, paths.get(_name_of(one)))})
            for one in evaluation.sets
        ]
        data = _with_dataset(evaluation.data, paths.get("evaluation"))
        update["evaluation"] = evaluation.model_copy(update={"data": data, "sets": sets})
    return spec.model_copy(update=update)


def _with_dataset(data: EvaluationDataSpec, dataset: str | None) -> EvaluationDataSpec:
    return data if dataset is None else data.model_copy(update={"dataset": dataset})


def job_with_paths(job: RLJob, downloads: Mapping[str, Mapping[str, str]]) -> RLJob:
    """The job with paths in place of the URIs of what was downloaded.

    Args:
        job: the job.
        downloads: `uri` and `path` of what was downloaded, by the source's name; of another URI than the job's, it is
            left out.
    """
    paths = {
        one.name: downloads[one.name]["path"]
        for one in remote_sources(job.spec)
        if downloads.get(one.name, {}).get("uri") == one.uri
    }
    return job if not paths else job.model_copy(update={"spec": with_paths(job.spec, paths)})


def leaves_folder(name: str) -> bool:
    """Whether a file of that name, as a server gives it, would not be below the folder into which it is downloaded."""
    parts = name.split("/")
    return (
        not name
        or "\\" in name
        or any(part in {"", ".", ".."} for part in parts)
        or any(ord(character) < 32 for character in name)
    )


def unsafe_weights(names: Iterable[str]) -> list[str]:
    """The files that hold weights as pickles, which run code when they are loaded."""
    return [name for name in names if name.endswith((".bin", ".pt", ".pth", ".pkl", ".pickle", ".ckpt"))]
