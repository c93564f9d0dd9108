"""Models and data sets below a prefix of an object store, through fsspec.

Its revision is a digest of the names, sizes and ETags of the objects that are used. An object's content is compared
with the MD5 that its store keeps, where it keeps one; the names that a file `SHA256SUMS` lists, with that.
"""

from __future__ import annotations

import base64
import hashlib
import re
from dataclasses import replace
from typing import Any

from rljob_core.errors import ResourceMissing, SpecError, StoreUnavailable
from rljob_core.remote_uri import RemoteUri
from rljob_runtime.downloads.listing import ChooseFiles, RemoteListing
from rljob_runtime.downloads.partial_file import PartialFile
from rljob_runtime.downloads.remote_file import RemoteFile
from rljob_runtime.storage.objects import PART_BYTES, object_store, reading

_SUMS = "SHA256SUMS"
_SUM = re.compile(r"([0-9a-fA-F]{64})[ *]+(\S.*)")
_MD5 = re.compile(r"[0-9a-f]{32}")


class BucketFolder:
    """A prefix; see `RemotePlace`.

    Args:
        uri: of the prefix; of data, its last part may be a pattern or a file.
        field: the manifest's field that gives it, for errors.
    """

    def __init__(self, uri: RemoteUri, *, field: str) -> None:
        self._uri, self._field = uri, field
        self._files, root = object_store(f"{uri.scheme}://{uri.place}", field=field)
        self._entries: dict[str, Any] = {}
        self._root, self.pattern = _split(root) if uri.is_data else (root, "")

    def list(self, choose: ChooseFiles) -> RemoteListing:
        """The objects below the prefix."""
        self._choose = choose
        try:
            with reading(self._root):
                self._files.invalidate_cache()
                found = self._files.find(self._root, detail=True)
        except (FileNotFoundError, StoreUnavailable) as error:
            raise self._explained(error) from error
        entries = {name.removeprefix(self._root).removeprefix("/"): entry for name, entry in found.items()}
        # A store's console makes an empty object `folder/` for each folder.
        self._entries = {name: one for name, one in entries.items() if name and not name.endswith("/")}
        files = tuple(
            RemoteFile(name, int(entry["size"]), "none", _tag(entry))
            for name, entry in sorted(self._entries.items())
        )
        if not files:
            raise self._missing()
        chosen = choose(files)
        content = "\n".join(f"{file.name} {file.size} {file.digest}" for file in chosen)
        return RemoteListing(hashlib.sha256(content.encode()).hexdigest()[:40], chosen)

    def with_digests(self, listing: RemoteListing) -> RemoteListing:
        """The listing with the digests that the store has, or that a file beside the objects lists."""
        try:
            with reading(self._root):
                sums = self._sums()
                files = tuple(self._file(file, sums) for file in listing.files)
        except FileNotFoundError as error:
            raise StoreUnavailable(f"{error} was deleted while it was downloaded") from error
        except StoreUnavailable as error:
            raise self._explained(error) from error
        return replace(listing, files=files)

    def is_as_listed(self, listing: RemoteListing) -> bool:
        """Whether no object was replaced since: of one without an MD5, no other check would see it."""
        try:
            return self.list(self._choose).revision == listing.revision
        except ResourceMissing:
            raise
        except SpecError:  # what was chosen has gone
            return False

    def read(self, file: RemoteFile, into: PartialFile) -> None:
        """Append what an object lacks, in ranges."""
        name = f"{self._root}/{file.name}"
        try:
            while into.size < file.size:
                with reading(name):
                    end = min(into.size + PART_BYTES, file.size)
                    part = self._files.cat_file(name, start=into.size, end=end)
                if not part:
                    raise StoreUnavailable(f"{name} ends after {into.size} of {file.size} bytes")
                into.write(part)
        except FileNotFoundError as error:
            raise StoreUnavailable(f"{name} was deleted while it was downloaded") from error
        except StoreUnavailable as error:
            raise self._explained(error) from error

    def _sums(self) -> dict[str, str]:
        """The SHA-256 of objects, by name, as far as the prefix has a file that lists them."""
        if _SUMS not in self._entries:
            return {}
        lines = self._files.cat_file(f"{self._root}/{_SUMS}").decode("utf-8", "replace").splitlines()
        matches = (_SUM.fullmatch(line.strip()) for line in lines)
        return {found[2].removeprefix("./"): found[1].lower() for found in matches if found is not None}

    def _file(self, file: RemoteFile, sums: dict[str, str]) -> RemoteFile:
        name = file.name
        if name in sums:
            return replace(file, kind="sha256", digest=sums[name])
        if md5 := self._entries[name].get("md5Hash"):
            return replace(file, kind="md5", digest=base64.b64decode(md5).hex())
        is_md5 = _MD5.fullmatch(file.digest) is not None and self._is_plain(name)
        return replace(file, kind="md5" if is_md5 else "none")

    def _is_plain(self, name: str) -> bool:
        """Whether the ETag of an object in S3 is the MD5 of its content: not if it is encrypted with a client's key."""
        if self._uri.scheme != "s3":
            return False
        bucket, _, key = f"{self._root}/{name}".partition("/")
        head = self._files.call_s3("head_object", Bucket=bucket, Key=key)
        return head.get("ServerSideEncryption", "AES256") == "AES256" and "SSECustomerAlgorithm" not in head

    def _missing(self) -> ResourceMissing:
        return ResourceMissing(
            self._field,
            f"{self._uri.without_revision} holds no objects: correct the bucket and the folder in it",
        )

    def _explained(self, error: Exception) -> Exception:
        cause = error.__cause__ or error
        if isinstance(error, FileNotFoundError):
            return self._missing()
        if isinstance(cause, PermissionError) or type(cause).__name__ == "NoCredentialsError":
            return ResourceMissing(
                self._field,
                f"{self._uri.without_revision} may not be read ({cause}): put the keys of a reader into the Secret "
                "that spec.model.credentialsSecret names; for rljob run, into the environment",
            )
        return error


def _tag(entry: dict[str, Any]) -> str:
    """A word that changes with the object's content."""
    return str(entry.get("ETag") or entry.get("etag") or entry.get("generation") or "").strip('"')


def _split(root: str) -> tuple[str, str]:
    """The folder of a data set's object, and the name or pattern in it; a folder of files has none of its own."""
    folder, _, last = root.rpartition("/")
    is_folder = "." not in last and not set(last) & set("*?[")
    return (root, "") if is_folder else (folder, last)
