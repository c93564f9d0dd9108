"""What the engine `Emulated` should do, simulated one decode step at a time, with everything counted again in each."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from rljob_core.ports import Request


@dataclass
class Reference:
    """What comes out.

    Attributes:
        times: seconds at which each response ended, by its request's id.
        versions: of the tokens of each response.
        preemptions: how many there were.
        standing: seconds for which the engine stood still.
    """

    times: dict[str, float] = field(default_factory=dict)
    versions: dict[str, list[int]] = field(default_factory=dict)
    preemptions: int = 0
    standing: float = 0.0


@dataclass
class _Row:
    """One response: its request, its prompt, and the versions of its tokens so far."""

    request: Request
    prompt: tuple[int, ...]
    versions: list[int]

    @property
    def context(self) -> int:
        return len(self.prompt) + len(self.versions)


def step_by_step(
    options: dict[str, Any], arrivals: Sequence[tuple[float, Request]], swaps: Sequence[float] = ()
) -> Reference:
    """Serve requests whose responses are as long as they may be.

    Args:
        options: of the engine, as a manifest writes them.
        arrivals: seconds and requests, in order.
        swaps: seconds at which there are weights of versions 1, 2, … for the step after the one that is under way.
    """
    scale = options.get("timeScale", 1.0)

    def seconds(name: str) -> float:
        return float(scale * options.get(name, 0.0))

    shares = options.get("prefixCaching", True)
    capacity = options.get("kvTokens") or math.inf

    def held(rows: list[_Row]) -> int:
        prompts = [row.prompt for row in rows]
        return sum(map(len, set(prompts) if shares else prompts)) + sum(len(row.versions) for row in rows)

    reference = Reference()
    coming, changes = list(arrivals), list(swaps)
    waiting: list[_Row] = []
    running: list[_Row] = []
    now, version = 0.0, 0
    while coming or waiting or running:
        while held(running) > capacity and len(running) > 1:
            waiting.insert(0, running.pop())
            reference.preemptions += 1
        computed = 0
        while changes and changes[0] <= now + 1e-9:
            changes.pop(0)
            version += 1
            now += seconds("swapSeconds")
            reference.standing += seconds("swapSeconds")
            computed = held(running) if options.get("recomputeCache", True) else 0
        while coming and coming[0][0] <= now + 1e-9:
            request = coming.pop(0)[1]
            inherited = [] if request.inherited is None else request.inherited.versions.tolist()
            waiting.append(_Row(request, tuple(request.tokens.tolist()), inherited))
        while waiting and len(running) < options["slots"]:
            joined = [*running, waiting[0]]
            if running and held(joined) > capacity:
                break
            computed += held(joined) - held(running)
            running.append(waiting.pop(0))
        if not running:
            now = min([at for at, _ in coming] + changes)
            continue
        now += seconds("stepSeconds") + seconds("stepSecondsPerSlot") * len(running)
        now += seconds("stepSecondsPerContextToken") * sum(row.context for row in running)
        now += seconds("prefillSecondsPerToken") * computed
        for row in list(running):
            row.versions.append(version)
            if len(row.versions) == row.request.max_tokens:
                running.remove(row)
                reference.times[row.request.id] = now
                reference.versions[row.request.id] = row.versions
    return reference
