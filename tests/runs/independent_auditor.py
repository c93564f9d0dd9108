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

Json = dict[str, Any]


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
            kinds = [record["kind"] for record in batch["records"] if not record.get("former")]
            if kinds.count("spec") != kinds.count("epoch"):
                found.wrong.append(f"message {sequence} of the ledger has no spec, or one without a claim")
            if (batch["writer"]["number"], batch["writer"]["instance"]) == writer:
                found.records += [(record, digests) for record in batch["records"]]
                if any(record["kind"] == "training" for record in batch["records"]):
                    digests = frozenset()
        digests |= {chain}
    return found


def audit(folder: Path) -> list[str]:
    """Say what is wrong with the job in a run's folder, whose server runs at the address in its job.json."""
    identity = json.loads((folder / "job.json").read_text())
    nats = Nats(identity["nats_url"])
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
    wrong += check(ledger.records, manifests, fed, identity["manifest"]["spec"])
    newest = next((r for r, _ in reversed(ledger.records) if r["kind"] == "pipeline"), {})
    if (
        not identity["patches"]
        and newest.get("max_staleness") != identity["manifest"]["spec"]["pipeline"]["maxStaleness"]
    ):
        wrong.append("the ledger has another bound than the user")
    return wrong


def check(
    records: list[tuple[Json, frozenset[str]]], manifests: dict[str, Json], fed: list[Json], spec: Json
) -> Iterator[str]:
    """Compare the records that count with the manifests, the trainer's log and the user's spec."""
    bound: dict[int, int] = {}
    pipeline: Json = {}
    siblings: dict[str, int] = {}
    prompts: list[int] = []
    spans: dict[str, Json] = {}
    rewards: dict[str, float] = {}
    trained: dict[str, int] = {}
    aborted: dict[str, str] = {}
    assigned: list[Json] = []
    fence: Json = {}
    parent, version, finished = "", 0, ""
    evaluated: set[int] = set()
    history: list[Json] = []
    for record, digests in records:
        history.append(record)
        kind = record["kind"]
        if kind == "pipeline":
            pipeline = record
        elif kind == "opened":
            bound[record["step"]] = record["max_staleness"]
            if record["max_staleness"] != pipeline["max_staleness"]:
                yield f"the buffer of step {record['step']} has another bound than the pipeline"
            if record["step"] - record["max_staleness"] > version:
                yield f"the buffer of step {record['step']} opened too early"
        elif kind == "reserved":
            if record["prompt"] != len(prompts) or record["group"] != f"g{record['prompt']}":
                yield f"{record['group']} is not the group of the next prompt"
            prompts.append(record["prompt"])
            siblings[record["group"]] = record["siblings"]
            if record["siblings"] != spec["data"]["groupSize"]:
                yield f"{record['group']} has {record['siblings']} siblings"
        elif kind == "generated":
            spans[record["trajectory"]] = record
        elif kind == "rewarded":
            rewards[record["trajectory"]] = record["reward"]
        elif kind == "aborted":
            aborted[record["group"]] = record["reason"]
            members = [f"{record['group']}.{n}" for n in range(siblings.get(record["group"], 0))]
            if not has_cause(record, members, history, pipeline, spec):
                yield f"{record['group']} was given up as {record['reason']} without a cause"
        elif kind == "attempt":
            fence, assigned = record, []
        elif kind == "training":
            assigned.append(record)
        elif kind == "finished":
            finished = record["outcome"]
            if finished == "Succeeded" and version < spec["steps"]:
                yield f"the job succeeded at version {version} of {spec['steps']}"
            if finished == "Succeeded" and spec.get("evaluation") and version not in evaluated:
                yield "the last version was not evaluated"
        elif kind == "evaluated":
            evaluated.add(record["version"])
        elif kind == "committed":
            name = f"version {record['version']}"
            if record["version"] != version + 1 or record["parent"] != parent:
                yield f"{name} does not follow version {version}"
            if (record["attempt"], record["epoch"]) != (fence["attempt"], fence["epoch"]):
                yield f"{name} is of a trainer that was not in charge"
            if record["ledger"] not in digests:
                yield f"{name} names another ledger"
            given = [[f"{g}.{n}" for g in a["groups"] for n in range(siblings.get(g, 0))] for a in assigned]
            if record["micro_batches"] != given:
                yield f"{name} did not train what was assigned"
            proposal = manifests.get(record["manifest"], {}).get("proposal")
            if proposal != {**record, "manifest": ""}:
                yield f"the manifest of {name} has another commit, or is gone"
            step = record["version"] - 1
            lines = [
                x
                for x in fed
                if (x["step"], x["attempt"], x["epoch"]) == (step, record["attempt"], record["epoch"])
            ]
            starts = [n for n, line in enumerate(lines) if line["micro_batch"] == 0]
            lines = lines[starts[-1] :] if starts else []
            if len(starts) > 1:
                yield f"step {step} was fed {len(starts)} times"
            if [[item["trajectory"] for item in line["items"]] for line in lines] != record["micro_batches"]:
                yield f"the trainer was not fed what {name} trained"
            read = {item["trajectory"]: item for line in lines for item in line["items"]}
            for trajectory in (t for batch in record["micro_batches"] for t in batch):
                if trajectory in trained:
                    yield f"{trajectory} was trained twice"
                trained[trajectory] = step
                payload, item = spans.get(trajectory), read.get(trajectory)
                if payload is None or trajectory not in rewards:
                    yield f"{trajectory} was trained without a payload or a reward"
                    continue
                for span in (payload["span"], *([item["span"]] if item else [])):
                    if not 0 <= span["min"] <= span["max"] <= step:
                        yield f"{trajectory} was trained with tokens of versions that step {step} cannot have"
                    if step - span["min"] > bound.get(step, -1):
                        yield f"{trajectory} was trained too stale"
                if item and (item["digest"], item["reward"]) != (payload["digest"], rewards[trajectory]):
                    yield f"{trajectory} is another one in the trainer's log"
                if item and item["prompt"] != int(trajectory[1:].split(".")[0]):
                    yield f"{trajectory} answers another prompt"
            parent, version, assigned = record["manifest"], record["version"], []
    for group, size in siblings.items():
        done = sum(f"{group}.{n}" in trained for n in range(size))
        if (done and group in aborted) or 0 < done < size or aborted.get(group) == "":
            yield f"{group} has no single end"
        if finished == "Succeeded" and not done and group not in aborted:
            yield f"{group} is lost"
    parents = {manifest["parent"] for manifest in manifests.values()}
    for digest, manifest in manifests.items():
        if manifest["version"] > version and digest in parents:
            yield f"the ledger has lost version {manifest['version']}, which another one starts from"
    if any(line["step"] > version for line in fed):
        yield "the trainer has begun a step that the ledger does not know"


def has_cause(abort: Json, members: list[str], history: list[Json], pipeline: Json, spec: Json) -> bool:
    """Whether the ledger shows before an abort what its reason says."""
    of_group = [r for r in history if r.get("trajectory") in members]
    causes = abort["causes"]
    match abort["reason"]:
        case "UniformGroup":
            scores = {r["trajectory"]: r["reward"] for r in of_group if r["kind"] == "rewarded"}
            alike = scores.keys() == set(members) and len(set(scores.values())) == 1
            return alike and bool(spec["algorithm"].get("dropUniformGroups"))
        case "PromptExhausted" if set(causes.values()) == {"PromptUnsendable"}:
            return causes.keys() <= set(members) and not any(r["kind"] == "generated" for r in of_group)
        case "PromptExhausted":
            counts = {
                (member, field): sum(
                    r["kind"] == "reset" and r["trajectory"] == member and bool(r.get(field))
                    for r in of_group
                )
                for member in members
                for field in ("failure", "died")
            }
            return bool(causes) and all(
                member in members
                and max(counts[member, "failure"], counts[member, "died"] if cause == "EngineLost" else 0)
                >= pipeline["max_attempts"] - 1
                for member, cause in causes.items()
            )
        case "PayloadLost":
            epochs = [r["epoch"] for r in history if r["kind"] == "attempt"][-2:]
            given = any(r["kind"] == "training" and abort["group"] in r["groups"] for r in history)
            return given or len(set(epochs)) == 2
        case "JobFinished":
            return any(r["kind"] == "finished" for r in history)
    return False


if __name__ == "__main__":
    found = audit(Path(sys.argv[1]))
    sys.stdout.write("".join(f"{sentence}\n" for sentence in found))
    sys.exit(bool(found))
