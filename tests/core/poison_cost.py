"""What one prompt in 1,024 that kills its engines costs a job, in virtual time.

    python tests/core/poison_cost.py [SEED ...]

The planner is the real one; engines, rewards and the trainer are those of `world`. Four engines of 64 slots generate
32 steps of 32 prompts x 8 siblings. A response has 20 to 150 tokens; an engine takes as many steps for it, of 0.1 s in
the *short* jobs and of 1 s in the *long* ones. No progress is stored, so everything that a dying engine held starts
over; its successor comes 12 s later.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from world import World, job_config

from rljob_core.messages import Generate
from rljob_core.records import GroupAborted
from rljob_core.trajectory import group_of

SHORT, LONG = 0.1, 1.0
"""Seconds for a token."""
RESTART_SECONDS = 12.0
TOKENS = range(20, 151)
HANGS = {"hang_seconds": 20, "quarantined_hang_seconds": 11}
EARLY_HANGS = {"hang_seconds": 60, "quarantined_hang_seconds": 30}
"""Seconds for which an engine hangs before it is ended, in its first minute and later (`rljob_core.hang_limit`)."""

Poison = Callable[[Generate], bool]


@dataclass(frozen=True)
class Outcome:
    """How a simulated job went.

    Attributes:
        seconds: its length.
        deaths: how many engines died.
        given_up: the groups that were given up.
        spent: what the engines' slots were used for, in seconds of all of them (`World.slot_seconds`), and for how long
            they had nothing to do.
    """

    seconds: float
    deaths: int
    given_up: tuple[str, ...]
    spent: Mapping[str, float]

    def against(self, sound: Outcome) -> float:
        """By what share of it this job was longer than a job in which no engine died."""
        return self.seconds / sound.seconds - 1

    def more(self, sound: Outcome) -> str:
        """On what its slots were used for longer than in that job, in words."""
        more = {what: seconds - sound.spent[what] for what, seconds in self.spent.items()}
        return ", ".join(f"{what} {seconds:+.0f} s" for what, seconds in more.items())


def nothing(_: Generate) -> bool:
    """No engine dies."""
    return False


def prompt(number: int) -> Poison:
    """All siblings of a prompt kill their engine as soon as they are generated."""
    return lambda work: group_of(work.trajectory) == f"g{number}"


def one_sibling(number: int) -> Poison:
    """One sibling of a prompt does."""
    return lambda work: work.trajectory == f"g{number}.3"


def chance(seed: int, *, one_in: int = 1000) -> Poison:
    """Any trajectory may be there when an engine dies of something else."""
    drawn = random.Random(seed)
    return lambda _: drawn.random() < 1 / one_in


def run(
    seed: int,
    poison: Poison,
    *,
    step_seconds: float,
    steps: int = 32,
    engines: int = 4,
    siblings: int = 8,
    restart_seconds: float = RESTART_SECONDS,
    mode: str = "BoundedAsync",
    token: int = 0,
    hang_seconds: float = 0.0,
    quarantined_hang_seconds: float | None = None,
) -> Outcome:
    """Simulate one job.

    Args:
        siblings: of each prompt; 32 prompts of them fit into 64 slots on each engine.
        token: how many tokens the poison has before it kills.
        hang_seconds: for how long the engine hangs first.
        quarantined_hang_seconds: how long it is if an engine has only quarantined work; None for as long as any other.

    Raises:
        AssertionError: the job did not succeed.
    """
    config = job_config(
        steps=steps,
        data={"promptsPerStep": 32, "groupSize": siblings, "seed": seed},
        pipeline={"mode": mode},
        trainer={"microBatchTokens": 4000},
    )
    world = World(
        config,
        engines=engines,
        slots=64,
        length=lambda work: TOKENS[work.seed % len(TOKENS)],
        reward=lambda trajectory: float(sum(trajectory.encode()) % 2),
        step_seconds=step_seconds,
        train_seconds=lambda tokens: 0.0002 * tokens,
        restart_seconds=restart_seconds,
        poison=poison,
        poison_token=token,
        hang_seconds=hang_seconds,
        quarantined_hang_seconds=quarantined_hang_seconds,
    )
    world.start()
    world.run()
    assert world.finished == "Succeeded", world.finished
    records = (record for batch in world.ledger for record in batch.records)
    given_up = tuple(r.group for r in records if isinstance(r, GroupAborted) and r.reason != "JobFinished")
    spent = {what: seconds / (64 * engines) for what, seconds in world.slot_seconds.items()}
    spent["idle"] = world.now - sum(spent.values())
    return Outcome(world.now, len(world.deaths), given_up, spent)


def say(text: str) -> None:
    """Print a line at once."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def main(arguments: Sequence[str]) -> None:
    """Print a row for each kind of job and seed."""
    for step_seconds in (SHORT, LONG):
        for seed in map(int, arguments or ("1", "2", "3", "4", "5")):
            sound = run(seed, nothing, step_seconds=step_seconds)
            say(f"{step_seconds} s a token, seed {seed}: {sound.seconds:.0f} s")
            poisoned = 500 + seed
            for name, (poison, how) in {
                "prompt": (prompt(poisoned), {}),
                "prompt of the first step": (prompt(seed), {}),
                "sibling": (one_sibling(poisoned), {}),
                "prompt, with its 15th token": (prompt(poisoned), {"token": 15}),
                "prompt, with its 40th token": (prompt(poisoned), {"token": 40}),
                "prompt that hangs engines": (prompt(poisoned), HANGS),
                "prompt of the first step that hangs engines": (prompt(seed), EARLY_HANGS),
                "chance": (chance(seed), {}),
            }.items():
                found = run(seed, poison, step_seconds=step_seconds, **how)
                row = f"{found.seconds:.0f} s, {found.against(sound):+.1%}, {found.deaths} deaths"
                say(f"    {name}: {row}, given up: {', '.join(found.given_up) or 'nobody'}")
                say(f"        of all engines' time: {found.more(sound)}")


if __name__ == "__main__":
    main(sys.argv[1:])
