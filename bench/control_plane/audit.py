"""Reads the API server's audit log: the operator's requests, and users' writes to RLJobs, with microseconds."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

OPERATOR = "system:serviceaccount:rljob-system:rljob-operator"
WRITES = frozenset({"create", "update", "patch", "delete", "deletecollection"})


@dataclass(frozen=True, slots=True)
class Request:
    """One request; `began` and `ended` in seconds since 1970."""

    began: float
    ended: float
    operator: bool
    verb: str
    resource: str
    subresource: str
    name: str
    status: int

    @property
    def write(self) -> bool:
        return self.verb in WRITES


class AuditLog:
    """The log of one API server, read a piece at a time."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "audit.log"
        self._policy = folder / "audit-policy.json"
        self._read = 0
        # Requests of others are many, and no figure needs them.
        jobs = {"group": "rljob.dev", "resources": ["rljobs"]}
        rules = [
            {"level": "Metadata", "users": [OPERATOR]},
            {"level": "Metadata", "verbs": sorted(WRITES), "resources": [jobs]},
            {"level": "None"},
        ]
        policy = {"apiVersion": "audit.k8s.io/v1", "kind": "Policy", "rules": rules}
        self._policy.write_text(json.dumps({**policy, "omitStages": ["RequestReceived"]}))

    @property
    def flags(self) -> list[str]:
        """Flags of kube-apiserver that switch this log on."""
        return [f"--audit-policy-file={self._policy}", f"--audit-log-path={self._file}"]

    def read(self) -> list[Request]:
        """The requests since the last call. A watch counts when it begins."""
        if not self._file.exists():
            return []
        with self._file.open("rb") as file:
            file.seek(self._read)
            text = file.read()
        whole = text.rfind(b"\n") + 1
        self._read += whole
        return list(_requests(text[:whole].splitlines()))


def _requests(lines: Iterable[bytes]) -> Iterable[Request]:
    for line in lines:
        event = json.loads(line)
        if (event["verb"] == "watch") != (event["stage"] == "ResponseStarted"):
            continue
        about = event.get("objectRef", {})
        yield Request(
            began=_seconds(event["requestReceivedTimestamp"]),
            ended=_seconds(event["stageTimestamp"]),
            operator=event["user"].get("username") == OPERATOR,
            verb=event["verb"],
            resource=about.get("resource", ""),
            subresource=about.get("subresource", ""),
            name=about.get("name", ""),
            status=event.get("responseStatus", {}).get("code", 0),
        )


def _seconds(timestamp: str) -> float:
    return datetime.fromisoformat(timestamp).timestamp()
