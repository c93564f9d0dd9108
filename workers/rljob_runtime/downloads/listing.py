"""What a remote place holds at one revision, and how its files are read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from rljob_runtime.downloads.partial_file import PartialFile
from rljob_runtime.downloads.remote_file import RemoteFile


@dataclass(frozen=True, slots=True)
class RemoteListing:
    """The files that are to be downloaded.

    Attributes:
        revision: which names this content: another listing of it has equal files.
        files: sorted by name.
    """

    revision: str
    files: tuple[RemoteFile, ...]

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(file.size for file in self.files)


ChooseFiles = Callable[[tuple[RemoteFile, ...]], tuple[RemoteFile, ...]]
"""Of all files of a place, those that are needed."""


class RemotePlace(Protocol):
    """A model or a data set, elsewhere.

    Raises:
        SpecError: the URI names nothing, or nothing that may be read; the message says what to write instead.
        StoreUnavailable: the server does not answer, or cuts what it sends.
        StorageRefused: the local file cannot be written.
    """

    def list(self, choose: ChooseFiles) -> RemoteListing:
        """The chosen files at the place's revision; `choose` gets names as the server gives them, unchecked."""

    def with_digests(self, listing: RemoteListing) -> RemoteListing:
        """The listing with the digests by which its files' content is recognized."""

    def is_as_listed(self, listing: RemoteListing) -> bool:
        """Whether the chosen files are still those of the newest listing, as far as they can change."""

    def read(self, file: RemoteFile, into: PartialFile) -> None:
        """Append what a file lacks."""
