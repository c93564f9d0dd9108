"""The release of this operator."""

from __future__ import annotations

from importlib import metadata

RELEASE = metadata.version("rljob")
"""As `rljob --version` says it."""
