"""A job whose trajectories are episodes, and its environment."""

from __future__ import annotations

import json
from collections.abc import Collection
from pathlib import Path
from typing import Any

from role_jobs import job

from rljob_core.config import JobConfig
from rljob_core.spec import RLJobSpec

ECHO = '''
import asyncio
from rljob_runtime.environments import TurnObservation


class Echo:
    """Repeats the seed, and ends after the third response, or the first of an odd prompt."""

    async def open(self, start):
        if "bad" in start.item["question"]:
            raise LookupError("no game")
        self.start, self.turns = start, 0
        return self

    async def react(self, turn):
        self.turns += 1
        await asyncio.sleep(0.05)
        if self.turns == 3 or self.start.prompt % 2:
            return None
        return TurnObservation(text=f"({self.start.seed})")

    async def score(self, *, truncated):
        return self.turns + truncated / 4
'''


def episodes(
    folder: Path,
    model: Path,
    module: str,
    *,
    bad: Collection[int] = (),
    per_slot: float = 2.0,
    slots: int | None = None,
    **pipeline: Any,
) -> JobConfig:
    """The job of `role_jobs`, of six steps, with an environment and three turns at most in 60 tokens.

    Args:
        bad: prompts that have no game.
        per_slot: `episodesPerSlot`.
        slots: of each engine; None for those of `role_jobs`.
    """
    rows = [json.dumps({"question": f"{n} {'bad' if n in bad else ''}"}) for n in range(40)]
    (folder / "prompts.jsonl").write_text("\n".join(rows))
    (folder / "held-out.jsonl").write_text(json.dumps({"question": "x"}))
    environment = {"name": f"{module}:Echo", "maxTurns": 3, "episodesPerSlot": per_slot}
    config = _job(folder, model, environment, max_tokens=60, **pipeline)
    if slots is not None:
        config.spec.rollout.engine.options["slots"] = slots
    return config


def agent_episodes(folder: Path, model: Path, command: list[str], **pipeline: Any) -> JobConfig:
    """The job of `role_jobs` with an agent that has two turns at most, in 120 tokens behind its prompt."""
    (folder / "prompts.jsonl").write_text("\n".join(json.dumps({"question": str(n)}) for n in range(40)))
    (folder / "held-out.jsonl").write_text(json.dumps({"question": "0"}))
    environment = {"name": "agent", "options": {"command": command}, "maxTurns": 2, "timeoutSeconds": 120}
    return _job(folder, model, environment, max_tokens=120, **pipeline)


def _job(
    folder: Path, model: Path, environment: dict[str, Any], *, max_tokens: int, **pipeline: Any
) -> JobConfig:
    config = job(folder, model, mode="BoundedAsync", maxStaleness=1, **pipeline)
    values = config.model_dump(mode="json", by_alias=True)
    spec = values["spec"]
    spec["data"] |= {"source": "jsonl", "dataset": str(folder / "prompts.jsonl")}
    spec["evaluation"] |= {"samples": 1, "data": {"dataset": str(folder / "held-out.jsonl")}}
    spec["reward"] = {"functions": ["environment"]}
    spec["rollout"]["environment"] = environment
    spec["rollout"]["sampling"] = {"maxTokens": max_tokens}
    return JobConfig.model_validate(
        values | {"spec": RLJobSpec.model_validate(spec).model_dump(by_alias=True)}
    )
