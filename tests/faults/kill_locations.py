"""Locates kills in the ledger alone: compares the server's timestamp of each message with the time of the kill."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import nats
from boundaries import Boundary, Key
from e2e.harness.nats_server import EmbeddedServer
from observed_messages import Seen

from rljob_core.ports import Channel
from rljob_core.records import EpochClaimed, Record, StepCommitted, StepRestored, Writer, decode_batch
from rljob_core.stream_names import StreamNames

RANDOM, PAIR = "any moment", "any moment, two at once"


@dataclass(frozen=True, slots=True)
class Kill:
    """A process that was killed.

    Attributes:
        where: the boundary's name, `RANDOM` or `PAIR`.
        boundary, key: what was seen, if it was at a boundary.
        at: nanoseconds since 1970, by the clock that the server reads, too.
    """

    role: str
    pid: int
    at: int
    where: str
    boundary: Boundary | None = None
    key: Key = None


@dataclass(frozen=True, slots=True)
class Written:
    """A message of the ledger; `at` is when the server stored it (nanoseconds since 1970)."""

    sequence: int
    at: int
    writer: Writer
    records: tuple[Record, ...]


@dataclass(frozen=True, slots=True)
class Landed:
    """A kill's place: between which two messages of the ledger, and in which step.

    `there`: whether what the ledger says up to there is what the boundary is.
    """

    kill: Kill
    run: str
    step: int
    before: Written | None
    after: Written | None
    there: bool

    def __str__(self) -> str:
        milliseconds = f"{(self.after.at - self.kill.at) / 1e6:,.0f} ms later" if self.after else "the end"
        return (
            f"{self.run:<22} {self.kill.where:<24} {self.kill.role:<12} step {self.step:<3} "
            f"{_described(self.before)} | {milliseconds}: {_described(self.after)}"
        )


def _described(message: Written | None) -> str:
    if message is None:
        return "-"
    kinds = Counter(record.kind for record in message.records)
    what = ", ".join(f"{kind}" if count == 1 else f"{count} {kind}" for kind, count in kinds.items())
    return f"#{message.sequence} of writer {message.writer.count} ({what})"


def read_ledger(nats_folder: Path, names: StreamNames) -> list[Written]:
    """All messages of an ended run's ledger."""

    async def read() -> list[Written]:
        found: list[Written] = []
        async with EmbeddedServer(nats_folder) as server:
            client = await nats.connect(server.url)
            stream = names.stream(Channel.LEDGER)
            context = client.jetstream()
            last = (await context.stream_info(stream)).state.last_seq
            reader = await context.subscribe(
                names.subject_of(Channel.LEDGER, ">"), stream=stream, ordered_consumer=True
            )
            while not found or found[-1].sequence < last:
                message = await reader.next_msg(timeout=60)
                if message.subject.rpartition(".")[2] not in {"claim", "records"}:
                    continue
                batch = decode_batch(message.data)
                time = message.metadata.timestamp
                at = int(time.timestamp()) * 1_000_000_000 + time.microsecond * 1000
                found.append(Written(message.metadata.sequence.stream, at, batch.writer, batch.records))
            await client.close()
        return found

    return asyncio.run(read())


def locate(run: str, kills: Sequence[Kill], ledger: Sequence[Written]) -> list[Landed]:
    """Where they landed."""
    seen, position = Seen(), 0
    located = []
    for kill in sorted(kills, key=lambda kill: kill.at):
        # The server's times come to us in microseconds.
        while position < len(ledger) and ledger[position].at <= kill.at:
            for record in ledger[position].records:
                seen.take(record)
            position += 1
        before = ledger[position - 1] if position else None
        after = ledger[position] if position < len(ledger) else None
        there = kill.boundary is None or kill.boundary.lands(kill.key, seen)
        located.append(Landed(kill, run, seen.committed, before, after, there))
    return located


def epochs(ledger: Sequence[Written]) -> int:
    """How often a coordinator took charge."""
    return sum(isinstance(record, EpochClaimed) for message in ledger for record in message.records)


def commits(ledger: Sequence[Written]) -> list[int]:
    """Versions, in the order in which the ledger has them."""
    found = []
    for message in ledger:
        for record in message.records:
            if isinstance(record, StepCommitted):
                found.append(record.version)
            elif isinstance(record, StepRestored):
                found.append(record.commit.version)
    return found


def table(landed: Sequence[Landed], rows: Sequence[str], columns: Sequence[str]) -> list[str]:
    """Kills by boundary and role; those that did not land where they should are left out."""
    counts = Counter((one.kill.where, one.kill.role) for one in landed if one.there)
    width = max(map(len, rows))
    lines = [f"{'':<{width}}  " + "  ".join(f"{column:>11}" for column in columns)]
    lines += [
        f"{row:<{width}}  " + "  ".join(f"{counts[row, column]:>11}" for column in columns) for row in rows
    ]
    return lines
