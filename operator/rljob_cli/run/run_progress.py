"""The progress of a run, computed from the job's METRICS stream and its engines' heartbeats. No I/O, no clock."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from statistics import fmean

from rljob_core.autoscale import TrainingLoad, load_after
from rljob_core.messages import EngineSignal, StepMetrics
from rljob_core.metrics_history import SeenLines, kind_of
from rljob_operator.decisions.job_metrics import JobMetrics, pipeline_in_force

_RATE_SECONDS = 10.0
CONNECTED_SECONDS = 10.0
"""Since a site's newest heartbeat for which it counts as connected."""


@dataclass(slots=True)
class Rate:
    """Tokens per second over the last ten seconds, from counters that restart at 0 with their process.

    Attributes:
        total: tokens of all sources since the start.
        per_second: the rate at the last `mark`.
    """

    total: float = 0.0
    per_second: float = 0.0
    _last: dict[str, float] = field(default_factory=dict)
    _marks: deque[tuple[float, float]] = field(default_factory=deque)

    def count(self, source: str, value: float) -> None:
        """Record the newest value of a source's counter; a smaller value than before means that it restarted."""
        before = self._last.get(source, 0.0)
        self.total += value - before if value >= before else value
        self._last[source] = value

    def forget(self, source: str) -> None:
        """Forget a source that has ended; a later source of the same name starts at 0."""
        self._last.pop(source, None)

    def mark(self, now: float) -> None:
        """Compute the rate at time `now` (seconds); the caller calls this about once a second."""
        self._marks.append((now, self.total))
        while now - self._marks[0][0] > _RATE_SECONDS:
            self._marks.popleft()
        since, before = self._marks[0]
        if now > since:
            self.per_second = (self.total - before) / (now - since)


@dataclass(slots=True)
class SiteProgress:
    """What a run knows of a site.

    Attributes:
        beat_seconds: since the newest heartbeat of one of its engines arrived; None before the first.
        outbox_bytes: that its server has stored for the hub, as the engines said last.
        bytes_up, bytes_down: from the site to the hub and back, of all runs in the folder.
        tokens: that its engines have generated in this run, and their rate.
        trained: trajectories from there that were trained.
    """

    beat_seconds: float | None = None
    outbox_bytes: int = 0
    bytes_up: int = 0
    bytes_down: int = 0
    tokens: Rate = field(default_factory=Rate)
    trained: int = 0

    @property
    def connected(self) -> bool:
        """Whether it was heard just now."""
        return self.beat_seconds is not None and self.beat_seconds < CONNECTED_SECONDS


class RunProgress:
    """A job's progress so far.

    Attributes:
        lines: metrics lines in order, without duplicates: one per commit, per evaluation and for the end.
        latest: the newest metrics line; None before the first.
        optimizer_resets: why the optimizer continued with an older or a fresh state, each time that it did.
        engines: the newest heartbeat of each engine.
        measured: by pod, the newest heartbeat with a profile of its engine, also after that has ended.
        rollout: rate of generated tokens, from the engines' own counters.
        load: how fast the trainer and the engines are; None before the first line.
        sites: the job's sites besides the hub, by name.
    """

    def __init__(self, sites: Iterable[str] = ()) -> None:
        self.sites = {site: SiteProgress() for site in sites}
        self._beats: Counter[str] = Counter()  # heartbeats of each site, since `mark`
        self._beat_at: dict[str, float] = {}
        self.lines: list[StepMetrics] = []
        self.latest: StepMetrics | None = None
        self.optimizer_resets: list[str] = []
        self.engines: dict[str, EngineSignal] = {}
        self.measured: dict[str, EngineSignal] = {}
        self.rollout = Rate()
        self.load: TrainingLoad | None = None
        self._seen = SeenLines()
        self.tokens_generated = 0

    def add(self, line: StepMetrics) -> bool:
        """Add a metrics line and return whether it is new.

        A coordinator that takes over may publish a commit again that its predecessor has published.
        """
        self.load = load_after(self.load, line)
        self.tokens_generated = max(self.tokens_generated, line.tokens_generated)
        if self.latest is None or line.epoch >= self.latest.epoch:
            self.latest = line
        if line.optimizer_reset and line.optimizer_reset not in self.optimizer_resets:
            self.optimizer_resets.append(line.optimizer_reset)
        new = self._seen.add(line)
        if line.gone_back:
            self._go_back(line.version)
        elif new:
            self.lines.append(line)
            self._count_trained(line)
        return new

    def _go_back(self, version: int) -> None:
        """Drop the lines of later versions and of the job's end, because the user rolled the job back."""
        self.lines = [line for line in self.lines if line.version <= version and not line.finished]
        for site in self.sites.values():
            site.trained = 0
        for line in self.lines:
            self._count_trained(line)

    def _count_trained(self, line: StepMetrics) -> None:
        for name, number in line.trained_at.items():
            if name in self.sites:
                self.sites[name].trained += number

    def heard(self, key: str, signal: EngineSignal | None) -> None:
        """Record an engine's heartbeat; `signal` is None if the engine's key was removed."""
        if signal is None:
            gone = self.engines.pop(key, None)
            self.rollout.forget(key)
            if gone is not None and gone.site in self.sites:
                self.sites[gone.site].tokens.forget(key)
            return
        self.engines[key] = signal
        if signal.profile is not None:
            self.measured[key.rpartition(".")[0]] = signal
        self.rollout.count(key, signal.tokens)
        if (site := self.sites.get(signal.site)) is not None:
            site.tokens.count(key, signal.tokens)
            site.outbox_bytes = signal.outbox_bytes
            self._beats[signal.site] += 1

    def mark(self, now: float) -> None:
        """Compute rates and ages at time `now` (seconds); the caller calls this about once a second."""
        self.rollout.mark(now)
        for name, site in self.sites.items():
            site.tokens.mark(now)
            if self._beats.pop(name, 0):
                self._beat_at[name] = now
            if name in self._beat_at:
                site.beat_seconds = now - self._beat_at[name]

    @property
    def commits(self) -> list[StepMetrics]:
        """The metrics lines of committed steps, one per step."""
        return [line for line in self.lines if kind_of(line) == "commit"]

    @property
    def evaluations(self) -> list[StepMetrics]:
        """The metrics lines of evaluations, one per version, the oldest version first."""
        found = [line for line in self.lines if kind_of(line) == "evaluation"]
        return sorted(found, key=lambda line: line.version)

    @property
    def end(self) -> StepMetrics | None:
        """The metrics line that reports the end of the job; None if the job has not ended."""
        return next((line for line in self.lines if line.finished), None)

    @property
    def step(self) -> int:
        """The number of committed steps."""
        return max((line.version for line in self.lines), default=0)

    def planned(self, steps: int) -> int:
        """The step that ends the job: `spec.steps`, but no less than the steps that had begun when it was changed."""
        return max(steps, self.step, self.latest.last_version if self.latest is not None else 0)

    @property
    def staleness(self) -> tuple[int | None, float | None]:
        """The largest staleness of any trained trajectory, and the mean over all steps; (None, None) before a step."""
        stats = [line.stats for line in self.commits if line.stats is not None]
        if not stats:
            return None, None
        return max(s.staleness_max for s in stats), fmean(s.staleness_mean for s in stats)

    @property
    def job_metrics(self) -> JobMetrics | None:
        """What a reconcile needs to know of it; None before the first metrics line."""
        latest, line = self.latest, self.commits[-1] if self.commits else None
        if latest is None:
            return None
        found = JobMetrics(
            optimizer_reset=latest.optimizer_reset,
            samples_lost=latest.samples_lost,
            sites_away=latest.sites_away,
            sites_held=latest.sites_held,
            load=self.load,
        )
        if line is None:
            return found
        largest, mean = self.staleness
        return replace(
            found,
            step=self.step,
            policy_version=self.step,
            reward_mean=line.reward_mean,
            staleness_max=largest,
            staleness_mean=mean,
            tokens_per_second=line.tokens_per_second,
            pipeline=pipeline_in_force(line),
        )
