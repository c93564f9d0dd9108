"""What the hub's operator and that of a site tell each other so that jobs have their streams at both, and joined.

Neither can ask the other's server. So each does its own part, says what it has done, and waits for the other where the
order counts: a stream that reads the other side's is created after the consumer that it reads by, and that consumer
begins where the stream does.

| step | at | what |
|---|---|---|
| 1 | hub | the order: which job, with which limits |
| 2 | site | for each stream that reads the hub's and does not exist: an id of the copy that it will make (`copies`) |
| 3 | hub | creates the consumer of that copy, where its consumer is of another one, and says so (`begun`) |
| 4 | site | creates that copy, all its other streams, and the consumers that the hub reads by; it names its server |
| 5 | hub | lets its streams read by them |

Copies and consumers have the id in their metadata, so that operators that start remember nothing. A site whose server
has lost its files is at step 2 again, one whose server was restarted at step 4. A hub's server that was restarted may
have lost what copies have: the site then says how its copies end, and the hub which of them it has to make again. A
site's server that was restarted may have lost what it had confirmed, and passes over it: `weight_inspections`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import Field, StringConstraints, ValidationError

from rljob_core.ports import Channel
from rljob_core.stream_names import StreamNames
from rljob_operator.decisions.site_documents import SiteMessage, packed, unpacked

COPY = "rljob.dev/copy"
"""In the metadata of a copy, and of the consumer at the hub that it reads by: the copy's id."""
_STREAMS = "streams."
_FORMAT = 1
_MOST_COPIES = len(Channel)
MOST_VERSIONS = 512
"""Versions of the weights of which a site says what it has."""
_SPARE_BYTES, _REPORT_BYTES = 256 << 10, 32 << 10
"""What a site may say of one namespace: in any case, and more for each job that the hub has ordered there."""

JobUid = tuple[str, str, str]
"""Namespace, name and UID of an RLJob."""

# Of the other side, and become parts of names and subjects.
CopyId = Annotated[str, StringConstraints(pattern=r"^[a-z0-9]{1,32}$")]
_ServerId = Annotated[str, StringConstraints(pattern=r"^[A-Z0-9]{0,64}$")]
_StreamName = Annotated[str, StringConstraints(max_length=255)]
_VersionKey = Annotated[str, StringConstraints(max_length=255)]
_MessageCount = Annotated[int, Field(ge=0, lt=1 << 53)]


class CopyEnd(SiteMessage):
    """The newest message of a copy.

    Attributes:
        sequence: the same as at the hub; 0 if the copy never had a message.
        message: its id; empty if it is gone.
    """

    sequence: Annotated[int, Field(ge=0, lt=1 << 63)]
    message: Annotated[str, Field(max_length=1024)] = ""


class CopyInspection(SiteMessage):
    """What the hub asks about a site's copy of the weights: the site answers with the versions that it has.

    Attributes:
        server: id of the process of the site's server.
        copy_id: of the copy; empty once there is nothing more to ask of this process.
        confirmed: sequence of the last message that the hub knows the copy to have had.
        awaited: keys of versions that were not written to their end, or not confirmed, when this process was first
            asked, and are not yet; the last `MOST_VERSIONS`.
    """

    server: _ServerId
    copy_id: Annotated[str, StringConstraints(pattern=r"^[a-z0-9]{0,32}$")] = ""
    confirmed: Annotated[int, Field(ge=0, lt=1 << 63)] = 0
    awaited: Annotated[tuple[_VersionKey, ...], Field(max_length=MOST_VERSIONS)] = ()


class StreamsOrder(SiteMessage):
    """What a site is to have of one job.

    Attributes:
        uid: of the RLJob.
        trajectory_bytes: limit of the outbox of trajectories.
        weights: whether the job's weights travel over its streams.
        bits_per_second: of the link; None if unknown.
        generation: of the credentials of the job's roles (`spec.nats.credentialsGeneration`).
        hub: id of the process of the hub's server; empty as long as the hub has not begun.
        begun: by stream, the id of the copy that a consumer of the hub waits for.
        lost: ids of copies that have what the hub has lost, or lack what they had: they are made again.
        inspect: what the site is to say of its copy of the weights; None if nothing.
    """

    uid: str
    trajectory_bytes: int
    weights: bool
    bits_per_second: int | None = None
    generation: int = 0
    hub: _ServerId = ""
    begun: dict[_StreamName, CopyId] = Field(default_factory=dict)
    lost: tuple[CopyId, ...] = ()
    inspect: CopyInspection | None = None


class StreamsReport(SiteMessage):
    """What a site has of one job.

    Attributes:
        uid: of the RLJob.
        copies: by stream that reads the hub's, the id of the copy that exists, or is to be made.
        server: id of the process of the site's server that has the consumers that the hub reads by; empty if it has
            not got all of them.
        ends: by id of a copy that is a mirror, how it ended when the site heard of the hub's process `hub`.
        hub: as the order had it.
        inspected: `inspect` of the order that `versions` answers.
        versions: by key of each version whose tensors the copy has, how many messages it has of the tensors, and of
            the beginning of the manifest; the last `MOST_VERSIONS` in the order of their keys.
        problem: why the site's server has not all streams, in words.
    """

    uid: str
    copies: Annotated[dict[_StreamName, CopyId], Field(max_length=_MOST_COPIES)] = Field(default_factory=dict)
    server: _ServerId = ""
    ends: Annotated[dict[CopyId, CopyEnd], Field(max_length=_MOST_COPIES)] = Field(default_factory=dict)
    hub: _ServerId = ""
    inspected: CopyInspection | None = None
    versions: Annotated[
        dict[_VersionKey, tuple[_MessageCount, _MessageCount]], Field(max_length=MOST_VERSIONS)
    ] = Field(default_factory=dict)
    problem: Annotated[str, Field(max_length=4096)] = ""


class _Orders(SiteMessage):
    format: int = _FORMAT
    jobs: dict[str, StreamsOrder]


class _Reports(SiteMessage):
    format: int = _FORMAT
    jobs: dict[str, StreamsReport]


class _UnreadReports(SiteMessage):
    format: int = _FORMAT
    jobs: dict[str, Any]


@dataclass(frozen=True, slots=True)
class StreamsOrders:
    """What a site is to have.

    Attributes:
        namespaces: of which there is a list; in all others, streams stay as they are.
        jobs: by namespace and name.
    """

    namespaces: frozenset[str]
    jobs: Mapping[tuple[str, str], StreamsOrder]

    def lists(self, job: JobUid) -> bool:
        """Whether a job's streams are not known to be superfluous."""
        namespace, name, uid = job
        order = self.jobs.get((namespace, name))
        return namespace not in self.namespaces or (order is not None and order.uid == uid)


def streams_key(namespace: str) -> str:
    """The key of a namespace's jobs in both buckets."""
    return f"{_STREAMS}{namespace}"


def stream_namespaces(held: Iterable[str]) -> set[str]:
    """The namespaces of whose jobs' streams a bucket with these keys says something."""
    return {key.removeprefix(_STREAMS) for key in held if key.startswith(_STREAMS)}


def orders_text(jobs: Mapping[str, StreamsOrder]) -> bytes:
    """The orders of one namespace, by name of the job, as they travel."""
    return packed(_Orders(jobs=dict(jobs)))


def stream_reports(reports: Mapping[tuple[str, str], StreamsReport]) -> dict[str, bytes]:
    """What a site writes of the streams of each job, by key of its bucket."""
    found: dict[str, dict[str, StreamsReport]] = {}
    for (namespace, name), report in reports.items():
        found.setdefault(namespace, {})[name] = report
    return {streams_key(namespace): packed(_Reports(jobs=jobs)) for namespace, jobs in found.items()}


def read_orders(held: Mapping[str, bytes]) -> StreamsOrders:
    """What a site is to have, by the bucket that the hub writes."""
    namespaces, jobs = set[str](), dict[tuple[str, str], StreamsOrder]()
    for namespace in stream_namespaces(held):
        found = unpacked(held[streams_key(namespace)], _Orders)
        if found is not None and found.format == _FORMAT:
            namespaces.add(namespace)
            jobs |= {(namespace, name): order for name, order in found.jobs.items()}
    return StreamsOrders(frozenset(namespaces), jobs)


def reported_jobs(held: Mapping[str, bytes]) -> set[JobUid]:
    """The jobs of whose streams a site has said something, by the bucket that the site writes; for the site itself."""
    jobs: set[JobUid] = set()
    for namespace in stream_namespaces(held):
        found = unpacked(held[streams_key(namespace)], _Reports)
        if found is not None and found.format == _FORMAT:
            jobs |= {(namespace, name, report.uid) for name, report in found.jobs.items()}
    return jobs


def read_reports(held: Mapping[str, bytes], jobs: Collection[JobUid]) -> dict[JobUid, StreamsReport]:
    """What a site has of some jobs, by the bucket that the site writes.

    A site can write whatever it likes. What it says of other jobs is not read, and takes no time or memory.
    """
    reports: dict[JobUid, StreamsReport] = {}
    named: dict[str, list[JobUid]] = {}
    for job in jobs:
        named.setdefault(job[0], []).append(job)
    for namespace, here in named.items():
        most = _SPARE_BYTES + _REPORT_BYTES * len(here)
        found = unpacked(held.get(streams_key(namespace), b""), _UnreadReports, largest=most)
        if found is None or found.format != _FORMAT:
            continue
        for job in here:
            report = _report(found.jobs.get(job[1]))
            if report is not None and report.uid == job[2]:
                reports[job] = report
    return reports


def _report(found: object) -> StreamsReport | None:
    try:
        return StreamsReport.model_validate(found)
    except ValidationError:
        return None


def job_of_stream(stream: str) -> JobUid | None:
    """The job that a stream belongs to; None if it is no job's."""
    parts = stream.removeprefix("KV_").split("_")
    if len(parts) != 5:
        return None
    job = parts[1], parts[2], parts[3]
    names = StreamNames.of_job(namespace=job[0], job=job[1], uid=job[2])
    return job if stream in names.all_streams else None
