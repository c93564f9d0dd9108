"""Models and data sets of a Hugging Face hub, by its own client.

The hub is that of `HF_ENDPOINT` (huggingface.co if it is not set), the token that of `HF_TOKEN` or of the user's login.
The client sends it to no other host: the signed addresses to which a hub redirects need none.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Any, BinaryIO, cast
from urllib.parse import unquote

from rljob_core.errors import ResourceMissing, RLJobError, SpecError, StoreUnavailable
from rljob_core.remote_uri import RemoteUri
from rljob_runtime.downloads.listing import ChooseFiles, RemoteListing
from rljob_runtime.downloads.partial_file import PartialFile
from rljob_runtime.downloads.remote_file import DigestKind, RemoteFile

if TYPE_CHECKING:
    from huggingface_hub import HfApi

_DEFAULT = "https://huggingface.co"
_LIST_SECONDS = 30.0
_COMMIT = re.compile(r"[0-9a-f]{7,64}")


class HubRepository:
    """A repository of a hub; see `RemotePlace`.

    Args:
        uri: of the repository.
        field: the manifest's field that gives it, for errors.
    """

    def __init__(self, uri: RemoteUri, *, field: str) -> None:
        self._uri, self._field = uri, field
        self._revision = unquote(uri.revision)
        self._endpoint = os.environ.get("HF_ENDPOINT", "").rstrip("/") or _DEFAULT
        self._kind = "dataset" if uri.is_data else "model"

    def list(self, choose: ChooseFiles) -> RemoteListing:
        """The repository's files; the revision is the full id of its commit."""
        api = self._api()
        try:
            info: Any = api.repo_info(
                self._uri.place,
                repo_type=self._kind,
                revision=self._revision or None,
                files_metadata=True,
                timeout=_LIST_SECONDS,
            )
            commit, siblings = str(info.sha or ""), info.siblings or ()
            files = tuple(sorted(map(_file, siblings), key=lambda file: file.name))
        except Exception as error:  # of the client, of HTTP below it, of answers that are no repository
            raise self._explained(error) from error
        if _COMMIT.fullmatch(commit) is None:
            raise StoreUnavailable(
                f"{self._endpoint} names no commit of {self._uri.place}, but {commit[:80]!r}: is it a hub?"
            )
        self._revision = commit
        return RemoteListing(commit, choose(files))

    def with_digests(self, listing: RemoteListing) -> RemoteListing:
        """The listing, which has them."""
        return listing

    def is_as_listed(self, listing: RemoteListing) -> bool:  # noqa: ARG002  as of any place
        """True: a commit does not change."""
        return True

    def read(self, file: RemoteFile, into: PartialFile) -> None:
        """Append what a file lacks, of the commit that was listed."""
        from huggingface_hub import hf_hub_url
        from huggingface_hub.file_download import http_get
        from huggingface_hub.utils import (  # type: ignore[attr-defined]
            build_hf_headers,
            disable_progress_bars,
        )

        disable_progress_bars()
        url = hf_hub_url(
            self._uri.place,
            file.name,
            repo_type=self._kind,
            revision=self._revision,
            endpoint=self._endpoint,
        )
        try:
            http_get(
                url,
                cast("BinaryIO", into),
                resume_size=into.size,
                headers=build_hf_headers(library_name="rljob"),
                expected_size=file.size,
            )
        except RLJobError:
            raise
        except Exception as error:
            raise self._explained(error) from error

    def _api(self) -> HfApi:
        try:
            from huggingface_hub import HfApi
        except ImportError as error:
            raise SpecError(
                self._field, "hf:// needs the package huggingface_hub: run pip install 'rljob[data]'"
            ) from error
        return HfApi(endpoint=self._endpoint, library_name="rljob")

    def _explained(self, error: Exception) -> RLJobError:
        """What a client's error means to the user."""
        from huggingface_hub import errors

        place, revision = self._uri.place, self._revision or "main"
        if isinstance(error, errors.OfflineModeIsEnabled):
            return SpecError(self._field, "HF_HUB_OFFLINE is set: unset it, or give a path")
        if isinstance(error, errors.RevisionNotFoundError):
            return SpecError(
                self._field, f"{place} has no revision {revision}: write a branch, a tag or a commit of it"
            )
        if isinstance(error, errors.EntryNotFoundError):
            return StoreUnavailable(
                f"{self._endpoint} has lost a file of {place}@{revision}: {_words(error)}"
            )
        remedy = (
            "put a token that may read it into the key HF_TOKEN of the Secret that spec.model.credentialsSecret "
            "names; for rljob run, into the variable HF_TOKEN"
        )
        if isinstance(error, errors.GatedRepoError):
            return ResourceMissing(
                self._field,
                f"{place} is gated: accept its terms at {self._endpoint}/{place}, and {remedy}",
            )
        status = getattr(getattr(error, "response", None), "status_code", None)
        if isinstance(error, errors.RepositoryNotFoundError) or status in {401, 403}:
            return ResourceMissing(
                self._field,
                f"{self._endpoint} shows no {self._kind} {place}: correct the name; if it is private, {remedy}",
            )
        return StoreUnavailable(f"{self._endpoint} does not give {place}@{revision}: {_words(error)}")


def _file(sibling: Any) -> RemoteFile:
    kind: DigestKind = "git" if sibling.lfs is None else "sha256"
    digest = sibling.blob_id if sibling.lfs is None else sibling.lfs.sha256
    return RemoteFile(str(sibling.rfilename), int(sibling.size), kind, str(digest))


def _words(error: Exception) -> str:
    return str(error).strip().partition("\n")[0] or type(error).__name__
