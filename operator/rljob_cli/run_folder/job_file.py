"""`job.json`, the job of a run's folder, as `rljob run` reads it and `rljob patch` changes it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator

from pydantic import ValidationError

from rljob_cli.run_folder.folder import Identity, RunFolder
from rljob_core.advice import advice, dotted, location
from rljob_core.errors import SpecError
from rljob_core.spec import RLJob

_POLL_SECONDS = 0.5


def stored_job(identity: Identity) -> RLJob:
    """The job in a folder, with all patches.

    Raises:
        SpecError: another program has written an invalid job to `job.json`.
    """
    try:
        return RLJob.model_validate(identity.manifest, by_alias=True, by_name=False)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        words = f"{dotted(location(first))}: {advice(RLJob, identity.manifest, first)}"
        raise SpecError("job.json", f"holds no valid job any more: {words}") from error


async def changes(folder: RunFolder, generation: int) -> AsyncIterator[Identity]:
    """Yield the content of `job.json` whenever a patch has changed it, until cancelled.

    Args:
        folder: the run's folder.
        generation: the generation that the caller knows; only later ones are yielded.
    """
    last: os.stat_result | None = None
    while True:
        await asyncio.sleep(_POLL_SECONDS)
        try:
            found = folder.job.stat()
            if last is not None and (found.st_ino, found.st_mtime_ns) == (last.st_ino, last.st_mtime_ns):
                continue
            last = found
            identity = folder.identity()
        except (OSError, SpecError):  # a user has moved or edited the file: the run continues without it
            continue
        if identity is not None and identity.generation > generation:
            generation = identity.generation
            yield identity
