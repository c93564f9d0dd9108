"""`docs/troubleshooting.md` names every reason that a job can end for; each end of a job has the right one."""

from __future__ import annotations

import errno
import re
from dataclasses import replace
from pathlib import Path

import pytest
from bounded_store import walk_without_room
from world import World, job_config

from rljob_cli.manifest.differences import IMMUTABLE_ON_RESUME
from rljob_cli.run.end_report import log_of
from rljob_core.actions import PromptsMeasured, RewardsSeen
from rljob_core.errors import (
    CheckpointDamaged,
    CorruptLedger,
    JobFailed,
    NotFinite,
    ProtocolViolation,
    ResourceMissing,
    SpecError,
    StoreUnavailable,
    failure_of,
)
from rljob_core.failures import ADVICE, Failure, Reason, failure_in, termination_message
from rljob_core.messages import RewardResult
from rljob_core.ports import Message
from rljob_core.records import JobFinished
from rljob_runtime.messaging.ledger import read_batch
from rljob_runtime.roles.trainer.poison import in_micro_batch, in_step

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "troubleshooting.md").read_text(encoding="utf-8")
FAILURES_OF_REWARDS = re.findall(
    r"^\| `(Reward\w+)` \|", (DOCS / "data-and-rewards.md").read_text(encoding="utf-8"), re.MULTILINE
)
BY_ADVICE = {advice: [r for r in Reason if ADVICE[r] is advice] for advice in map(ADVICE.__getitem__, Reason)}


def test_every_reason_is_in_the_table_with_who_is_at_fault_and_what_to_do() -> None:
    section = PAGE.partition("## Who was at fault")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (`.+`) \| (.+) \| (.+) \| (?:`(.+)`|all) \|$", section, re.MULTILINE)
    assert rows == [
        (", ".join(f"`{reason}`" for reason in reasons), advice.at_fault, advice.remedy, advice.log)
        for advice, reasons in BY_ADVICE.items()
    ]


def test_the_table_of_clusters_has_every_other_remedy() -> None:
    section = PAGE.partition("On a cluster the condition")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (.+) \| (.+) \|$", section, re.MULTILINE)[1:]
    assert rows == [(advice.at_fault, advice.elsewhere) for advice in BY_ADVICE if advice.elsewhere]


def test_what_the_operator_does_follows_from_the_reason() -> None:
    waits = {"ResourceMissing", "StorageRefused", "StreamsUnavailable", "StreamsFull"}
    others = {**dict.fromkeys(waits, 4), "Fenced": 3, "Stopped": 143, "Crashed": 1, "LimitReached": 1}
    assert {reason: reason.exit_code for reason in Reason} == {**dict.fromkeys(Reason, 2), **others}
    assert {reason for reason in Reason if not reason.ends_job} == others.keys()


@pytest.mark.parametrize("detail", ["the loss (nan) is not finite", "é" * 5000, "\udc80\0\n" * 2000, ""])
def test_a_termination_message_holds_the_failure_however_long_it_is(detail: str) -> None:
    said = termination_message(Failure(Reason.WEIGHTS_DAMAGED, detail, from_version=46))
    assert len(said.encode()) <= 4096
    found = failure_in(said)
    assert found is not None
    assert (found.reason, found.flags) == (Reason.WEIGHTS_DAMAGED, ["--from-version", "46"])
    assert found.detail == detail or len(found.detail) > 600
    assert failure_in(detail) is None


def failure(world: World) -> Failure:
    """Why the coordinator ends a job."""
    world.start()
    world.run()
    end = world.planner.state.finished
    assert isinstance(end, JobFinished)
    assert end.failure is not None
    return end.failure


class UnderMistakenReward(World):
    """A world whose reward function raises."""

    def observe(self, *observations: object) -> None:
        super().observe(*(_failed(o) for o in observations))


def _failed(observation: object) -> object:
    if not isinstance(observation, RewardsSeen):
        return observation
    raised = Failure(Reason.REWARD_RAISED, "mine:score raised KeyError: 'anser' (mine.py:3)")
    failed: tuple[RewardResult, ...] = tuple(replace(r, failure=raised) for r in observation.results)
    return replace(observation, results=failed)


def test_a_reward_that_raises_is_the_user_s() -> None:
    assert failure(UnderMistakenReward(job_config())).reason is Reason.REWARD_RAISED


def test_every_failure_of_a_score_is_of_the_reward() -> None:
    rewards = [reason for reason in Reason if ADVICE[reason] is ADVICE[Reason.REWARD_RAISED]]
    assert sorted(FAILURES_OF_REWARDS) == sorted(rewards)


def test_prompts_that_kill_engines_are_the_engine_s() -> None:
    assert failure(World(job_config(), poison=lambda work: True)).reason is Reason.PROMPT_EXHAUSTED


def test_prompts_that_no_engine_can_be_sent_are_the_data_s() -> None:
    world = World(job_config())
    world.start()
    reasons = dict.fromkeys(range(40), "KeyError: 'question'")
    world.observe(PromptsMeasured(tuple(reasons), (0,) * len(reasons), unsendable=reasons))
    end = world.planner.state.finished
    assert end is not None
    assert end.failure is not None
    assert (
        "prompt 1 (g1): PromptUnsendable: KeyError: 'question': mend its row in its place"
        in end.failure.detail
    )
    assert end.failure.reason is Reason.PROMPT_UNSENDABLE


def test_a_store_that_is_smaller_than_a_step_is_the_storage_s() -> None:
    """What it says to change first can be changed when the job is resumed."""
    found = walk_without_room(0)
    assert found.reason is Reason.STREAM_TOO_SMALL
    words = found.detail
    advised = words.partition(": give ")[2].partition(". ")[0]
    assert re.findall(r"spec\.[\w.]+", advised) == ["spec.rollout.sampling.maxTokens"]
    assert not is_immutable("spec.rollout.sampling.maxTokens")
    assert is_immutable("spec.data.promptsPerStep")
    assert "need another job: spec.data is immutable" in words


def is_immutable(path: str) -> bool:
    return any(f"{path}.".startswith(f"{field}.") for field in IMMUTABLE_ON_RESUME)


def test_training_that_is_not_finite_is_of_what_was_trained_on() -> None:
    error = in_step(NotFinite("the loss (nan)"), step=3, fed=[["g0.0"]])
    assert error.failure.reason is Reason.NOT_FINITE
    memory = in_micro_batch(MemoryError("4 GB"), step=3, number=0, samples=[])
    assert memory.failure.reason is Reason.OUT_OF_MEMORY


def test_a_ledger_that_does_not_decode() -> None:
    with pytest.raises(CorruptLedger) as damaged:
        read_batch(Message(7, "records", b"\x00", {}))
    assert damaged.value.failure.reason is Reason.LEDGER_DAMAGED


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (StoreUnavailable("nats-server did not start"), Reason.STREAMS_UNAVAILABLE),
        (OSError(errno.ENOSPC, "No space left on device"), Reason.STORAGE_REFUSED),
        (OSError(errno.EACCES, "Permission denied"), Reason.PERMISSION_DENIED),
        (SpecError("spec.model.uri", "there is no folder"), Reason.INVALID_SPEC),
        (ResourceMissing("spec.model.uri", "there is no folder"), Reason.RESOURCE_MISSING),
        (CheckpointDamaged("step-000004 does not load"), Reason.CHECKPOINT_DAMAGED),
        (JobFailed("spec.model.uri holds what nobody has thought of"), Reason.UNKNOWN),
        (ProtocolViolation("no step is open"), Reason.CRASHED),
        (KeyError("spec.model.uri"), Reason.CRASHED),
    ],
)
def test_an_error_has_the_reason_of_its_type_whatever_it_says(error: Exception, reason: Reason) -> None:
    assert failure_of(error).reason is reason


def test_the_log_is_the_newest_of_the_role_or_the_folder(tmp_path: Path) -> None:
    assert log_of(ADVICE[Reason.REWARD_RAISED], "sums", tmp_path) == tmp_path
    for name in ("sums-reward-0.log", "sums-trainer-1-0.log", "nats-server-0.log"):
        (tmp_path / name).touch()
    assert log_of(ADVICE[Reason.REWARD_RAISED], "sums", tmp_path).name == "sums-reward-0.log"
    assert log_of(ADVICE[Reason.STREAMS_UNAVAILABLE], "sums", tmp_path).name == "nats-server-0.log"
    assert log_of(ADVICE[Reason.STORAGE_REFUSED], "sums", tmp_path) == tmp_path
