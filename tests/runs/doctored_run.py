"""Copies of a finished run whose evidence tests alter: streams through a real nats-server, everything else as files.

A copy knows nothing of the audited code: records are JSON, and the chain digest is computed here as
`docs/design/streams.md` describes it.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rljob_core.ports import Channel, Message
from rljob_core.stream_names import StreamNames
from rljob_runtime.messaging.nats.store import NatsStore

Json = dict[str, Any]
COPIED = (Channel.LEDGER, Channel.METRICS, Channel.VERSIONS, Channel.REWARDS)
NAMESPACE = "default"


@dataclass
class DoctoredRun:
    """A copy of a run: its folder, and the messages of its streams, which `publish` stores as the copy's own."""

    folder: Path
    streams: dict[Channel, list[Message]]
    deleted: list[int] = field(default_factory=list)

    # ---- the ledger

    @property
    def ledger(self) -> list[Message]:
        return self.streams[Channel.LEDGER]

    def records(self) -> Iterator[tuple[int, Json]]:
        """Each record with the place of its message."""
        for place, message in enumerate(self.ledger):
            if message.suffix in {"claim", "records"}:
                for record in json.loads(message.data)["records"]:
                    yield place, record

    def place(self, kind: str, **fields: Any) -> int:
        """The place of the message that has the first record with these fields."""
        return next(
            place
            for place, record in self.records()
            if record["kind"] == kind and all(record[name] == value for name, value in fields.items())
        )

    def change_records(self, change: Callable[[Json], Json | None], *, chained: bool = True) -> None:
        """Put every record through a function; None removes it. `chained`: the chain of digests follows."""
        changed = 0
        for place, message in enumerate(self.ledger):
            if message.suffix not in {"claim", "records"}:
                continue
            batch = json.loads(message.data)
            records = [
                new for r in batch["records"] if (new := change(json.loads(json.dumps(r)))) is not None
            ]
            if records != batch["records"]:
                changed += 1
                self.ledger[place] = replace(message, data=json.dumps({**batch, "records": records}).encode())
        assert changed
        if chained:
            self.chain()

    def change(
        self,
        kind: str,
        where: Callable[[Json], bool] = lambda r: True,
        *,
        chained: bool = True,
        **fields: Any,
    ) -> None:
        """Set fields of the records of a kind."""
        self.change_records(
            lambda r: {**r, **fields} if r["kind"] == kind and where(r) else r, chained=chained
        )

    def insert(self, place: int, *records: Json, writer: Json | None = None, suffix: str = "records") -> None:
        """Insert a message of records; the chain follows."""
        before = json.loads(self.ledger[place - 1].data)
        data = json.dumps({**before, "writer": writer or before["writer"], "records": records}).encode()
        self.ledger.insert(place, Message(0, suffix, data, {"Nats-Msg-Id": f"inserted/{place}"}))
        self.chain()

    def cut(self, place: int) -> None:
        """Remove the ledger's messages from a place on."""
        del self.ledger[place:]

    def chain(self) -> None:
        """Let every message name the one before it, and have the digest of all up to it."""
        before, digest = "", ""
        for place, message in enumerate(self.ledger):
            identity = message.headers["Nats-Msg-Id"]
            digest = chained(digest, identity, message.suffix, message.data)
            headers = {**message.headers, "Rljob-After": before, "Rljob-Chain": digest}
            self.ledger[place], before = replace(message, headers=headers), identity

    # ---- files

    def change_json(self, name: str, change: Callable[[Json], Any]) -> None:
        """Change the content of a JSON file in place."""
        (file,) = self.folder.glob(name)
        content = json.loads(file.read_text())
        change(content)
        file.write_text(json.dumps(content))

    def change_lines(self, name: str, change: Callable[[list[Json]], Any]) -> None:
        """Change the lines of a file of JSON lines in place."""
        (file,) = self.folder.glob(name)
        lines = [json.loads(line) for line in file.read_text().splitlines()]
        change(lines)
        file.write_text("".join(json.dumps(line) + "\n" for line in lines))

    def change_metrics_stream(self, change: Callable[[list[Json]], Any]) -> None:
        """Change the lines of the metrics stream in place."""
        messages = self.streams[Channel.METRICS]
        lines = [json.loads(message.data) for message in messages]
        change(lines)
        messages[:] = [
            replace(m, data=json.dumps(line).encode()) for m, line in zip(messages, lines, strict=True)
        ]

    # ---- storing it

    def publish(self, url: str) -> None:
        """Store the streams on the server as those of a job of the folder's name, which job.json names from then on."""
        name = self.folder.name

        def own(identity: Json) -> None:
            identity |= {"name": name, "nats_url": url}

        self.change_json("job.json", own)
        uid = json.loads((self.folder / "job.json").read_text())["uid"]
        names = StreamNames.of_job(namespace=NAMESPACE, job=name, uid=uid)

        async def store() -> None:
            opened = NatsStore(url, subject=names.subject, stream_prefix=names.prefix)
            await opened.open()
            for channel, messages in self.streams.items():
                for message in messages:
                    headers = {k: v for k, v in message.headers.items() if k.startswith("Rljob-")}
                    identity = message.headers.get("Nats-Msg-Id")
                    await opened.publish(
                        channel, message.suffix, message.data, headers=headers, message_id=identity
                    )
            if self.deleted:
                await opened.delete(Channel.LEDGER, self.deleted)
            await opened.close()

        asyncio.run(store())


def chained(before: str, identity: str, suffix: str, data: bytes) -> str:
    """The chain digest of a message."""
    digest = hashlib.blake2b(digest_size=16)
    for part in (before.encode(), identity.encode(), suffix.encode(), data):
        digest.update(len(part).to_bytes(8, "big") + part)
    return digest.hexdigest()


def copy_run(run: Path, streams: dict[Channel, list[Message]], target: Path) -> DoctoredRun:
    """Copy a run's folder, without its streams and what the audit does not read."""
    shutil.copytree(
        run, target, symlinks=True, ignore=shutil.ignore_patterns("nats", "logs", "*.safetensors")
    )
    return DoctoredRun(target, {channel: list(messages) for channel, messages in streams.items()})


async def read_streams(url: str, *, job: str, uid: str) -> dict[Channel, list[Message]]:
    """All messages of a job's streams that the audit reads."""
    names = StreamNames.of_job(namespace=NAMESPACE, job=job, uid=uid)
    store = NatsStore(url, subject=names.subject, stream_prefix=names.prefix)
    await store.open()
    found: dict[Channel, list[Message]] = {}
    for channel in COPIED:
        held, last = (await store.depths())[channel.value], await store.last_sequence(channel)
        found[channel] = []
        if held:
            async for batch in store.read(channel):
                found[channel] += batch
                if found[channel][-1].sequence >= last:
                    break
    await store.close()
    return found
