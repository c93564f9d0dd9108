"""Random runs of the planner on a store that is small for the job: prompts of any length, any order of completion.

Names in [brackets] are those of the invariants in `docs/design/staleness.md`.
"""

from __future__ import annotations

import random
from typing import Any

from interleavings import require
from world import SimulatedEngine, World, job_config

from rljob_core.actions import (
    Action,
    GrowStream,
    MeasurePrompts,
    PayloadSeen,
    PromptsMeasured,
    RewardsSeen,
    StoresRead,
    StreamLimit,
    Summary,
)
from rljob_core.config import JobConfig
from rljob_core.failures import Failure, Reason
from rljob_core.messages import Generate, RewardResult
from rljob_core.records import SiblingReset
from rljob_core.streams_budget import payload_bytes
from rljob_core.trajectory import State, is_evaluation

LONGEST_PROMPT, LONGEST_RESPONSE = 4000, 600
MOST_GIVEN_WAY = 20
"""Trajectories that one run may generate again for want of room."""
LIMIT_SECONDS = 1000.0
"""Virtual time within which every job must have ended."""


class BoundedWorld(World):
    """A world whose trajectory stream refuses what it has no room for, as often as an engine tries to store it.

    Args:
        limit: bytes that the stream may hold.
        prompts: gives the number of tokens of a prompt; True for held-out ones.
        failing: the share of answers whose reward fails.
    """

    def __init__(
        self, config: JobConfig, chance: random.Random, *, limit: int, failing: float, **more: Any
    ) -> None:
        super().__init__(config, length=self._length, reward=lambda t: float(chance.random() < 0.5), **more)
        self.chance, self.limit, self.failing = chance, limit, failing
        self.sizes: dict[int, int] = {}
        """Bytes of each stored message, by its sequence."""
        self._prompts: dict[tuple[int, bool], int] = {}
        self._lengths: dict[int, int] = {}
        self.alike = chance.random() < 0.4
        """Whether all prompts are equally long."""
        self.steady = False
        """Whether no step comes to need more room than when its trajectories were planned."""
        self.refused = 0
        self.given_way = 0

    def _length(self, work: Generate) -> int:
        slow = work.seed % 11 == 0  # one in eleven responses is slow
        return self._lengths.setdefault(work.seed, LONGEST_RESPONSE if slow else 1 + work.seed % 40)

    def prompt_tokens(self, prompt: int, *, evaluation: bool = False) -> int:
        if self.alike:
            return LONGEST_PROMPT
        drawn = self.chance.choice([3, LONGEST_PROMPT // 4, LONGEST_PROMPT])
        return self._prompts.setdefault((prompt, evaluation), drawn)

    @property
    def stored_bytes(self) -> int:
        return sum(size for sequence, size in self.sizes.items() if sequence not in self.deleted)

    def take_charge(self, instance: str) -> None:
        planner = self.planner
        self.perform(planner.start(instance, self.now))
        if self.planner is planner:
            self.observe(StoresRead(()), StreamLimit(self.limit))

    def act(self, action: Action) -> None:
        match action:
            case MeasurePrompts():
                tokens = tuple(self.prompt_tokens(p, evaluation=action.evaluation) for p in action.prompts)
                measured = PromptsMeasured(action.prompts, tokens, action.evaluation)
                planner = self.planner
                self.after(0.01, lambda: self.observe(measured) if self.planner is planner else None)
            case GrowStream():
                planner = self.planner
                said = StreamLimit(self.limit, "no storage")
                self.after(0.01, lambda: self.observe(said) if self.planner is planner else None)
            case _:
                super().act(action)

    def perform(self, decision: Any) -> None:
        planner = self.planner
        again = [r for r in decision.records if isinstance(r, SiblingReset) and r.reason == "NoRoom"]
        self.given_way += len(again)
        most = 0 if self.steady else MOST_GIVEN_WAY
        require(self.given_way <= most, f"[room] later steps took what earlier ones need: {again[:1]}")
        super().perform(decision)
        if self.planner is planner:
            self.check_room()

    def check_room(self) -> None:
        """What is stored, and the most that what is being generated can take, is never more than the stream holds."""
        held = {key for sequence, key in self.stored.items() if sequence not in self.deleted}
        under_way = 0
        for sibling in self.planner.state.siblings():
            if sibling.state is State.GENERATING and (sibling.id, sibling.attempt) not in held:
                under_way += self._largest(sibling.id)
        run = self.planner.context.evaluation
        for answer in run.engines:
            if (answer, run.attempts[answer]) not in held:
                under_way += self._largest(answer)
        reserved = self.stored_bytes + under_way
        require(reserved <= self.limit, f"[room] {reserved} bytes of {self.limit} are stored or under way")

    def _largest(self, trajectory: str) -> int:
        evaluation = is_evaluation(trajectory)
        group = trajectory.partition(".")[0]
        prompt = int(group.partition("-")[2] if evaluation else group.removeprefix("g"))
        tokens = self.prompt_tokens(prompt, evaluation=evaluation)
        return payload_bytes(prompt_tokens=tokens, response_tokens=LONGEST_RESPONSE)

    def complete(self, engine: SimulatedEngine, work: Generate) -> None:
        span = engine.running.get((work.trajectory, work.attempt))
        if span is None or engine.name not in self.engines:
            return
        response = self.length(work)
        prompt = self.prompt_tokens(work.prompt, evaluation=is_evaluation(work.trajectory))
        size = payload_bytes(prompt_tokens=prompt, response_tokens=response)
        if self.stored_bytes + size > self.limit:
            self.refused += 1
            self.after(1.0, lambda: self.complete(engine, work))
            return
        del engine.running[work.trajectory, work.attempt]
        sequence, key = next(self._sequences), (work.trajectory, work.attempt)
        self.stored[sequence], self.sizes[sequence] = key, size
        digest = f"{work.trajectory}/{work.attempt}"
        summary = Summary(*key, span, prompt + response, response, digest)
        self.fill(engine)
        fails = self.chance.random() < self.failing
        failure = Failure(Reason.REWARD_RAISED, "by chance") if fails else None
        result = RewardResult(*key, digest, self.reward(work.trajectory), {}, "d", failure=failure)
        for message in (PayloadSeen(sequence, (summary,)), RewardsSeen(next(self._sequences), (result,))):
            self.streams.append(message)
            self.observe(message)

    def beat_for_ever(self) -> None:
        if not self.finished:
            self.beat()
            self.after(1.0, self.beat_for_ever)


def any_job(chance: random.Random) -> JobConfig:
    """Draw a job: its bound, its batch, whether it evaluates and replaces uniform groups."""
    bound = chance.choice([0, 1, 2, 3])
    changes: dict[str, Any] = {"evaluation": {"everySteps": 2, "samples": 3}} if chance.random() < 0.4 else {}
    return job_config(
        steps=chance.randint(2, 5),
        data={"promptsPerStep": chance.randint(1, 3), "groupSize": chance.randint(1, 3)},
        pipeline={
            "mode": "BoundedAsync" if bound else chance.choice(["Streaming", "Synchronous"]),
            "maxStaleness": bound,
            "maxAttempts": 100,
        },
        algorithm={"dropUniformGroups": chance.random() < 0.3},
        rollout={"pools": [{"name": "a"}], "sampling": {"maxTokens": LONGEST_RESPONSE}},
        **changes,
    )


def walk(seed: int, *, steady: bool = False) -> BoundedWorld:
    """Run one job on a store that holds at least one step, with failing rewards, dying engines and coordinators.

    Args:
        seed: of the job and its mishaps.
        steady: without mishaps, and with prompts of one length.

    Raises:
        Violated: more is stored or under way than fits, the job stands still, or work is done twice for nothing.
    """
    chance = random.Random(seed)
    config = any_job(chance)
    data = config.spec.data
    batch = (
        data.prompts_per_step
        * data.group_size
        * payload_bytes(prompt_tokens=LONGEST_PROMPT, response_tokens=LONGEST_RESPONSE)
    )
    calm = steady or chance.random() < 0.3
    world = BoundedWorld(
        config,
        chance,
        limit=int(batch * chance.choice([1.0, 1.0, 1.2, 1.7, 2.5])),
        failing=0.0 if calm else chance.choice([0.0, 0.1, 0.3]),
        engines=chance.randint(1, 3),
        slots=chance.choice([1, 3, 8]),
    )
    world.alike = world.alike or steady
    world.steady = calm and world.alike and not config.spec.algorithm.drop_uniform_groups
    world.start()
    world.beat_for_ever()
    for number in range(0 if calm else chance.randint(0, 4)):
        for _ in range(chance.randint(1, 200)):
            world.step()
        if chance.random() < 0.5:
            world.restart_coordinator(f"c{number + 2}")
        else:
            world.kill_engine(chance.choice(sorted(world.engines)))
            engine = SimulatedEngine(f"n{number}.x", 3)
            world.engines[engine.name] = engine
            world.swap(engine)
            world.signal(engine)
    run_to_the_end(world)
    require(world.finished == "Succeeded", f"[progress] it ended as {world.planner.state.finished}")
    require(not world.steady or world.refused == 0, "[room] an engine had to wait")
    return world


def walk_without_room(seed: int) -> Failure:
    """Run a job whose store does not hold one step, and return why it ends.

    Raises:
        Violated: it does not end, or does not say why.
    """
    chance = random.Random(seed)
    config = job_config(
        data={"promptsPerStep": 3, "groupSize": 2}, rollout={"sampling": {"maxTokens": LONGEST_RESPONSE}}
    )
    one = payload_bytes(prompt_tokens=LONGEST_PROMPT, response_tokens=1)
    world = BoundedWorld(config, chance, limit=one * chance.randint(1, 5), failing=0.0)
    world.alike = True
    world.start()
    world.beat_for_ever()
    run_to_the_end(world)
    finished = world.planner.state.finished
    require(finished is not None and finished.outcome == "Failed", f"[progress] it ended as {finished}")
    assert finished is not None
    assert finished.failure is not None
    require(
        "lower spec.rollout.sampling.maxTokens" in finished.failure.detail,
        f"it does not say what to lower: {finished}",
    )
    return finished.failure


def run_to_the_end(world: BoundedWorld) -> None:
    """Run a job until it has ended.

    Raises:
        Violated: more is stored or under way than fits, or the job stands still.
    """
    while not world.finished:
        require(world.step(), "[progress] nothing happens any more")
        require(
            world.now < LIMIT_SECONDS, f"[progress] it stands still at version {world.planner.state.version}"
        )
