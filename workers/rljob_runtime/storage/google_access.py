"""Whether this machine has credentials of Google Cloud, which its library would look for for a quarter of a minute."""

from __future__ import annotations

import os
from collections.abc import Mapping
from http.client import HTTPConnection, HTTPException
from pathlib import Path

_METADATA = "169.254.169.254"
_GOOGLE = {"Metadata-Flavor": "Google"}
_SECONDS = 2.0
"""In which a metadata server answers: it is on the same machine."""


def has_google_credentials(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether there may be some: in a file, or from the metadata server of a machine in Google Cloud.

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
    connection = HTTPConnection(address, timeout=_SECONDS)
    try:
        connection.request("GET", "/", headers=_GOOGLE)
        return connection.getresponse().getheader("Metadata-Flavor") == "Google"
    except (OSError, HTTPException):
        return False
    finally:
        connection.close()
