"""From the coordinator to all engines: the newest version."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pydantic import TypeAdapter


@dataclass(frozen=True, slots=True)
class VersionAnnounced:
    """A committed version: engines swap to it, unless they know one of a newer epoch, or a newer one of this epoch.

    It may be older than an engine's version, if a newer coordinator found later versions lost or revoked by the user.

    Attributes:
        epoch: writer epoch of the coordinator that announces it.
        key: key of the weights in the weight store; None for version 0, the initial model.
        manifest: digest of the weights' manifest.
        final: whether no version follows.
    """

    epoch: int
    version: int
    key: str | None
    manifest: str
    final: bool = False
    kind: Literal["version"] = "version"


VERSION_ANNOUNCED: TypeAdapter[VersionAnnounced] = TypeAdapter(VersionAnnounced)
