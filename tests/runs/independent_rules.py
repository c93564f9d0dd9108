"""What must be true of a job's records, for the independent auditor: written from docs/design/streams.md alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

Json = dict[str, Any]


@dataclass
class Rules:
    """A job as its records tell it, one after another; each method yields what is wrong, as sentences.

    Attributes:
        manifests: by digest.
        fed: lines of the trainer's log, by file.
        spec: the user's.
        entries: by group that has not ended, the step whose buffer has its entry.
        siblings: by group, its trajectories.
        trained: by trajectory, the step that trained it.
        aborted: by group, the reason.
        commits: those that count, each with whether it was restored.
        proven: digests of manifests of all commits, those that were revoked later included.
    """

    manifests: dict[str, Json]
    fed: list[Json]
    spec: Json
    pipeline: Json = field(default_factory=dict)
    bound: dict[int, int] = field(default_factory=dict)
    entries: dict[str, int] = field(default_factory=dict)
    siblings: dict[str, list[str]] = field(default_factory=dict)
    payloads: dict[str, Json] = field(default_factory=dict)
    rewards: dict[str, float] = field(default_factory=dict)
    trained: dict[str, int] = field(default_factory=dict)
    aborted: dict[str, str] = field(default_factory=dict)
    assigned: list[Json] = field(default_factory=list)
    attempts: list[Json] = field(default_factory=list)
    commits: list[tuple[Json, bool]] = field(default_factory=list)
    proven: set[str] = field(default_factory=set)
    newest: int = 0
    finished: str = ""
    evaluated: set[int] = field(default_factory=set)
    history: list[Json] = field(default_factory=list)
    _next: int = 0
    _unplanned: set[int] = field(default_factory=set)

    @property
    def version(self) -> int:
        return self.commits[-1][0]["version"] if self.commits else 0

    def take(self, record: Json, digests: frozenset[str]) -> Iterator[str]:
        """Apply a record that counts; `digests` are the chain's since the newest `training` record."""
        self.history.append(record)
        match record["kind"]:
            case "pipeline":
                self.pipeline = record
            case "opened":
                yield from self._open(record)
            case "reserved":
                yield from self._reserve(record)
            case "generated":
                self.payloads[record["trajectory"]] = record
            case "rewarded":
                self.rewards[record["trajectory"]] = record["reward"]
            case "moved":
                yield from self._move(record["group"], record["source"], record["target"])
                if record["displaced"]:
                    yield from self._move(record["displaced"], record["target"], record["source"])
            case "aborted":
                if not self._has_cause(record):
                    yield f"{record['group']} was given up as {record['reason']} without a cause"
                self._end(record["group"], record["reason"])
            case "attempt":
                self.attempts.append(record)
                self.assigned = []
            case "training":
                yield from (
                    f"{g} is trained in step {record['step']}, but has its entry elsewhere"
                    for g in record["groups"]
                    if self.entries.get(g) != record["step"]
                )
                self.assigned.append(record)
            case "committed":
                yield from self._commit(record, digests)
            case "restored":
                yield from self._restore(record)
            case "revoked":
                yield from self._revoke(record)
            case "evaluated":
                self.evaluated.add(record["version"])
            case "finished":
                yield from self._finish(record["outcome"])

    def _open(self, record: Json) -> Iterator[str]:
        step, bound = record["step"], record["max_staleness"]
        if step in self.bound:
            yield f"the buffer of step {step} was opened twice"
        if bound != self.pipeline["max_staleness"]:
            yield f"the buffer of step {step} has another bound than the pipeline"
        if step - bound > self.version:
            yield f"the buffer of step {step} opened too early"
        self.bound[step] = bound

    def _reserve(self, record: Json) -> Iterator[str]:
        group = record["group"]
        if record["prompt"] != self._next or group != f"g{record['prompt']}":
            yield f"{group} is not the group of the next prompt"
        if record["siblings"] != self.spec["data"]["groupSize"]:
            yield f"{group} has {record['siblings']} siblings"
        self._next = max(self._next, record["prompt"] + 1)
        self._pass()
        self.siblings[group] = [f"{group}.{n}" for n in range(record["siblings"])]
        self.entries[group] = record["step"]

    def _pass(self) -> None:
        while self._next in self._unplanned:
            self._next += 1

    def _move(self, group: str, source: int, target: int) -> Iterator[str]:
        if self.entries.get(group) != source:
            yield f"{group} is moved from the buffer of step {source}, where it has no entry"
        self.entries[group] = target

    def _end(self, group: str, reason: str) -> None:
        self.aborted.setdefault(group, reason)
        self.entries.pop(group, None)

    def _commit(self, record: Json, digests: frozenset[str]) -> Iterator[str]:
        name = f"version {record['version']}"
        if not self.attempts or _fence(record) != _fence(self.attempts[-1]):
            yield f"{name} is of a trainer that was not in charge"
        if record["ledger"] not in digests:
            yield f"{name} names another ledger"
        given = [[t for g in a["groups"] for t in self.siblings.get(g, ())] for a in self.assigned]
        if record["micro_batches"] != given:
            yield f"{name} did not train what was assigned"
        if record["max_staleness"] != self.bound.get(record["version"] - 1):
            yield f"{name} has another bound than its buffer"
        yield from self._consume(record, restored=False)

    def _restore(self, record: Json) -> Iterator[str]:
        commit = record["commit"]
        step = commit["version"] - 1
        for group in record["dropped"]:
            if self.entries.get(group) != step:
                yield f"{group} was dropped from the buffer of step {step}, where it has no entry"
            self._end(group, "LedgerLost")
        for trajectory in (t for batch in commit["micro_batches"] for t in batch):
            group = trajectory.rpartition(".")[0]
            if group not in self.siblings:
                self.siblings[group] = [f"{group}.{n}" for n in range(self.spec["data"]["groupSize"])]
                self._unplanned.add(int(group[1:]))
        self._pass()
        self.bound[step] = commit["max_staleness"]
        yield from self._consume(commit, restored=True)
        for group, target in record["moved"].items():
            yield from self._move(group, step, target)
        yield from (
            f"{g} is left in the buffer of step {step}" for g, at in self.entries.items() if at == step
        )

    def _consume(self, commit: Json, *, restored: bool) -> Iterator[str]:
        name, parent = f"version {commit['version']}", self.commits[-1][0]["manifest"] if self.commits else ""
        if commit["version"] != self.version + 1 or commit["parent"] != parent:
            yield f"{name} does not follow version {self.version}"
        yield from self._compare(commit, restored=restored)
        for trajectory in (t for batch in commit["micro_batches"] for t in batch):
            if trajectory in self.trained:
                yield f"{trajectory} was trained twice"
            self.trained[trajectory] = commit["version"] - 1
            self.entries.pop(trajectory.rpartition(".")[0], None)
        self.commits.append((commit, restored))
        self.proven.add(commit["manifest"])
        self.newest, self.assigned = max(self.newest, commit["version"]), []

    def _compare(self, commit: Json, *, restored: bool) -> Iterator[str]:
        """Compare a commit with the trainer's log and with the payloads."""
        name, step = f"version {commit['version']}", commit["version"] - 1
        starts: list[list[Json]] = []
        for line in (x for x in self.fed if (x["step"], *_fence(x)) == (step, *_fence(commit))):
            if line["micro_batch"] == 0 or not starts:
                starts.append([])
            starts[-1].append(line)
        if restored:  # what was begun after it counts no more
            starts = [s for s in starts if _fed(s) == commit["micro_batches"]]
        elif len(starts) > max(
            1, [(a["version"], *_fence(a)) for a in self.attempts].count((step, *_fence(commit)))
        ):
            yield f"step {step} was fed {len(starts)} times"
        if not starts or _fed(starts[-1]) != commit["micro_batches"]:
            yield f"the trainer was not fed what {name} trained"
        read = {item["trajectory"]: item for lines in starts[-1:] for line in lines for item in line["items"]}
        for trajectory in (t for batch in commit["micro_batches"] for t in batch):
            payload, item = self.payloads.get(trajectory), read.get(trajectory)
            known = payload is not None and trajectory in self.rewards
            if restored and item and (payload is None or payload["attempt"] != item["attempt"]):
                known, payload = False, None  # the records of this attempt are lost
            elif not restored and not known:
                yield f"{trajectory} was trained without a payload or a reward"
            for span in (found["span"] for found in (payload, item) if found):
                if not 0 <= span["min"] <= span["max"] <= step:
                    yield f"{trajectory} was trained with tokens of versions that step {step} cannot have"
                if step - span["min"] > self.bound.get(step, -1):
                    yield f"{trajectory} was trained too stale"
            if item and payload and item["digest"] != payload["digest"]:
                yield f"{trajectory} is another one in the trainer's log"
            if item and known and item["reward"] != self.rewards[trajectory]:
                yield f"{trajectory} has another score in the trainer's log"
            if item and item["prompt"] != int(trajectory[1:].split(".")[0]):
                yield f"{trajectory} answers another prompt"

    def _revoke(self, record: Json) -> Iterator[str]:
        version = record["version"]
        gone = [commit for commit, _ in self.commits if commit["version"] > version]
        self.commits = [found for found in self.commits if found[0]["version"] <= version]
        there = self.commits[-1][0] if self.commits else {"version": 0, "key": None, "manifest": ""}
        if (version, record["key"], record["manifest"]) != tuple(
            there[f] for f in ("version", "key", "manifest")
        ):
            yield f"the user went back to version {version}, which is not in the chain"
        trajectories = [t for commit in gone for batch in commit["micro_batches"] for t in batch]
        if record["trajectories"] != len(trajectories):
            yield f"{len(trajectories)} trajectories are revoked, and not {record['trajectories']}"
        for trajectory in trajectories:
            del self.trained[trajectory]
        for group in {*self.entries, *(t.rpartition(".")[0] for t in trajectories)}:
            self._end(group, "VersionRevoked")
        self.bound = {step: bound for step, bound in self.bound.items() if step < version}
        self.evaluated = {found for found in self.evaluated if found <= version}
        self.assigned, self.finished = [], ""

    def _finish(self, outcome: str) -> Iterator[str]:
        self.finished = outcome
        # A finished job may be extended: what counts is the spec of then.
        specs = (record["spec"] for record in reversed(self.history) if record["kind"] == "spec")
        steps = next(specs, self.spec)["steps"]
        if outcome == "Succeeded" and self.version < steps:
            yield f"the job succeeded at version {self.version} of {steps}"
        if outcome == "Succeeded" and self.spec.get("evaluation") and self.version not in self.evaluated:
            yield "the last version was not evaluated"

    def end(self) -> Iterator[str]:
        """What is wrong with the whole."""
        for commit, _ in self.commits:
            proposal = self.manifests.get(commit["manifest"], {}).get("proposal")
            if proposal != {**commit, "manifest": ""}:
                yield f"the manifest of version {commit['version']} has another commit, or is gone"
        for group, members in self.siblings.items():
            done = sum(t in self.trained for t in members)
            if (done and group in self.aborted) or 0 < done < len(members) or self.aborted.get(group) == "":
                yield f"{group} has no single end"
            if self.finished == "Succeeded" and not done and group not in self.aborted:
                yield f"{group} is lost"
        parents = {manifest["parent"] for manifest in self.manifests.values()}
        for digest, manifest in self.manifests.items():
            if manifest["version"] > self.version and digest in parents - self.proven:
                yield f"the ledger has lost version {manifest['version']}, which another one starts from"
        if any(line["step"] > self.newest for line in self.fed):
            yield "the trainer has begun a step that the ledger does not know"

    def _has_cause(self, abort: Json) -> bool:
        """Whether the ledger shows before an abort what its reason says."""
        members, causes = self.siblings.get(abort["group"], []), abort["causes"]
        of_group = [r for r in self.history if r.get("trajectory") in members]
        match abort["reason"]:
            case "UniformGroup":
                scores = {r["trajectory"]: r["reward"] for r in of_group if r["kind"] == "rewarded"}
                alike = scores.keys() == set(members) and len(set(scores.values())) == 1
                return alike and bool(self.spec["algorithm"].get("dropUniformGroups"))
            case "PromptExhausted" if set(causes.values()) == {"PromptUnsendable"}:
                answered = set[str]()
                for record in of_group:
                    if record["kind"] == "generated":
                        answered.add(record["trajectory"])
                    elif record["kind"] == "reset":
                        answered.discard(record["trajectory"])
                return causes.keys() <= set(members) and not causes.keys() & answered
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
                    >= self.pipeline["max_attempts"] - 1
                    for member, cause in causes.items()
                )
            case "PayloadLost":
                given = (r for r in self.history if r["kind"] == "training")
                epochs = {attempt["epoch"] for attempt in self.attempts[-2:]}
                return any(abort["group"] in r["groups"] for r in given) or len(epochs) == 2
            case "JobFinished":
                return bool(self.finished)
        return False


def _fence(record: Json) -> tuple[int, int]:
    return record["attempt"], record["epoch"]


def _fed(lines: list[Json]) -> list[list[str]]:
    return [[item["trajectory"] for item in line["items"]] for line in lines]
