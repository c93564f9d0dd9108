"""Decision logs of a simulated world are replayed: the decisions are equal, or the first difference is reported."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
from world import SimulatedEngine, World, job_config

from rljob_core import actions, messages, records
from rljob_core.actions import (
    CheckRewards,
    DropProgress,
    EngineDrained,
    FindMark,
    GrowStream,
    LengthsPredicted,
    ListProgress,
    MarkFound,
    MeasurePrompts,
    PayloadAbsent,
    PipelineChanged,
    PipelineRefused,
    PredictLengths,
    ProgressListed,
    PromptsMeasured,
    RequestScores,
    RewardsComplete,
    SendMark,
    SignalSeen,
    SiteHeartbeat,
    SiteMarkSeen,
    SitesLost,
    SpecChanged,
    StreamLimit,
)
from rljob_core.errors import Fenced, SpecError
from rljob_core.failures import Failure, Reason
from rljob_core.messages import (
    EngineDied,
    EngineGone,
    EngineSignal,
    GenerationEnded,
    GroupMember,
    OptimizerReset,
    PayloadMissing,
    RoleFailed,
    SamplesLost,
    ScoreGroup,
    StepProposed,
    StepStats,
    TrainerReady,
)
from rljob_core.records import (
    EpochClaimed,
    GroupAborted,
    GroupMoved,
    SiblingReset,
    StepCommitted,
    StepRestored,
    VersionsRevoked,
)
from rljob_core.spec import PipelineSpec
from rljob_runtime.roles.decision_log import FORMAT, DecisionLog, decode, encode
from rljob_runtime.roles.decision_replay import replay


class LoggedWorld(World):
    """Each coordinator writes its log, as `rljob_runtime.roles.coordinator` does."""

    folder: Path
    log: DecisionLog | None = None

    def take_charge(self, instance: str) -> None:
        self.close()
        self.log = DecisionLog(self.folder, instance=instance)
        context = self.planner.context
        context.state = self.log.begin(self.config, context.state, self.now, prefetch=self.prefetch)
        super().take_charge(instance)

    def observe(self, *observations: Any) -> None:
        planner, log = self.planner, self.log
        assert log is not None
        try:
            decision = planner.decide(observations, self.now)
        except Fenced as error:
            log.end(observations, self.now, str(error))
            raise
        log.write(observations, self.now, decision)
        self.perform(decision)

    def close(self) -> None:
        if self.log is not None:
            self.log.close()


@pytest.fixture
def world(tmp_path: Path) -> Iterator[LoggedWorld]:
    """A job of all that can be logged: an evaluation, a dead engine, gangs and coordinators, another pipeline."""
    world = LoggedWorld(
        job_config(
            steps=12, evaluation={"everySteps": 2, "samples": 3}, algorithm={"dropUniformGroups": False}
        ),
        engines=3,
        slots=2,
        reward=lambda trajectory: float(len(trajectory) % 2),
        prefetch=0.5,
    )
    world.folder = tmp_path
    world.start()
    world.run(60)
    name = next(iter(world.engines))
    world.kill_engine(name)
    world.engines["new.x"] = SimulatedEngine("new.x", 2)
    world.swap(world.engines["new.x"])
    world.signal(world.engines["new.x"])
    world.beat(12)
    world.restart_coordinator("c2")
    world.run(40)
    world.observe(PipelineChanged(PipelineSpec.model_validate({"mode": "BoundedAsync", "maxStaleness": 2})))
    world.restart_trainer()
    world.run(40)
    world.restart_coordinator("c3")
    yield world
    world.close()


def test_what_was_decided_is_decided_again(world: LoggedWorld, tmp_path: Path):
    world.run()
    assert world.finished == "Succeeded"
    replayed = [replay(path) for path in sorted(tmp_path.iterdir())]
    assert [log.difference for log in replayed] == [None] * 3
    assert [(log.instance, log.epoch, log.cut) for log in replayed] == [
        ("c1", 1, False),
        ("c2", 2, False),
        ("c3", 3, False),
    ]
    for log, path in zip(replayed, sorted(tmp_path.iterdir()), strict=True):
        assert log.decisions == len(path.read_text().splitlines()) - 1 > 10
        assert log.observations > 10


def test_nothing_depends_on_the_order_of_a_set(world: LoggedWorld, tmp_path: Path):
    world.run()
    code = (
        "import sys; from pathlib import Path; from rljob_runtime.roles.decision_replay import replay; "
        "sys.exit(any(replay(p).difference for p in Path(sys.argv[1]).iterdir()))"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    subprocess.run(command, env={**os.environ, "PYTHONHASHSEED": "7"}, check=True)


def test_the_end_of_a_coordinator_that_was_replaced(world: LoggedWorld, tmp_path: Path):
    epoch = world.planner.epoch + 1_000_000
    with pytest.raises(Fenced):
        world.observe(TrainerReady(world.attempt, epoch, None))
    replayed = replay(tmp_path / "c3.jsonl")
    assert replayed.difference is None
    assert str(epoch) in replayed.ended
    # Had it not stopped, that would be reported.
    rewrite(tmp_path / "c3.jsonl", -1, lambda line: line.update(fenced="another reason"))
    difference = replay(tmp_path / "c3.jsonl").difference
    assert difference is not None
    assert difference.logged == "another reason"
    rewrite(tmp_path / "c3.jsonl", -1, lambda line: (line.pop("fenced"), line.update(records=[], actions=[])))
    difference = replay(tmp_path / "c3.jsonl").difference
    assert difference is not None
    assert difference.replayed.startswith("Fenced: ")


def test_a_job_that_failed(world: LoggedWorld, tmp_path: Path):
    world.observe(RoleFailed("trainer", Failure(Reason.OUT_OF_MEMORY, "out of memory")))
    assert replay(tmp_path / "c3.jsonl").difference is None


def test_a_kill_in_the_middle_of_a_line(world: LoggedWorld, tmp_path: Path):
    path = tmp_path / "c2.jsonl"
    whole = replay(path)
    path.write_bytes(path.read_bytes()[:-7])
    cut = replay(path)
    assert (cut.decisions, cut.cut, cut.difference) == (whole.decisions - 1, True, None)
    path.write_bytes(path.read_bytes()[:100])
    assert (replay(path).decisions, replay(path).cut) == (0, True)
    path.write_bytes(b"")
    assert replay(path).cut


def rewrite(path: Path, line: int, change: Callable[[Any], Any]) -> None:
    lines = path.read_text().splitlines()
    content = json.loads(lines[line])
    change(content)
    lines[line] = json.dumps(content)
    path.write_text("\n".join(lines) + "\n")


def first_with(path: Path, part: str, kind: str) -> tuple[int, int]:
    """Line, and place in it, of the first record or action of a kind."""
    for number, line in enumerate(path.read_text().splitlines()):
        for place, item in enumerate(json.loads(line).get(part, [])):
            if item["type"] == kind:
                return number, place
    raise AssertionError(kind)


@pytest.mark.parametrize(
    ("part", "kind", "change"),
    [("records", "GroupReady", ("base", 7)), ("actions", "SendToEngine", ("engine", "another.x"))],
)
def test_a_decision_that_was_another_is_shown(
    world: LoggedWorld, tmp_path: Path, part: str, kind: str, change: tuple[str, Any]
):
    field, value = change
    path = tmp_path / "c1.jsonl"
    number, place = first_with(path, part, kind)
    rewrite(path, number, lambda line: line[part][place]["value"].update({field: value}))
    replayed = replay(path)
    assert replayed.decisions == number - 1
    difference = replayed.difference
    assert difference is not None
    assert (difference.decision, difference.what) == (number, f"{part[:-1]} {place}")
    assert str(value) in difference.logged
    assert str(value) not in difference.replayed
    assert difference.replayed.startswith(kind)


def test_a_decision_that_is_missing_or_one_too_many(world: LoggedWorld, tmp_path: Path):
    path = tmp_path / "c1.jsonl"
    number, _ = first_with(path, "records", "Rewarded")
    rewrite(path, number, lambda line: line["records"].pop())
    difference = replay(path).difference
    assert difference is not None
    assert difference.logged == "nothing"
    rewrite(path, number, lambda line: line.update(records=line["records"] * 3))
    difference = replay(path).difference
    assert difference is not None
    assert difference.decision == number


def test_an_observation_that_contradicts_the_state_is_no_crash(world: LoggedWorld, tmp_path: Path):
    path = tmp_path / "c1.jsonl"
    number, _ = first_with(path, "records", "Generated")

    def too_old(line: Any) -> None:
        line["observations"][0]["value"]["summaries"][0]["span"] = {"min": -9, "max": 0}

    rewrite(path, number, too_old)
    difference = replay(path).difference
    assert difference is not None
    assert difference.decision == number


def test_a_log_of_another_release_is_refused(world: LoggedWorld, tmp_path: Path):
    path = tmp_path / "c1.jsonl"
    rewrite(path, 0, lambda line: line.update(format=FORMAT + 1, release="9.9.9"))
    with pytest.raises(SpecError, match=r"c1\.jsonl: rljob 9\.9\.9 wrote it, .* replay it with the release"):
        replay(path)
    rewrite(path, 0, lambda line: line.update(format=FORMAT))
    rewrite(path, 0, lambda line: line["config"].update(flavour="sweet"))
    with pytest.raises(SpecError, match="replay it with the release that wrote it"):
        replay(path)
    rewrite(path, 0, lambda line: line["config"].pop("flavour"))
    rewrite(path, 3, lambda line: line["observations"].append({"type": "Telepathy", "value": {}}))
    with pytest.raises(SpecError, match=r"c1\.jsonl, line 4: .*does not know"):
        replay(path)
    path.write_text("{}\n")
    with pytest.raises(SpecError, match="not a log of a coordinator's decisions"):
        replay(path)
    path.write_text("hello\n")
    with pytest.raises(SpecError, match="not a log of a coordinator's decisions"):
        replay(path)


NAN = float("nan")
COMMIT = StepCommitted(1, "", 1, 1, (("g0.0",),), 0, "r", "m", "k")
NOT_IN_THAT_JOB = [
    SiteHeartbeat("east", 3),
    SiteMarkSeen(4, "east", 2),
    SendMark("east", 2),
    FindMark("east"),
    MarkFound("east", 2),
    SignalSeen("e.x", EngineSignal("e.x", "b", 0, 0, 0, 4, 0, 0, 0, site="east")),
    SitesLost(("east",)),
    records.SpecInForce({"steps": 3}),
    PayloadAbsent(1, "e.x", "g0.0", 1),
    RewardsComplete(1, 2),
    PipelineRefused("no room"),
    SpecChanged(job_config().spec),
    StreamLimit(1 << 28, "no storage"),
    PromptsMeasured((3, 4), (100_000, 5), evaluation=True, unsendable={4: "too long"}),
    MeasurePrompts((3, 4), evaluation=True),
    LengthsPredicted((3, 4), (7.5, 1.0), (0.5, 1.0), 0.7, 0.4),
    PredictLengths((3, 4), ((1, (5, 6)),)),
    GrowStream(1 << 30, 1 << 29, "long prompts"),
    EngineGone("e.x"),
    EngineDrained(2, "e.x"),
    EngineDied("e.x", 139, "why"),
    GenerationEnded("e.x", "g0.0", 1, "Stopped", True, "why"),
    PayloadMissing(1, 1, 0, ("g0.0",)),
    OptimizerReset(1, 3, "step-000002", None),
    SamplesLost("sums-reward-0", 3, "no space left on device"),
    SamplesLost("sums-reward-0", 3, ""),
    RoleFailed("trainer", Failure(Reason.OUT_OF_MEMORY, "why")),
    StepProposed(COMMIT, StepStats(loss=NAN, grad_norm=float("inf"))),
    CheckRewards(1),
    RequestScores(ScoreGroup((GroupMember("g0.0", 1, "digest", 7, 0),))),
    ListProgress(),
    ProgressListed(("g0.0",)),
    DropProgress(("g0.0",)),
    StepRestored(COMMIT, {"g1": 2}, ("g3",)),
    VersionsRevoked(1, None, "", None, None, 4),
    GroupMoved("g1", 1, 2, "g3"),
    SiblingReset("g0.0", 2, "why", False),
    GroupAborted("g0", "why", {"g0.0": "Timeout"}),
    EpochClaimed(1_000_007, "c", "u"),
]


def test_everything_there_is_can_be_logged_and_read_back(world: LoggedWorld, tmp_path: Path):
    world.run()
    lines = [json.loads(line) for path in tmp_path.iterdir() for line in path.read_text().splitlines()[1:]]
    logged = [
        item for line in lines for part in ("observations", "records", "actions") for item in line[part]
    ]
    logged += [json.loads(json.dumps(encode(value))) for value in NOT_IN_THAT_JOB]
    for item in logged:
        assert json.dumps(encode(decode(item))) == json.dumps(item)
    kinds = {
        kind.__name__
        for union in (actions.Observation, actions.Action, records.Record, messages.CoordinatorEvent)
        for kind in get_args(union)
    }
    assert {item["type"] for item in logged} == kinds
