"""What the platform lets RLJobs name: the rules of a ConfigMap, and the refusal of a job that does not keep to them.

    data:
      mode: Enforce            # or Warn, or Off
      secrets: |               # one name a line; * at the end: every name that begins so
        hf-token
        rljob-*
      team-a.secrets: |        # instead of these, in the namespace team-a
        team-a-*

A key that is missing allows nothing, so that a kind of name that a newer version knows is refused until it is allowed.
The admission policy (`crd.job_policy`) reads the same ConfigMap, and says the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from rljob_core.spec import RLJob
from rljob_operator.decisions.job_mentions import Mention, mentions
from rljob_operator.decisions.named_fields import MentionKind

CONFIG_MAP = "rljob-job-rules"
WORDS: Mapping[MentionKind, str] = {
    MentionKind.IMAGES: "name these images",
    MentionKind.SECRETS: "name these Secrets",
    MentionKind.CONFIG_MAPS: "name these ConfigMaps",
    MentionKind.CLAIMS: "name these PersistentVolumeClaims",
    MentionKind.SERVICE_ACCOUNTS: "name these ServiceAccounts",
    MentionKind.PRIORITY_CLASSES: "name these PriorityClasses",
    MentionKind.RUNTIME_CLASSES: "name these RuntimeClasses",
    MentionKind.DEVICE_CLAIMS: "name these ResourceClaims and ResourceClaimTemplates",
    MentionKind.NODE_LABELS: "choose nodes by these labels",
    MentionKind.TAINTS: "tolerate these taints",
    MentionKind.SERVERS: "name these servers and networks",
    MentionKind.POD_METADATA: "set these labels and annotations of pods",
    MentionKind.POD_TEMPLATE_FIELDS: "set these fields of pod templates so",
}
"""What a job may not do, in the middle of a sentence."""
SHOWN = 10
"""Fields, and rules, that a message names: the job has one condition for all."""
LONGEST = 200
"""Characters of each."""


class NotAllowed(Exception):
    """The rules forbid what a job names; the message says which fields, what is allowed, and who decides."""


class RulesMode(StrEnum):
    """What becomes of a job that does not keep to the rules."""

    OFF = "Off"
    WARN = "Warn"
    ENFORCE = "Enforce"


@dataclass(frozen=True, slots=True)
class JobRules:
    """The rules; without a ConfigMap, `data` is empty and everything is allowed."""

    data: Mapping[str, str]

    @property
    def mode(self) -> RulesMode:
        """What becomes of a job that does not keep to them; a value that is none of the known ones enforces."""
        if not self.data:
            return RulesMode.OFF
        text = self.data.get("mode", "").strip()
        return RulesMode(text) if text in set(RulesMode) else RulesMode.ENFORCE

    def refusal(self, namespace: str, spec: Mapping[str, Any]) -> str:
        """Why a job may not run: its fields, what they name, what may be named, and who decides; empty if it may.

        Args:
            spec: the job's spec as JSON values, with the field names of the API.
        """
        if self.mode is RulesMode.OFF:
            return ""
        found = list(mentions(spec))
        return "; ".join(
            text
            for kind in MentionKind
            if (text := self._refusal(kind, namespace, [m for m in found if m.kind is kind]))
        )

    def check(self, job: RLJob) -> None:
        """Refuse a job that does not keep to the rules, if they are enforced.

        Raises:
            NotAllowed: it does not.
        """
        if self.mode is RulesMode.ENFORCE and (refusal := self._refusal_of(job)):
            raise NotAllowed(refusal)

    def allows(self, job: RLJob) -> bool:
        """Whether `check` would not refuse a job."""
        return self.mode is not RulesMode.ENFORCE or not self._refusal_of(job)

    def warning(self, job: RLJob) -> str:
        """Why the job would be refused if the rules were enforced; empty if they are, or allow it."""
        return self._refusal_of(job) if self.mode is RulesMode.WARN else ""

    def _refusal_of(self, job: RLJob) -> str:
        return self.refusal(job.metadata.namespace, job.spec.model_dump(mode="json", by_alias=True))

    def _refusal(self, kind: MentionKind, namespace: str, found: Sequence[Mention]) -> str:
        allowed = self._allowed(kind, namespace)
        refused = list(
            dict.fromkeys(str(mention) for mention in found if not _matches(mention.name, allowed))
        )
        return _message(kind, namespace, refused, allowed) if refused else ""

    def _allowed(self, kind: MentionKind, namespace: str) -> list[str]:
        text = self.data.get(f"{namespace}.{kind}", self.data.get(kind, ""))
        lines = (line.strip() for line in text.split("\n"))
        return [line for line in lines if line and not line.startswith("#")]


def _matches(name: str, allowed: Sequence[str]) -> bool:
    return any(name == one or (one.endswith("*") and name.startswith(one[:-1])) for one in allowed)


def _message(kind: MentionKind, namespace: str, refused: Sequence[str], allowed: Sequence[str]) -> str:
    return (
        f"RLJobs in namespace {namespace} may not {WORDS[kind]}: {_some(refused)} (allowed: "
        f"{_some(allowed) or 'none'}; ask who runs rljob here, or add a line to {kind} of ConfigMap {CONFIG_MAP})"
    )


def _some(texts: Sequence[str]) -> str:
    shown = ", ".join(text if len(text) <= LONGEST else f"{text[:LONGEST]}..." for text in texts[:SHOWN])
    return f"{shown} and {len(texts) - SHOWN} more" if len(texts) > SHOWN else shown
