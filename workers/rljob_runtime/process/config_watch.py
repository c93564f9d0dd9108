"""Follows changes of a role's configuration file while the role runs.

Only `spec.pipeline` changes in running roles: the coordinator follows all of it, engines follow `inflight`. For every
other change of its configuration the operator restarts a role.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from pathlib import Path

from pydantic import ValidationError

from rljob_core.config import JobConfig
from rljob_core.spec import PipelineSpec

log = logging.getLogger(__name__)

_POLL_SECONDS = 1.0


async def pipeline_changes(path: Path, current: PipelineSpec) -> AsyncIterator[PipelineSpec]:
    """Each new `spec.pipeline` of the configuration file, without end.

    Args:
        path: of the `JobConfig`; a replacement (a kubelet swaps a link) is noticed within a second.
        current: the value that the role was started with.
    """
    seen = b""
    while True:
        await asyncio.sleep(_POLL_SECONDS)
        try:
            content = await asyncio.to_thread(path.read_bytes)
            if content == seen:
                continue
            pipeline = JobConfig.model_validate_json(content).spec.pipeline
        except (OSError, ValidationError) as error:  # it is being replaced: read it again later
            log.debug("%s: %s", path, error)
            continue
        seen = content
        if pipeline != current:
            current = pipeline
            yield pipeline
