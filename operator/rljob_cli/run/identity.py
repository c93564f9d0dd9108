"""The identity that the output folder of a new or resumed run stores."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rljob_cli.run_folder.folder import Identity
from rljob_core.spec import RLJob, SiteLinkSpec

if TYPE_CHECKING:
    from rljob_cli.job_checks.downloads import Downloads


def identity_of(
    job: RLJob,
    given: RLJob,
    known: Identity | None,
    kept: list[str],
    *,
    model: str,
    origin: Path,
    links: Mapping[str, SiteLinkSpec],
    data: dict[str, Any],
    downloads: Downloads,
) -> Identity:
    """Create the identity that the output folder stores for a new or resumed job."""
    manifest = job.model_dump(mode="json", by_alias=True)
    generation = 1
    if known is not None:
        generation = known.generation + (manifest != known.manifest)
    return Identity(
        name=job.metadata.name,
        namespace=job.metadata.namespace,
        uid=known.uid if known is not None else uuid.uuid4().hex[:12],
        model=model,
        nats_url=job.spec.nats.url or "",
        manifest=manifest,
        generation=generation,
        given=given.model_dump(mode="json", by_alias=True),
        patches=kept,
        origin=str(origin),
        links={site: link.model_dump(mode="json", by_alias=True) for site, link in links.items()},
        data=data,
        downloads=downloads,
    )
