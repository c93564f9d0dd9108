"""A small auditor of a job in a run's folder, written from docs/design/streams.md alone: it uses nothing of rljob.

It asks the job's nats-server over a bare socket, and returns what is wrong as sentences.
"""

from __future__ import annotations

import base64
import hashlib
import json
import socket
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import xxhash
from independent_rules import Rules
from independent_specs import changed_without_a_claim

Json = dict[str, Any]
OF_ROLLBACKS = {"epoch", "restored", "pipeline", "opened", "revoked"}


class Nats:
    """A connection to a nats-server, for requests to its JetStream API."""

    def __init__(self, url: str) -> None:
        address = urlsplit(url)
        self._socket = socket.create_connection((address.hostname, address.port or 4222), timeout=30)
        self._file = self._socket.makefile("rb")
        self._file.readline()
        self._send(b'CONNECT {"verbose":false,"pedantic":false}\r\nSUB _INBOX.audit 1\r\n')

    def _send(self, data: bytes) -> None:
        self._socket.sendall(data)

    def request(self, subject: str, body: Json) -> Json:
        data = json.dumps(body).encode()
        self._send(f"PUB {subject} _INBOX.audit {len(data)}\r\n".encode() + data + b"\r\n")
        while True:
            line = self._file.readline()
            if line.startswith(b"PING"):
                self._send(b"PONG\r\n")
            if line.startswith(b"MSG"):
                found = self._file.read(int(line.split()[-1]))
                self._file.readline()
                return json.loads(found)

    def messages(self, stream: str) -> Iterator[tuple[int, str, dict[str, str], bytes]]:
        """Sequence, subject, headers and data of each message; gaps are left out."""
        state = self.request(f"$JS.API.STREAM.INFO.{stream}", {})["state"]
        for sequence in range(state["first_seq"], state["last_seq"] + 1) if state["messages"] else ():
            answer = self.request(f"$JS.API.STREAM.MSG.GET.{stream}", {"seq": sequence})
            if "message" in answer:
                message = answer["message"]
                lines = base64.b64decode(message.get("hdrs", "")).decode().split("\r\n")[1:]
                headers = {
                    name: value.strip() for name, _, value in (x.partition(":") for x in lines) if name
                }
                yield sequence, message["subject"], headers, base64.b64decode(message.get("data", ""))

    def close(self) -> None:
        self._file.close()
        self._socket.close()


@dataclass
class Ledger:
    """The records that count, each with the chain digests from the newest `training` record to just before it."""

    records: list[tuple[Json, frozenset[str]]] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)


def read_ledger(messages: Iterator[tuple[int, str, dict[str, str], bytes]]) -> Ledger:
    """Select the records that count."""
    found = Ledger()
    before, chain, broken, writer, following = "", "", False, (0, ""), 1
    digests: frozenset[str] = frozenset()
    has_spec, spec, pipeline = True, None, {}
    for sequence, subject, headers, data in messages:
        suffix, identity = subject.rsplit(".", 1)[1], headers.get("Nats-Msg-Id", "")
        if sequence != following:
            found.wrong.append(f"message {following} of the ledger is gone")
        following = sequence + 1
        follows = headers.get("Rljob-After") == before
        broken = not follows or (broken and suffix != "claim")
        digest = hashlib.blake2b(digest_size=16)
        for part in (chain.encode(), identity.encode(), suffix.encode(), data):
            digest.update(len(part).to_bytes(8, "big") + part)
        before, chain = identity, headers.get("Rljob-Chain", "")
        if broken:
            continue
        if chain != digest.hexdigest():
            found.wrong.append(f"message {sequence} of the ledger was altered")
        if suffix in {"claim", "records"}:
            batch = json.loads(data)
            for record in batch["records"]:
                if record["kind"] == "epoch" and record["number"] > writer[0]:
                    writer = (record["number"], record["instance"])
            if (batch["writer"]["number"], batch["writer"]["instance"]) == writer:
                kinds = [record["kind"] for record in batch["records"]]
                if "epoch" in kinds:
                    has_spec = "spec" in kinds or bool(batch["records"][0].get("former"))
                if ("epoch" in kinds and kinds.count("spec") > 1) or not (
                    has_spec or set(kinds) <= OF_ROLLBACKS
                ):
                    found.wrong.append(f"message {sequence} of the ledger has no spec, or several in a claim")
                for record in batch["records"]:
                    if record["kind"] == "spec" and "epoch" not in kinds:
                        found.wrong += changed_without_a_claim(spec, record["spec"], pipeline)
                    spec = record["spec"] if record["kind"] == "spec" else spec
                    pipeline = record if record["kind"] == "pipeline" else pipeline
                found.records += [(record, digests) for record in batch["records"]]
                if any(record["kind"] == "training" for record in batch["records"]):
                    digests = frozenset()
        digests |= {chain}
    return found


def audit(folder: Path, url: str = "") -> list[str]:
    """Say what is wrong with the job in a run's folder, whose server runs at `url`, or where its job.json says."""
    identity = json.loads((folder / "job.json").read_text())
    nats = Nats(url or identity["nats_url"])
    stream = f"RLJOB_{identity['namespace']}_{identity['name']}_{identity['uid']}_ledger"
    ledger = read_ledger(nats.messages(stream))
    nats.close()
    wrong = ledger.wrong
    manifests = {}
    for file in folder.glob("weights/*/manifest.json"):
        manifest = json.loads(file.read_text())
        digest = manifest.pop("digest")
        text = json.dumps(manifest, sort_keys=True, separators=(",", ":"))
        if xxhash.xxh3_128_hexdigest(text.encode()) != digest:
            wrong.append(f"{file} was altered")
        manifests[digest] = manifest
    fed = [
        json.loads(line)
        for file in sorted(folder.glob("trainer/attempt-*.jsonl"))
        for line in file.read_bytes().splitlines(keepends=True)
        if line.endswith(b"\n")
    ]
    rules = Rules(manifests, fed, identity["manifest"]["spec"])
    for record, digests in ledger.records:
        wrong += rules.take(record, digests)
    wrong += rules.end()
    newest = next((r for r, _ in reversed(ledger.records) if r["kind"] == "pipeline"), {})
    if (
        not identity["patches"]
        and newest.get("max_staleness") != identity["manifest"]["spec"]["pipeline"]["maxStaleness"]
    ):
        wrong.append("the ledger has another bound than the user")
    return wrong


if __name__ == "__main__":
    found = audit(Path(sys.argv[1]))
    sys.stdout.write("".join(f"{sentence}\n" for sentence in found))
    sys.exit(bool(found))
