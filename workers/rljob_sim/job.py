"""A simulated job: the real planner, and roles that follow its actions on virtual time. Nothing fails in it."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from functools import partial
from itertools import count

from rljob_core.actions import (
    Announce,
    FindProgress,
    ListProgress,
    MeasurePrompts,
    Observation,
    PayloadSeen,
    PredictLengths,
    ProgressFound,
    ProgressListed,
    PromptsMeasured,
    RewardsSeen,
    SendToEngine,
    SendToTrainer,
    SignalSeen,
    SiteHeartbeat,
    StoredProgress,
    StoresRead,
    StreamLimit,
    Summary,
)
from rljob_core.messages import RELEASED, Cancel, EngineWork, Generate, GenerationEnded, Release, RewardResult
from rljob_core.planner import Decision, Planner
from rljob_core.records import Inherited, StepCommitted
from rljob_core.stable_hash import stable_hash
from rljob_sim.clock import VirtualClock
from rljob_sim.engine import EndedResponse, SimulatedEngine
from rljob_sim.link import SimulatedLinks
from rljob_sim.ranker import SimulatedPredictor
from rljob_sim.report import SimulationReport, Step
from rljob_sim.scenario import Scenario
from rljob_sim.timeline import Timeline
from rljob_sim.trainer import SimulatedTrainer

HEARTBEAT_SECONDS = 2.0
RELEASE_SECONDS = 0.2
"""From the decision that an engine releases a trajectory until its progress is stored, and that is known."""


def simulate(scenario: Scenario, timeline: Timeline | None = None) -> SimulationReport:
    """Simulate a job from its start to its end.

    Args:
        scenario: what is simulated.
        timeline: which the phases of engines and trainer are written to.
    """
    return SimulatedJob(scenario, timeline).run()


class SimulatedJob:
    """One simulated job.

    Attributes:
        planner: that decides.
        moves: trajectories that engines have released.
    """

    def __init__(self, scenario: Scenario, timeline: Timeline | None = None) -> None:
        self.planner = Planner(scenario.config, prefetch=scenario.prefetch)
        self._scenario = scenario
        self._timeline = timeline
        self._clock = VirtualClock()
        self._sequences = count(1)
        self._steps: list[Step] = []
        self._tokens: dict[str, tuple[int, int]] = {}
        """Of each trajectory that is generated and not trained, its tokens and the version of the oldest."""
        self._progress: dict[str, StoredProgress] = {}
        self.moves = 0
        self._observed: deque[Observation] = deque()
        self._deciding = self._gathering = False
        limit = scenario.config.spec.rollout.sampling.max_tokens
        self._predictor = SimulatedPredictor(
            scenario.lengths, correlation=scenario.length_correlation, limit=limit
        )
        self._trainer = SimulatedTrainer(self._clock, scenario.trainer, self._observe, timeline)
        pipeline = scenario.config.spec.pipeline
        self._links = SimulatedLinks(self._clock, scenario, arrived=self._load)
        self._engines = {
            f"{kind.name}-{number}.x": SimulatedEngine(
                self._clock,
                f"{kind.name}-{number}.x",
                kind,
                inflight=pipeline.inflight,
                swap_time=scenario.config.spec.rollout.weight_sync,
                lengths=scenario.lengths,
                prompt_tokens=scenario.prompt_tokens,
                progress_tokens=scenario.config.spec.rollout.progress_tokens,
                generated=partial(self._on_generated, kind.site),
                restarted=self._on_restarted,
                swapped=self._on_swapped,
                timeline=timeline,
            )
            for kind in scenario.engines
            for number in range(kind.count)
        }

    def run(self) -> SimulationReport:
        """Simulate it to its end.

        Raises:
            RuntimeError: nothing happens any more, and the job has not ended.
        """
        self._perform(self.planner.start("simulated", 0.0))
        self._observe(StoresRead(()), StreamLimit(1 << 60), *map(SiteHeartbeat, self._links.sites))
        for engine in self._engines.values():
            engine.load(0)
        self._trainer.start()
        self._clock.after(HEARTBEAT_SECONDS, self._beat)
        steps, last = 0, 0.0
        while not self._trainer.outcome:
            if len(self._steps) > steps:
                steps, last = len(self._steps), self._clock.now
            if not self._clock.advance() or self._clock.now > last + 1e7:
                raise RuntimeError(f"the job stands still after step {steps}, at {last:.0f} s")
        if self._timeline is not None:
            self._timeline.end(self._clock.now)
        return self._report()

    def _report(self) -> SimulationReport:
        seconds = self._steps[-1].time if self._steps else 1.0
        pools = {kind.name: kind for kind in self._scenario.engines}
        members = {name: [e for e in self._engines.values() if e.kind.name == name] for name in pools}
        hourly = sum(kind.count * kind.price for kind in pools.values()) + self._scenario.trainer.price
        return SimulationReport(
            outcome=self._trainer.outcome,
            steps=tuple(self._steps),
            engine_busy={n: sum(e.busy for e in m) / len(m) / seconds for n, m in members.items() if m},
            engine_full={n: sum(e.work for e in m) / len(m) / seconds for n, m in members.items() if m},
            trainer_busy=self._trainer.busy / seconds,
            hourly=hourly,
            sites=self._links.used(),
        )

    # ------------------------------------------------------------------------------------------ the coordinator

    def _observe(self, *observations: Observation) -> None:
        """Let the planner decide by these, after it has decided by what was observed before."""
        self._observed.extend(observations)
        if self._deciding or self._gathering:
            return
        if self._scenario.decide_seconds and self._clock.now > 0:
            self._gathering = True
            self._clock.after(self._scenario.decide_seconds, self._decide)
            return
        self._decide()

    def _decide(self) -> None:
        self._gathering, self._deciding = False, True
        while self._observed:
            seen = tuple(self._observed)
            self._observed.clear()
            self._perform(self.planner.decide(seen, self._clock.now))
        self._deciding = False

    def _perform(self, decision: Decision) -> None:
        for record in decision.records:
            if isinstance(record, StepCommitted):
                self._commit(record)
        for action in decision.actions:
            match action:
                case SendToEngine():
                    engine = self._engines[action.engine]
                    self._links.carry(engine.kind.site, partial(self._take, engine, action.items))
                case SendToTrainer():
                    self._clock.after(0.0, partial(self._trainer.receive, action.message))
                case Announce():
                    self._load("", action.version)
                    self._links.announce(action.version)
                case MeasurePrompts():
                    self._measure(action)
                case PredictLengths():
                    self._observed.append(self._predictor.answer(action))
                case FindProgress():
                    for key in zip(action.trajectories, action.attempts, strict=True):
                        self._observed.append(ProgressFound(*key, self._progress.get(key[0])))
                case ListProgress():
                    self._observed.append(ProgressListed(()))
                case _:
                    pass

    def _take(self, engine: SimulatedEngine, items: Sequence[EngineWork]) -> None:
        engine.submit([item for item in items if isinstance(item, Generate)])
        for item in items:
            if isinstance(item, Cancel):
                engine.cancel(list(zip(item.trajectories, item.attempts, strict=True)))
            elif isinstance(item, Release):
                self._release(engine, item)

    def _load(self, site: str, version: int) -> None:
        for engine in self._engines.values():
            if engine.kind.site == site:
                engine.load(version)

    def _measure(self, wanted: MeasurePrompts) -> None:
        scenario, prompts = self._scenario, wanted.prompts
        tokens = (scenario.prompt_tokens,) * len(prompts)
        self._observed.append(PromptsMeasured(prompts, tokens, wanted.evaluation))

    def _release(self, engine: SimulatedEngine, release: Release) -> None:
        for response in engine.release(list(zip(release.trajectories, release.attempts, strict=True))):
            work, span = response.work, response.span
            lineage = self.planner.state.lineage
            weights = ((version, lineage[version]) for version in range(span.min, span.max + 1))
            inherited = Inherited(
                attempt=work.attempt,
                tokens=response.tokens,
                span=span,
                seed=work.seed,
                digest=f"{work.trajectory}/{work.attempt}",
            )
            self._progress[work.trajectory] = StoredProgress(inherited, tuple(weights))
            self.moves += 1
            ended = GenerationEnded(engine.name, work.trajectory, work.attempt, RELEASED, failure=False)
            observed = partial(self._observe, ended)
            self._clock.after(
                RELEASE_SECONDS, partial(self._links.progress, engine.kind.site, response.tokens, observed)
            )

    def _commit(self, record: StepCommitted) -> None:
        trained = [self._tokens.pop(t) for batch in record.micro_batches for t in batch]
        step = record.version - 1
        if self._timeline is not None:
            self._timeline.commits[record.version] = self._clock.now
        self._steps.append(
            Step(
                self._clock.now,
                sum(tokens for tokens, _ in trained),
                tuple(step - oldest for _, oldest in trained),
            )
        )

    def _beat(self) -> None:
        signals: dict[str, list[Observation]] = {"": [], **{site: [] for site in self._links.sites}}
        for engine in self._engines.values():
            signals[engine.kind.site].append(self._signal(engine))
        for site, seen in signals.items():
            self._links.carry(site, partial(self._observe, *seen))
        self._clock.after(HEARTBEAT_SECONDS, self._beat)

    def _signal(self, engine: SimulatedEngine) -> SignalSeen:
        return SignalSeen(engine.name, self._links.with_outbox(engine.kind.site, engine.signal()))

    # ------------------------------------------------------------------------------------------ the engines

    def _on_swapped(self, engine: SimulatedEngine) -> None:
        # Later: the engine is between two steps, and must not be given work before it has begun the next.
        self._clock.after(
            0.0, lambda: self._links.carry(engine.kind.site, partial(self._observe, self._signal(engine)))
        )

    def _on_restarted(self, engine: SimulatedEngine, works: list[Generate]) -> None:
        ended = [
            GenerationEnded(engine.name, work.trajectory, work.attempt, "Restarted", failure=False)
            for work in works
        ]
        self._clock.after(0.0, lambda: self._links.carry(engine.kind.site, partial(self._observe, *ended)))

    def _on_generated(self, site: str, ended: list[EndedResponse]) -> None:
        if not site:
            self._store(ended)
            return
        for response in ended:  # each is a message of its own
            self._links.payload(site, response.tokens, partial(self._store, [response]))

    def _store(self, ended: list[EndedResponse]) -> None:
        summaries, results = [], []
        for response in ended:
            work, prompt = response.work, self._scenario.prompt_tokens
            digest = f"{work.trajectory}/{work.attempt}"
            tokens = prompt + response.tokens
            self._tokens[work.trajectory] = tokens, response.span.min
            summaries.append(
                Summary(work.trajectory, work.attempt, response.span, tokens, response.tokens, digest)
            )
            score = float(stable_hash(digest) % 2)
            results.append(RewardResult(work.trajectory, work.attempt, digest, score, {}, "d"))
        seen = RewardsSeen(next(self._sequences), tuple(results))
        self._observe(PayloadSeen(next(self._sequences), tuple(summaries)))
        self._clock.after(self._scenario.reward_seconds, lambda: self._observe(seen))
