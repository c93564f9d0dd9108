"""A file at a remote place: its name, its size, and the digest by which its content is recognized."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Literal

DigestKind = Literal["sha256", "md5", "git", "none"]
"""Of a file's content; `git`: the SHA-1 of its blob, which is over its size and content; `none`: the place has none."""


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """A file of a listing.

    Attributes:
        name: below the place, with `/`.
        size: in bytes.
        kind: of the digest.
        digest: in hex; of kind `none`: a word that changes with the content.
    """

    name: str
    size: int
    kind: DigestKind
    digest: str

    @property
    def tag(self) -> str:
        """A name for this content in a file's name."""
        return hashlib.sha256(f"{self.name} {self.size} {self.kind} {self.digest}".encode()).hexdigest()[:32]
