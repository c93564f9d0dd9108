"""Which cluster the end-to-end tests run on. What a user works with is never touched: `KUBECONFIG` is not read.

In this order:
  RLJOB_E2E_KUBECONFIG    a cluster that the user calls a throw-away by naming it here
  RLJOB_E2E_CLUSTER=…     `own` or `kind`, if one of these two is wanted and no other
  own                     real nodes on this machine, where it is Linux, we are root and all is installed
  kind                    where Docker runs and `kind` is installed
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from e2e.harness.cluster import requirements
from e2e.harness.errors import NotAvailableError


class Source(Enum):
    """Where a cluster comes from."""

    GIVEN = "given"
    OWN = "own"
    KIND = "kind"


@dataclass(frozen=True, slots=True)
class Choice:
    """The cluster to use; `kubeconfig` only for a given one."""

    source: Source
    kubeconfig: Path | None = None


def choose(
    environment: Mapping[str, str], *, lacks: Mapping[Source, Callable[[], str]] | None = None
) -> Choice:
    """The first that is to be had, or a `NotAvailableError` that says what each of them lacks.

    Args:
        environment: variables.
        lacks: by source, what is missing for it here; empty if nothing is. Asked only where it matters.
    """
    if given := environment.get("RLJOB_E2E_KUBECONFIG"):
        path = Path(given).expanduser().absolute()
        if not path.is_file():
            raise NotAvailableError(f"RLJOB_E2E_KUBECONFIG={given} is not a file")
        return Choice(Source.GIVEN, path)
    lacks = lacks or {Source.OWN: own_lacks, Source.KIND: kind_lacks}
    wanted = environment.get("RLJOB_E2E_CLUSTER", "")
    if wanted not in ("", "own", "kind"):
        raise NotAvailableError(f"RLJOB_E2E_CLUSTER={wanted}: it is `own` or `kind`")
    sources = [Source(wanted)] if wanted else [Source.OWN, Source.KIND]
    reasons = []
    for source in sources:
        reason = lacks[source]()
        if not reason:
            return Choice(source)
        reasons.append(f"{source.value}: {reason}")
    raise NotAvailableError("no cluster for end-to-end tests\n  " + "\n  ".join(reasons))


def own_lacks() -> str:
    """What is missing here for nodes of our own."""
    try:
        requirements(Path.cwd())
    except NotAvailableError as error:
        return str(error)
    return ""


def kind_lacks() -> str:
    """What is missing here for kind."""
    if shutil.which("kind") is None:
        return "kind is not installed"
    docker = shutil.which("docker")
    if docker is None or subprocess.run([docker, "info"], capture_output=True, check=False).returncode != 0:
        return "no Docker engine is running"
    return ""
