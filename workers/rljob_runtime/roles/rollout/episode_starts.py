"""What the episodes of a job begin with: their prompts' items, and the seeds of their games."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from rljob_core.config import JobConfig
from rljob_core.errors import EnvironmentFailed
from rljob_core.ports import EpisodeStart
from rljob_core.stable_hash import stable_hash
from rljob_core.trajectory import is_evaluation
from rljob_core.words import error_in_words
from rljob_runtime.data.prompts import HeldOutItems, ItemSource, held_out_data, open_job_items
from rljob_runtime.environments.messages import RAISED
from rljob_runtime.roles.rollout.running import Assignment

Read = TypeVar("Read")


class EpisodeStarts:
    """Starts of a job's episodes.

    Args:
        config: of the job.
        max_turns: of an episode.
    """

    def __init__(self, config: JobConfig, *, max_turns: int) -> None:
        self._config = config
        self._max_turns = max_turns
        self._items = dict[bool, ItemSource]()
        # Sources are made for one thread, and one that reads for an episode which has been cancelled reads on.
        self._reading = ThreadPoolExecutor(max_workers=1, thread_name_prefix="items")

    async def open(self) -> None:
        """Open the items of the prompts.

        Raises:
            SpecError: the data are not what the spec needs.
        """
        data = [(self._config.spec.data, "spec.data")]
        data += [(held_out, path) for _, held_out, path in held_out_data(self._config)]
        training, *held_out = [await self._read(open_job_items, self._config, *one) for one in data]
        self._items = {False: training, True: HeldOutItems(held_out)}

    def close(self) -> None:
        """Read nothing more."""
        self._reading.shutdown(wait=False, cancel_futures=True)

    async def _read(self, read: Callable[..., Read], *of: Any) -> Read:
        return await asyncio.get_running_loop().run_in_executor(self._reading, read, *of)

    async def start_of(self, work: Assignment) -> EpisodeStart:
        """The start of an assignment's episode: the same for every attempt, and for all siblings.

        Raises:
            EnvironmentFailed: the data have no such item.
        """
        held_out = is_evaluation(work.trajectory)
        try:
            item = await self._read(self._items[held_out].item, work.prompt)
        except Exception as error:  # the data's own code may raise anything
            raise EnvironmentFailed(RAISED, f"item {work.prompt}: {error_in_words(error)}") from error
        return EpisodeStart(
            prompt=work.prompt,
            held_out=held_out,
            text=work.text,
            item=item,
            seed=stable_hash(f"{self._config.spec.data.seed}/{held_out}/{work.prompt}"),
            max_turns=self._max_turns,
        )
