"""The items of a job's prompts, as the reward worker sends them to where answers are scored.

Scoring processes have no access to the job's files. The worker therefore reads the rows of a file and sends each answer
with its item. The tasks of reasoning-gym need no file: scoring processes generate them, in parallel.
"""

from __future__ import annotations

from typing import Any

from rljob_core.config import JobConfig
from rljob_core.spec import MOST_SAMPLES, DataSpec
from rljob_runtime.data.prompts import ItemSource, held_out_data, open_job_items
from rljob_runtime.rewards.messages import ItemsSetup, ScoringSetup


class JobItems:
    """Items of training and evaluation.

    Args:
        config: the job's.
        workers: number of scoring processes; None for the pool's own choice.

    Raises:
        SpecError: a file does not exist, cannot be read or has no rows that are not left out.
    """

    def __init__(self, config: JobConfig, *, workers: int | None = None) -> None:
        self._training, training = _opened(config, config.spec.data, "spec.data")
        held_out = [_opened(config, data, path) for _, data, path in held_out_data(config)]
        self._held_out = [items for items, _ in held_out]
        reward = config.spec.reward
        self.setup = ScoringSetup(
            functions=tuple(reward.called),
            timeout_seconds=reward.timeout_seconds,
            training=training,
            held_out=tuple(setup for _, setup in held_out),
            network=reward.network,
            per_group=tuple(reward.per_group),
            workers=workers,
        )

    def item(self, prompt: int, *, held_out: bool) -> dict[str, Any] | None:
        """The item to send with an answer; None if the scoring processes generate it."""
        items, index = self._training, prompt
        if held_out:
            number, index = divmod(prompt, MOST_SAMPLES)
            items = self._held_out[number]
        return None if items is None else items.item(index)


def _opened(config: JobConfig, data: DataSpec, path: str) -> tuple[ItemSource | None, ItemsSetup]:
    """The items of some data, which scoring processes are sent; None if they generate them."""
    if data.source == "reasoning-gym":
        return None, ItemsSetup(path, generated=data)
    items = open_job_items(config, data, path)
    return items, ItemsSetup(path, first=items.item(0))
