"""The ledger of an evidence builder as a stream."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from evidence_builder import Entry, EvidenceBuilder

from rljob_cli.audit.evidence import ManifestFile
from rljob_core.ports import Channel, MessageStore
from rljob_core.records import EpochClaimed, Record, RecordBatch, StepCommitted, encode_batch
from rljob_runtime.messaging import ledger


class LedgerChain:
    """Gives each message of a ledger its id and its chain digest.

    Args:
        name: of the ledger, with which the ids begin.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._count = 0
        self.id = self.digest = ""

    def add(self, suffix: str, data: bytes) -> None:
        """`id` and `digest` are those of this message, which follows the one before it."""
        self._count += 1
        self.id = f"{self._name}/{self._count}"
        self.digest = ledger.chain_digest(self.digest, self.id, suffix, data)


def messages_of(entry: Entry) -> Iterator[tuple[str, bytes]]:
    """Suffix and content of its messages: a snapshot is in two parts."""
    if entry.snapshot is not None:
        yield ledger.PART, entry.snapshot[:100]
        yield ledger.SNAPSHOT, entry.snapshot[100:]
        return
    claims = entry.counts and any(isinstance(record, EpochClaimed) for record in entry.records)
    data = encode_batch(RecordBatch(entry.writer, entry.records))
    yield ledger.CLAIM if claims else ledger.RECORDS, data


def seal(evidence_builder: EvidenceBuilder, write: Callable[[ManifestFile, StepCommitted], str]) -> None:
    """Let ledger and manifests name one another's true digests, in the order in which they were made.

    Args:
        evidence_builder: whose ledger is altered.
        write: stores a manifest with this proposal, and returns its digest.
    """
    sealed, named = {"": ""}, dict[str, str]()
    left = {file.digest: file for file in evidence_builder.manifests}

    def commit(file: ManifestFile) -> StepCommitted:
        assert file.proposal is not None
        ledger = named.get(file.proposal.ledger, file.proposal.ledger)
        proposal = replace(file.proposal, parent=sealed[file.parent], ledger=ledger)
        sealed[file.digest] = write(file, proposal)
        return replace(proposal, manifest=sealed[file.digest])

    def rename(record: Record) -> Record:
        return commit(left.pop(record.manifest)) if isinstance(record, StepCommitted) else record

    chain = LedgerChain(evidence_builder.name)
    for number, written in enumerate(evidence_builder.ledger):
        entry = replace(written, records=tuple(map(rename, written.records)))
        evidence_builder.ledger[number] = entry
        for suffix, data in messages_of(entry):
            chain.add(suffix, data)
        named[entry.digest] = chain.digest
    for file in left.values():
        commit(file)


async def append(store: MessageStore, evidence_builder: EvidenceBuilder) -> None:
    """The ledger's messages, each naming the one before it."""
    chain, part = LedgerChain(evidence_builder.name), 0
    for entry in evidence_builder.ledger:
        for suffix, data in messages_of(entry):
            headers = {"Rljob-After": chain.id if entry.counts else "lost"}
            chain.add(suffix, data)
            headers[ledger.CHAIN_DIGEST] = chain.digest
            if suffix == ledger.SNAPSHOT:
                headers["Rljob-Parts"] = str(part)
            part = await store.publish(Channel.LEDGER, suffix, data, headers=headers, message_id=chain.id)
