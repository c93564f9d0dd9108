"""The items of a job's prompts, as the reward worker sends them to where answers are scored.

Scoring processes have no access to the job's files. The worker therefore reads the rows of a file and sends each answer
with its item. The tasks of reasoning-gym need no file: scoring processes generate them, in parallel.
"""

from __future__ import annotations

from typing import Any

from rljob_core.config import JobConfig
from rljob_runtime.data.prompts import ItemSource, data_of, open_job_items
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
        self._files = dict[bool, ItemSource]()
        training, held_out = data_of(config)
        setups = dict[bool, ItemsSetup]()
        for is_held_out, (data, path) in ((False, training), (True, held_out)):
            if data.source == "reasoning-gym":
                setups[is_held_out] = ItemsSetup(path, generated=data)
                continue
            same = is_held_out and held_out == training
            items = self._files[False] if same else open_job_items(config, data, path)
            self._files[is_held_out] = items
            setups[is_held_out] = ItemsSetup(path, first=items.item(0))
        reward = config.spec.reward
        self.setup = ScoringSetup(
            functions=tuple(reward.called),
            timeout_seconds=reward.timeout_seconds,
            training=setups[False],
            held_out=setups[True],
            network=reward.network,
            per_group=tuple(reward.per_group),
            workers=workers,
        )

    def item(self, prompt: int, *, held_out: bool) -> dict[str, Any] | None:
        """The item to send with an answer; None if the scoring processes generate it."""
        items = self._files.get(held_out)
        return None if items is None else items.item(prompt)
