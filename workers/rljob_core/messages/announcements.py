"""From the coordinator to all engines: the newest version."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pydantic import TypeAdapter


@dataclass(frozen=True, slots=True)
class VersionAnnounced:
    """A committed version: engines swap to it, unless they know one of a newer epoch, or a newer one of this epoch.

    It may be older than what an engine has: a newer epoch may have found versions lost, or revoked by the user.
    """

    epoch: int
    version: int
    key: str | None
    manifest: str
    final: bool = False
    kind: Literal["version"] = "version"


VERSION_ANNOUNCED: TypeAdapter[VersionAnnounced] = TypeAdapter(VersionAnnounced)
