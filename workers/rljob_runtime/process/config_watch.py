"""Follows changes of a role's configuration file while the role runs.

The coordinator follows the whole spec: it applies `spec.pipeline`, and records every other change that does not restart
it. Engines follow `spec.pipeline.inflight`. For a change of what a role reads otherwise the operator restarts the role.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from rljob_core.config import JobConfig
from rljob_core.spec import PipelineSpec, RLJobSpec
from rljob_core.worker_protocol import LOST_SITES_FILE

log = logging.getLogger(__name__)

_POLL_SECONDS = 1.0
_NAMES = TypeAdapter(tuple[str, ...])


async def spec_changes(path: Path, current: RLJobSpec) -> AsyncIterator[RLJobSpec]:
    """Each new spec of the configuration file, without end.

    Args:
        path: of the `JobConfig`; a replacement (a kubelet swaps a link) is noticed within a second.
        current: the value that the role was started with.
    """
    async for spec in _specs(path):
        if spec != current:
            current = spec
            yield spec


async def pipeline_changes(path: Path, current: PipelineSpec) -> AsyncIterator[PipelineSpec]:
    """Each new `spec.pipeline` of the configuration file, without end.

    Args:
        path: as for `spec_changes`.
        current: the value that the role was started with.
    """
    async for spec in _specs(path):
        if spec.pipeline != current:
            current = spec.pipeline
            yield current


async def lost_sites(path: Path) -> AsyncIterator[tuple[str, ...]]:
    """The sites that are lost, by the operator, each time that they have changed, without end.

    Args:
        path: as for `spec_changes`.
    """
    current: tuple[str, ...] = ()
    while True:
        await asyncio.sleep(_POLL_SECONDS)
        found = await asyncio.to_thread(_listed, path.with_name(LOST_SITES_FILE))
        if found is not None and found != current:
            current = found
            yield found


def _listed(path: Path) -> tuple[str, ...] | None:
    """The names in a file, none if there is no file; None if it cannot be read now."""
    try:
        return _NAMES.validate_json(path.read_bytes())
    except FileNotFoundError:
        return ()
    except (OSError, ValidationError) as error:
        log.debug("%s: %s", path, error)
        return None


async def _specs(path: Path) -> AsyncIterator[RLJobSpec]:
    """The spec of the configuration file, each time that its content has changed."""
    seen = b""
    while True:
        await asyncio.sleep(_POLL_SECONDS)
        try:
            content = await asyncio.to_thread(path.read_bytes)
            if content == seen:
                continue
            spec = JobConfig.model_validate_json(content).spec
        except (OSError, ValidationError) as error:  # it is being replaced: read it again later
            log.debug("%s: %s", path, error)
            continue
        seen = content
        yield spec
