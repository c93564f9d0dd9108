"""Object stores through fsspec: how one is opened, written to, and what its errors become.

The libraries under fsspec raise errors of their own (of HTTP, of credentials), which share no base class.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any

from rljob_core.errors import SpecError, StorageRefused, StoreUnavailable

PART_BYTES = 16 << 20
"""Of an object that are transferred at once."""
#: By scheme of a URI: the package that implements it for fsspec, and the extra of rljob that installs the package.
_PACKAGES = {"s3": ("s3fs", "s3"), "gs": ("gcsfs", "gcs")}

_METADATA = "169.254.169.254"
_METADATA_SECONDS = 2.0
"""In which a metadata server answers: it is on the same machine."""


def is_object_store(uri: str) -> bool:
    """Whether a URI names an object store rather than a path."""
    scheme, separator, _ = uri.partition("://")
    return bool(separator) and scheme != "file"


def object_store(uri: str, *, field: str) -> tuple[Any, str]:
    """The `fsspec.AbstractFileSystem` of `s3://bucket/prefix` or `gs://bucket/prefix`, and the bucket with the prefix.

    Args:
        uri: the URI.
        field: the manifest's field, or the argument, that gives it, for errors.

    Raises:
        SpecError: the URI has another scheme, or its package is not installed.
    """
    scheme, _, root = uri.partition("://")
    if scheme not in _PACKAGES:
        raise SpecError(field, f"{scheme}:// is not supported: write a path, file://, s3:// or gs://")
    package, extra = _PACKAGES[scheme]
    options = {}
    if scheme == "gs" and not has_google_credentials():
        # Before the import. Else Google's library would ask a metadata server, for a quarter of a minute.
        os.environ["NO_GCE_CHECK"] = "true"
        options = {"token": "anon"}  # public buckets can be read; all else is refused at once
    try:
        importlib.import_module(package)
    except ImportError as error:
        raise SpecError(
            field, f"{scheme}:// needs the package {package}: run pip install 'rljob[{extra}]'"
        ) from error
    return _file_system(scheme, options), root.rstrip("/")


def _file_system(scheme: str, options: dict[str, Any]) -> Any:
    if scheme == "s3":
        from rljob_runtime.storage.s3_files import S3Files

        return S3Files()
    import fsspec

    return fsspec.filesystem(scheme, **options)  # gcsfs ends requests after five minutes by itself


class Upload:
    """An object that is being written; it becomes visible, as a whole, when it is closed."""

    def __init__(self, file: Any, name: str) -> None:
        self._file, self._name = file, name

    def write(self, data: bytes | memoryview) -> None:
        """Append bytes.

        Raises:
            StorageRefused: the store does not take them.
        """
        left = memoryview(data)
        with writing(self._name):
            # fsspec copies all bytes of a call into its buffer before it uploads a part.
            for start in range(0, len(left), PART_BYTES):
                self._file.write(left[start : start + PART_BYTES])

    def close(self) -> None:
        """Complete the object; durable on return.

        Raises:
            StorageRefused: the store does not take it.
        """
        with writing(self._name):
            self._file.close()


@contextmanager
def upload(files: Any, name: str) -> Iterator[Upload]:
    """Write an object: the block closes the upload. If the block raises, there is no object.

    Args:
        files: an `fsspec.AbstractFileSystem`.
        name: of the object, with its bucket.

    Raises:
        StorageRefused: the store cannot be written to.
    """
    with writing(name):
        file = files.open(name, "wb", block_size=PART_BYTES)
    try:
        yield Upload(file, name)
    except BaseException:
        with suppress(Exception):  # some file systems have no `discard`, and the store may be unreachable
            file.discard()
        with suppress(AttributeError):
            file.closed = True  # otherwise fsspec completes the object when its memory is freed
        raise


@contextmanager
def writing(name: str) -> Iterator[None]:
    """Raise StorageRefused for errors of the block, which writes to an object store."""
    try:
        yield
    except Exception as error:
        raise StorageRefused(f"{name}: {error or type(error).__name__}") from error


@contextmanager
def reading(name: str) -> Iterator[None]:
    """Raise StoreUnavailable for errors of the block, which reads an object store; FileNotFoundError passes."""
    try:
        yield
    except FileNotFoundError:
        raise
    except Exception as error:
        raise StoreUnavailable(f"{name} cannot be read: {error or type(error).__name__}") from error


def has_google_credentials(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether there may be some, in a file or from the metadata server of a machine in Google Cloud.

    Google's library would look for some for a quarter of a minute.

    Args:
        environment: environment variables, as Google's library reads them.
    """
    if environment.get("STORAGE_EMULATOR_HOST") or environment.get("GOOGLE_APPLICATION_CREDENTIALS"):
        return True
    home = Path(environment.get("HOME") or Path.home())
    settings = Path(environment.get("CLOUDSDK_CONFIG") or home / ".config" / "gcloud")
    if (settings / "application_default_credentials.json").is_file() or (home / ".gcs_tokens").is_file():
        return True
    return _is_metadata_server(environment.get("GCE_METADATA_HOST") or _METADATA)


def _is_metadata_server(address: str) -> bool:
    """Whether a server says that it is Google's: other clouds, and proxies, answer at the same address."""
    connection = HTTPConnection(address, timeout=_METADATA_SECONDS)
    try:
        connection.request("GET", "/", headers={"Metadata-Flavor": "Google"})
        return connection.getresponse().getheader("Metadata-Flavor") == "Google"
    except (OSError, HTTPException):
        return False
    finally:
        connection.close()
