"""What a run's folder says about its speed: its steps, what they trained on, and what its engines measured.

Steps are those of `metrics.jsonl`, the answers that they trained on are the ledger's, and engines are described by
their newest heartbeats: those in `engines.json`, or in the log of the coordinator's decisions, if there is one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from rljob_cli.exits import run_async
from rljob_cli.run.run_progress import RunProgress
from rljob_cli.run_folder.folder import Identity, RunFolder
from rljob_cli.run_folder.job_file import stored_job
from rljob_cli.run_folder.streams import opened, served_streams, store_of
from rljob_cli.simulate.recorded_decisions import RecordedDecisions, read_decisions
from rljob_core.errors import SpecError
from rljob_core.job_state import JobState
from rljob_core.messages import STEP_METRICS, EngineSignal, StepMetrics, StepStats
from rljob_core.records import Generated, Record, StepCommitted, StepRestored, VersionsRevoked
from rljob_core.spec import RLJob, SiteLinkSpec
from rljob_runtime.messaging.ledger import Ledger

OPTION = "--from"
_SIGNALS: TypeAdapter[tuple[EngineSignal, ...]] = TypeAdapter(tuple[EngineSignal, ...])


@dataclass(frozen=True, slots=True)
class RecordedStep:
    """A committed step.

    Attributes:
        version: that it made.
        seconds: since the commit before it; None if another coordinator, with a clock of its own, made that one.
        stats: what the trainer measured.
        answers: that it trained on.
    """

    version: int
    seconds: float | None
    stats: StepStats
    answers: tuple[Generated, ...]

    @property
    def tokens(self) -> int:
        """Of the answers and their prompts."""
        return sum(answer.tokens for answer in self.answers)


@dataclass(frozen=True, slots=True)
class RecordedRun:
    """A run, finished or not.

    Attributes:
        path: its folder.
        job: as it was run last.
        links: of its sites, by site.
        steps: in order; at least two, the second of which has its `seconds`.
        engines: the newest heartbeat of each engine that has measured its steps; at least one.
        decisions: what is known from the log of decisions; None without `--record`.
    """

    path: Path
    job: RLJob
    links: dict[str, SiteLinkSpec]
    steps: tuple[RecordedStep, ...]
    engines: tuple[EngineSignal, ...]
    decisions: RecordedDecisions | None


class TrainedAnswers(JobState):
    """The fold of a ledger that also keeps which answers each step trained on, by the version that it made."""

    def __init__(self) -> None:
        super().__init__()
        self.trained: dict[int, tuple[Generated, ...]] = {}
        self._answers: dict[str, Generated] = {}

    def apply(self, record: Record) -> None:
        """Keep what was generated and trained, and change the state."""
        match record:
            case Generated():
                self._answers[record.trajectory] = record
            case StepCommitted():
                self._train(record)
            case StepRestored():
                self._train(record.commit)
            case VersionsRevoked():
                self.trained = {v: answers for v, answers in self.trained.items() if v <= record.version}
            case _:
                pass
        super().apply(record)

    def _train(self, commit: StepCommitted) -> None:
        consumed = [trajectory for batch in commit.micro_batches for trajectory in batch]
        found = [self._answers.pop(trajectory, None) for trajectory in consumed]
        self.trained[commit.version] = tuple(answer for answer in found if answer is not None)


def read_run(path: Path) -> RecordedRun:
    """Read a run's folder.

    Raises:
        SpecError: it is no run's folder, or too little is recorded in it.
        RLJobError: its ledger cannot be read.
    """
    folder = RunFolder(path)
    folder.check_plain()
    identity = _identity(folder)
    job = stored_job(identity)
    commits = _commits(folder)
    decisions = read_decisions(folder.decisions)
    engines = _engines(folder, decisions)
    trained = run_async(lambda: _trained(folder, identity))
    steps = tuple(_steps(commits, trained))
    if not any(step.seconds is not None and step.answers for step in steps[1:]):
        raise SpecError(OPTION, f"{folder.path}: its ledger has none of the steps in metrics.jsonl")
    return RecordedRun(folder.path, job, identity.site_links, steps, engines, decisions)


def _identity(folder: RunFolder) -> Identity:
    try:
        identity = folder.identity()
    except SpecError as error:
        raise SpecError(OPTION, f"{folder.job} is damaged: {error}") from error
    if identity is None:
        raise SpecError(
            OPTION,
            f"{folder.path} holds no run: give the output folder of an `rljob run` (runs/<job's name>)",
        )
    return identity


def _commits(folder: RunFolder) -> list[StepMetrics]:
    progress = RunProgress()
    for line in _metrics_lines(folder.metrics):
        progress.add(line)
    if not progress.commits:
        raise SpecError(OPTION, f"{folder.path} has finished no step yet: nothing is measured before")
    commits = [line for line in progress.commits if line.stats is not None]  # a restored commit has none
    if not commits:
        raise SpecError(
            OPTION,
            f"{folder.path} was run by a release that did not record how long training takes: run the job again, or "
            "name devices by --engines, and --trainer secondsPerToken=…",
        )
    if not any(_seconds(one, other) for one, other in pairwise(commits)):
        raise SpecError(
            OPTION,
            f"{folder.path} has finished one step: time is measured from step to step, so wait for the next",
        )
    return commits


def _metrics_lines(path: Path) -> Iterator[StepMetrics]:
    try:
        lines = path.read_bytes().splitlines(keepends=True)
    except FileNotFoundError:
        return
    for number, line in enumerate(lines, start=1):
        if not line.endswith(b"\n"):
            return  # it is being written
        try:
            yield STEP_METRICS.validate_json(line)
        except ValidationError as error:
            reason = error.errors(include_url=False)[0]["msg"]
            raise SpecError(OPTION, f"{path}, line {number} cannot be read: {reason}") from error


def _seconds(before: StepMetrics, line: StepMetrics) -> float | None:
    """Seconds between two lines, by the clock of the coordinator that wrote both; None if two did."""
    same = (before.epoch, before.writer) == (line.epoch, line.writer) and line.version == before.version + 1
    return line.seconds - before.seconds if same else None


def _engines(folder: RunFolder, decisions: RecordedDecisions | None) -> tuple[EngineSignal, ...]:
    """The heartbeats in `engines.json`; those of the decision log, where there is none."""
    try:
        found: Sequence[EngineSignal] = _SIGNALS.validate_json(folder.engines.read_bytes())
    except FileNotFoundError:
        found = list(decisions.engines.values()) if decisions is not None else []
    except ValidationError as error:
        raise SpecError(OPTION, f"{folder.engines} is damaged: remove it, and continue the run") from error
    if not found:
        raise SpecError(
            OPTION,
            f"{folder.path} does not tell how fast its engines are: each measures it in its first steps, and `rljob "
            "run` writes it to engines.json every 5 s. Continue the run for a while, or "
            "name devices by --engines and leave out --from",
        )
    return tuple(signal for signal in found if signal.profile is not None)


async def _trained(folder: RunFolder, identity: Identity) -> dict[int, tuple[Generated, ...]]:
    state = TrainedAnswers()
    async with served_streams(folder, identity) as url, opened(store_of(identity, url)) as store:
        await Ledger(store, job=identity.uid, instance="rljob-simulate").replay(state)
    return state.trained


def _steps(
    commits: Sequence[StepMetrics], trained: dict[int, tuple[Generated, ...]]
) -> Iterator[RecordedStep]:
    for before, line in pairwise([None, *commits]):
        assert line is not None  # noqa: S101  only the first of all is None
        assert line.stats is not None  # noqa: S101  others are left out of the commits
        seconds = _seconds(before, line) if before is not None else None
        yield RecordedStep(line.version, seconds, line.stats, trained.get(line.version, ()))
