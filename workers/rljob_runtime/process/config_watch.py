"""What changes in the configuration while a role runs.

Only `spec.pipeline` reaches a running coordinator, and its `inflight` running engines; whatever else a role reads makes
the operator start it again.
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

_LOOK_SECONDS = 1.0


async def pipeline_changes(path: Path, current: PipelineSpec) -> AsyncIterator[PipelineSpec]:
    """Each new `spec.pipeline` of the configuration file, without end.

    Args:
        path: of the `JobConfig`; what replaces it (a kubelet swaps a link) is seen within a second.
        current: what the role was started with.
    """
    seen = b""
    while True:
        await asyncio.sleep(_LOOK_SECONDS)
        try:
            content = await asyncio.to_thread(path.read_bytes)
            if content == seen:
                continue
            pipeline = JobConfig.model_validate_json(content).spec.pipeline
        except (OSError, ValidationError) as error:  # it is being replaced: another look tells
            log.debug("%s: %s", path, error)
            continue
        seen = content
        if pipeline != current:
            current = pipeline
            yield pipeline
