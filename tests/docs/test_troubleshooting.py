"""`docs/troubleshooting.md` names every fault that a job can end of; each end of a job is given the right one."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from bounded_store import walk_without_room
from world import World, job_config

from rljob_cli.faults import flags_to_continue, log_of
from rljob_cli.manifest.differences import IMMUTABLE_ON_RESUME
from rljob_core import faults
from rljob_core.actions import PromptsMeasured, RewardsSeen
from rljob_core.errors import CorruptLedger, JobFailed, NotFinite, SpecError, StoreUnavailable
from rljob_core.faults import Fault, fault_of_error, fault_of_words
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
FAULTS = [value for value in vars(faults).values() if isinstance(value, Fault)]


def test_the_table_has_every_fault() -> None:
    section = PAGE.partition("## Who was at fault")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (.+) \| (.+) \| (?:`(.+)`|all) \|$", section, re.MULTILINE)
    assert rows == [(fault.who, fault.remedy, fault.log) for fault in FAULTS]


def test_the_table_of_clusters_has_every_other_remedy() -> None:
    section = PAGE.partition("On a cluster the condition")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (.+) \| (.+) \|$", section, re.MULTILINE)[1:]
    assert rows == [(fault.who, fault.elsewhere) for fault in FAULTS if fault.elsewhere]


def failure(world: World) -> str:
    """The message with which the coordinator ends a job."""
    world.start()
    world.run()
    end = world.planner.state.finished
    assert isinstance(end, JobFinished)
    assert end.outcome == "Failed"
    return end.message


class UnderMistakenReward(World):
    """A world whose reward function raises."""

    def observe(self, *observations: object) -> None:
        super().observe(*(_failed(o) for o in observations))


def _failed(observation: object) -> object:
    if not isinstance(observation, RewardsSeen):
        return observation
    words = "RewardRaised: mine:score raised KeyError: 'anser' (mine.py:3)"
    failed: tuple[RewardResult, ...] = tuple(replace(r, error=words) for r in observation.results)
    return replace(observation, results=failed)


def test_a_reward_that_raises_is_the_user_s() -> None:
    assert fault_of_words(failure(UnderMistakenReward(job_config()))) is faults.REWARD


@pytest.mark.parametrize("reason", FAILURES_OF_REWARDS)
def test_every_failure_of_a_score_is_of_the_reward(reason: str) -> None:
    assert {"RewardRaised", "RewardInvalid"} <= set(FAILURES_OF_REWARDS)
    words = f"1 prompts of step 3 were given up: prompt 1 (g1.0): {reason}: what was sent"
    assert fault_of_words(words) is faults.REWARD


def test_prompts_that_kill_engines_are_the_engine_s() -> None:
    assert fault_of_words(failure(World(job_config(), poison=lambda work: True))) is faults.ENGINE


def test_prompts_that_no_engine_can_be_sent_are_the_data_s() -> None:
    world = World(job_config())
    world.start()
    reasons = dict.fromkeys(range(40), "KeyError: 'question'")
    world.observe(PromptsMeasured(tuple(reasons), (0,) * len(reasons), unsendable=reasons))
    end = world.planner.state.finished
    assert end is not None
    assert "prompt 1 (g1): PromptUnsendable: KeyError: 'question': mend its row in its place" in end.message
    assert fault_of_words(end.message) is faults.DATA


def test_a_store_that_is_smaller_than_a_step_is_the_storage_s() -> None:
    """What it says to change first can be changed when the job is resumed."""
    words = walk_without_room(0)
    assert fault_of_words(words) is faults.STORAGE
    assert fault_of_words(f"coordinator: {words}") is faults.STORAGE
    advised = words.partition(": give ")[2].partition(". ")[0]
    assert re.findall(r"spec\.[\w.]+", advised) == ["spec.rollout.sampling.maxTokens"]
    assert not is_immutable("spec.rollout.sampling.maxTokens")
    assert is_immutable("spec.data.promptsPerStep")
    assert "need another job: spec.data is immutable" in words


def is_immutable(path: str) -> bool:
    return any(f"{path}.".startswith(f"{field}.") for field in IMMUTABLE_ON_RESUME)


def test_training_that_is_not_finite_is_of_what_was_trained_on() -> None:
    error = in_step(NotFinite("the loss (nan)"), step=3, fed=[["g0.0"]])
    assert fault_of_words(f"trainer: {error}") is faults.TRAINING
    memory = in_micro_batch(MemoryError("4 GB"), step=3, number=0, samples=[])
    assert fault_of_words(f"trainer: {memory}") is faults.TRAINING


def test_a_ledger_that_does_not_decode() -> None:
    with pytest.raises(CorruptLedger) as damaged:
        read_batch(Message(7, "records", b"\x00", {}))
    assert fault_of_error(damaged.value) is faults.LEDGER
    # As a role's last words, which the reconciler repeats.
    assert fault_of_words(f"coordinator: {damaged.value}") is faults.LEDGER


def test_weights_that_do_not_verify_are_continued_from_an_earlier_version() -> None:
    message = (
        "trainer: v00000047-a1-e1493032-r1: tensor x does not match its digest. Versions that do verify: 0, 45, 46 "
        "(0 is the initial model). Going back gives up what came after: rljob run … --resume --from-version 46"
    )
    assert fault_of_words(message) is faults.WEIGHTS
    assert flags_to_continue(faults.WEIGHTS, message) == ["--from-version", "46"]
    forged = (
        f"2 prompts of step 3 were given up: prompt 1 (g1.0): RewardRaised: mine:score raised E: {message}"
    )
    assert fault_of_words(forged) is faults.REWARD
    assert flags_to_continue(faults.REWARD, forged) == []


@pytest.mark.parametrize(
    ("error", "fault"),
    [
        (StoreUnavailable("nats-server did not start"), faults.SERVER),
        (OSError(28, "No space left on device"), faults.DISK),
        (SpecError("spec.model.uri", "there is no folder"), faults.INPUT),
        (JobFailed("reward: spec.reward.functions[0]: mine cannot be imported"), faults.INPUT),
        (JobFailed("4 trainer attempts failed, spec.backoffLimit allows 3; the last one: …"), faults.TRAINER),
        (JobFailed("it ran for longer than activeDeadlineSeconds, 60"), faults.DEADLINE),
        (
            JobFailed("the payloads of 801 groups were missing when step 3 was to train on them"),
            faults.SERVER,
        ),
        (JobFailed("what nobody has thought of"), faults.UNKNOWN),
    ],
)
def test_other_ends(error: Exception, fault: Fault) -> None:
    assert fault_of_error(error) is fault


def test_the_log_is_the_newest_of_the_role_or_the_folder(tmp_path: Path) -> None:
    assert log_of(faults.REWARD, "sums", tmp_path) == tmp_path
    for name in ("sums-reward-0.log", "sums-trainer-1-0.log", "nats-server-0.log"):
        (tmp_path / name).touch()
    assert log_of(faults.REWARD, "sums", tmp_path).name == "sums-reward-0.log"
    assert log_of(faults.SERVER, "sums", tmp_path).name == "nats-server-0.log"
    assert log_of(faults.DISK, "sums", tmp_path) == tmp_path
