"""The planner in a simulated world: whatever dies, nothing is lost, trained twice or trained past its bound."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ledger_history import check_history, records
from tests.night import NIGHT
from world import SimulatedEngine, World, job_config

from rljob_core.actions import (
    OwnHeartbeat,
    PayloadSeen,
    PipelineChanged,
    PublishMetrics,
    RetireEngine,
    RewardsSeen,
    SendToTrainer,
    SignalSeen,
    StoresRead,
    Summary,
)
from rljob_core.failures import Failure, Reason
from rljob_core.job_state import JobState, snapshot
from rljob_core.messages import (
    CheckpointWritten,
    EngineSignal,
    Fence,
    GenerationEnded,
    OptimizerReset,
    PayloadMissing,
    Retention,
    RewardResult,
    RoleFailed,
    SamplesLost,
    StepProposed,
    StepStats,
    TrainerReady,
)
from rljob_core.planner import Planner
from rljob_core.planner.endings import retention
from rljob_core.planner.engine_choice import EngineView, choose
from rljob_core.planner.heartbeats import REJECTED_HEARTBEATS
from rljob_core.planner.liveness import LEASE_HEARTBEATS
from rljob_core.planner.metrics_line import metrics_line
from rljob_core.records import (
    BufferOpened,
    CheckpointSaved,
    EpochClaimed,
    Evaluated,
    Generated,
    GroupAborted,
    GroupReady,
    GroupReserved,
    JobFinished,
    MicroBatchAssigned,
    RecordBatch,
    Rewarded,
    SiblingReset,
    StepCommitted,
    StepRestored,
    TrainerAttempt,
    Writer,
    decode_batch,
    encode_batch,
)
from rljob_core.spec import PipelineSpec
from rljob_core.trajectory import VersionSpan

MODES = [
    ({"mode": "Synchronous"}, 0),
    ({"mode": "Streaming"}, 0),
    ({"mode": "BoundedAsync", "maxStaleness": 1}, 1),
    ({"mode": "BoundedAsync", "maxStaleness": 3}, 3),
]


@pytest.mark.parametrize(("pipeline", "bound"), MODES)
def test_a_job_runs_to_its_end_in_every_mode(pipeline, bound):
    world = World(job_config(steps=12, pipeline=pipeline))
    world.start()
    world.run()
    assert world.finished == "Succeeded"
    check_history(world)
    assert [s for s, _ in world.consumed] == sorted(s for s, _ in world.consumed)
    assert len(world.consumed) == 12 * 2 * 2
    staleness = {
        r.version - 1 - g.span.min
        for r in records(world)
        if isinstance(r, StepCommitted)
        for g in records(world)
        if isinstance(g, Generated) and any(g.trajectory in p for p in r.micro_batches)
    }
    assert max(staleness) <= bound
    assert (max(staleness) > 0) == (bound > 0)  # the bound is used, not merely kept
    live = {k for k in world.stored if k not in world.deleted}
    assert all(world.planner.state.sibling(world.stored[k][0]) is not None for k in live)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({"mode": "BoundedAsync", "maxStaleness": 3}, {"mode": "BoundedAsync", "maxStaleness": 1}),
        ({"mode": "BoundedAsync", "maxStaleness": 1}, {"mode": "BoundedAsync", "maxStaleness": 3}),
        ({"mode": "BoundedAsync", "maxStaleness": 2}, {"mode": "Synchronous"}),
        ({"mode": "Synchronous"}, {"mode": "BoundedAsync", "maxStaleness": 2}),
    ],
    ids=["less", "more", "to synchronous", "from synchronous"],
)
def test_a_new_pipeline_binds_buffers_opened_afterwards_and_no_others(before, after):
    world = World(job_config(steps=12, pipeline=before))
    world.start()
    while world.planner.state.version < 4:
        assert world.step()
    old = {r.step: r for r in records(world) if isinstance(r, BufferOpened)}
    assert old
    changed = PipelineSpec.model_validate(after)
    world.observe(PipelineChanged(changed))
    world.observe(PipelineChanged(changed))  # said twice
    world.run()
    assert world.finished == "Succeeded"
    check_history(world)
    opened = {r.step: r for r in records(world) if isinstance(r, BufferOpened)}
    assert sorted(opened) == list(range(12))
    for step, buffer in opened.items():
        bound, mode = (
            (old[step].max_staleness, old[step].mode) if step in old else (changed.bound, changed.mode)
        )
        assert (buffer.max_staleness, buffer.mode) == (bound, mode)
    assert set(opened) - set(old)
    staleness = {}
    spans = {r.trajectory: r.span for r in records(world) if isinstance(r, Generated)}
    for commit in (r for r in records(world) if isinstance(r, StepCommitted)):
        of_step = [commit.version - 1 - spans[t].min for part in commit.micro_batches for t in part]
        staleness[commit.version - 1] = max(of_step)
    late = [seen for step, seen in staleness.items() if step not in old]
    assert max(late) <= changed.bound


def test_a_coordinator_that_is_restarted_keeps_the_bounds_of_buffers_that_are_open():
    world = World(job_config(steps=10, pipeline={"mode": "BoundedAsync", "maxStaleness": 3}))
    world.start()
    while world.planner.state.version < 3:
        assert world.step()
    old = {r.step: r.max_staleness for r in records(world) if isinstance(r, BufferOpened)}
    # It starts from a configuration that has changed meanwhile.
    world.config = job_config(steps=10, pipeline={"mode": "BoundedAsync", "maxStaleness": 1})
    world.restart_coordinator("c2")
    world.run()
    assert world.finished == "Succeeded"
    check_history(world)
    opened = {r.step: r.max_staleness for r in records(world) if isinstance(r, BufferOpened)}
    assert opened == {step: old.get(step, 1) for step in range(10)}


@pytest.mark.parametrize(("steps", "trained"), [(1, {3, 4, 5, 6}), (7, {7}), (20, {20})])
def test_a_job_whose_steps_change_ends(steps: int, trained: set[int]) -> None:
    evaluation = {"everySteps": 10, "samples": 2}
    pipeline = {"mode": "BoundedAsync", "maxStaleness": 2}
    world = World(job_config(steps=12, pipeline=pipeline, evaluation=evaluation))
    world.start()
    while world.planner.state.version < 3:
        assert world.step()
    world.config = job_config(steps=steps, pipeline=pipeline, evaluation=evaluation)
    world.restart_coordinator("c2")
    world.run()
    assert world.finished == "Succeeded"
    check_history(world)
    assert world.planner.state.version in trained
    assert world.planner.state.version in world.planner.state.evaluated


def test_synchronous_waits_for_the_whole_batch_and_streaming_does_not():
    def first_assignment_before_last_payload(mode: str) -> bool:
        world = World(job_config(steps=1, pipeline={"mode": mode}, data={"promptsPerStep": 4}))
        world.start()
        world.run()
        kinds = [type(r) for r in records(world)]
        return kinds.index(MicroBatchAssigned) < len(kinds) - 1 - kinds[::-1].index(Generated)

    assert not first_assignment_before_last_payload("Synchronous")
    assert first_assignment_before_last_payload("Streaming")


FAULTS = st.lists(
    st.tuples(
        st.integers(0, 60),
        st.sampled_from(["engine", "coordinator", "unsent", "silent", "trainer", "beats", "late"]),
    ),
    max_size=8,
)
EVALUATIONS = st.sampled_from([None, {"everySteps": 2, "samples": 3}])


@settings(max_examples=1000 if NIGHT else 150, deadline=None)
@given(
    faults=FAULTS,
    mode=st.sampled_from([m for m, _ in MODES]),
    drop=st.booleans(),
    evaluation=EVALUATIONS,
    rewards_first=st.booleans(),
)
def test_no_single_death_loses_or_repeats_anything(faults, mode, drop, evaluation, rewards_first):
    changes = {} if evaluation is None else {"evaluation": evaluation}
    config = job_config(
        steps=5, pipeline={**mode, "maxResamples": 2}, algorithm={"dropUniformGroups": drop}, **changes
    )
    world = World(config, engines=3, slots=2, reward=lambda t: float(len(t) % 2))
    world.rewards_first = rewards_first
    world.start()
    for fresh, (pause, fault) in enumerate(faults, start=1):
        for _ in range(pause):
            world.step()
        match fault:
            case "engine":
                name = next(iter(world.engines))
                world.kill_engine(name)
                engine = SimulatedEngine(f"n{fresh}.x", 2)
                world.engines[engine.name] = engine
                world.swap(engine)
                world.signal(engine)
                world.beat(12)  # the dead one's lease runs out
            case "coordinator":
                before = JobState()
                before.replay(world.ledger)
                data = snapshot.dump(world.planner.state)
                assert snapshot.differences(snapshot.dump(before), data) == []
                assert snapshot.dump(snapshot.load(data)) == data
                world.restart_coordinator(f"c{fresh}")
            case "unsent":
                world.dies_after_append = f"c{fresh}"
            case "silent":  # an engine that lives, but is not heard for longer than its lease
                world.beat(12, heard=False)
            case "trainer":
                world.restart_trainer()
            case "beats":
                world.beat(3)
            case "late":  # results of an attempt that no longer holds its sibling
                stale = Summary("g0.0", 99, VersionSpan(0, 0), 1, 1, "x")
                world.observe(PayloadSeen(10_000 + fresh, (stale,)))
                world.observe(RewardsSeen(20_000 + fresh, (RewardResult("g0.0", 99, "x", 1.0, {}, "d"),)))
    world.run()
    assert world.finished == "Succeeded"
    check_history(world)
    rebuilt = JobState()
    rebuilt.replay(decode_batch(encode_batch(b)) for b in world.ledger)
    assert rebuilt.version == config.spec.steps
    assert rebuilt.counts == world.planner.state.counts
    assert rebuilt.groups == world.planner.state.groups
    data = snapshot.dump(world.planner.state)
    assert snapshot.differences(snapshot.dump(rebuilt), data) == []
    assert snapshot.dump(snapshot.load(data)) == data


def test_records_of_a_fenced_coordinator_are_ignored():
    world = World(job_config())
    world.start()
    world.run(30)
    old = world.planner.state.writer
    world.restart_coordinator("c2")
    before = world.planner.state.counts["planned"]
    zombie = GroupReserved("g999", 999, 2, 0, 0)
    world.ledger.append(RecordBatch(Writer(old.number, old.instance), (zombie,)))
    claim = EpochClaimed(world.planner.state.writer.number, "c3", "u1")  # a number that is taken already
    world.ledger.append(RecordBatch(Writer(claim.number, "c3"), (claim, zombie)))
    state = JobState()
    state.replay(world.ledger)
    assert state.counts["planned"] == before
    assert state.writer.instance == "c2"


def test_an_engine_that_falls_silent_gives_its_work_back_after_its_lease():
    world = World(job_config(), engines=2, slots=2)
    world.start()
    victim = "e0.x"
    held = [s.id for s in world.planner.state.siblings() if s.engine == victim]
    assert held
    world.kill_engine(victim)
    world.beat(10)
    assert [s.id for s in world.planner.state.siblings() if s.engine == victim] == held
    world.beat(1)
    assert not [s for s in world.planner.state.siblings() if s.engine == victim]
    assert world.planner.state.attempts_failed["EngineLost"] == len(held)
    assert all(world.planner.state.sibling(t).failures == 0 for t in held)


def test_a_new_instance_of_a_pod_replaces_the_old_one_at_once():
    world = World(job_config(), engines=1, slots=2)
    world.start()
    world.kill_engine("e0.x")
    engine = SimulatedEngine("e0.y", 2)
    world.engines[engine.name] = engine
    world.swap(engine)
    assert not [s for s in world.planner.state.siblings() if s.engine == "e0.x"]
    world.run()
    assert world.finished == "Succeeded"
    check_history(world)


def test_a_prompt_whose_sibling_keeps_failing_is_replaced_and_the_cause_is_named():
    world = World(job_config(pipeline={"maxAttempts": 2}))
    world.start()
    for attempt in (1, 2):
        sibling = world.planner.state.sibling("g0.1")
        assert sibling.attempt == attempt
        world.observe(GenerationEnded(sibling.engine, "g0.1", attempt, "RewardRaised", True, "boom"))
    aborts = [r for r in records(world) if isinstance(r, GroupAborted)]
    said = "prompt 0 (g0.1): RewardRaised: boom"
    assert aborts == [GroupAborted("g0", "PromptExhausted", {"g0.1": "RewardRaised"}, said)]
    assert world.planner.state.aborted == {"PromptExhausted": 1, "RewardRaised": 1}
    world.run()
    assert world.finished == "Succeeded"
    check_history(world)


def test_a_reason_that_is_no_word_is_a_detail():
    world = World(job_config())
    world.start()
    sibling = world.planner.state.sibling("g0.1")
    world.observe(GenerationEnded(sibling.engine, sibling.id, 1, "out of: memory " * 400, True))
    (reset,) = (r for r in records(world) if isinstance(r, SiblingReset))
    assert reset.reason == "EngineFailed"
    assert reset.detail.startswith("out of: memory")
    assert len(reset.detail) <= 500


def test_a_job_whose_prompts_all_fail_ends_with_the_reason():
    world = World(job_config(pipeline={"maxAttempts": 1}))
    world.start()
    for _ in range(50):
        if world.planner.state.finished:
            break
        for sibling in list(world.planner.state.siblings()):
            if sibling.engine:
                world.observe(
                    GenerationEnded(
                        sibling.engine, sibling.id, sibling.attempt, "RewardRaised", True, "no such key"
                    )
                )
    assert world.planner.state.finished.outcome == "Failed"
    assert "RewardRaised: no such key" in world.planner.state.finished.failure.detail


def test_uniform_groups_are_replaced_up_to_the_limit_and_then_used():
    config = job_config(steps=3, pipeline={"maxResamples": 2}, algorithm={"dropUniformGroups": True})
    world = World(config, reward=lambda trajectory: 1.0)
    world.start()
    world.run()
    assert world.finished == "Succeeded"
    aborts = [r for r in records(world) if isinstance(r, GroupAborted)]
    assert [a.reason for a in aborts] == ["UniformGroup"] * 6  # two of each step
    check_history(world)


def test_an_old_trainer_attempt_is_fenced_and_its_proposal_ignored():
    world = World(job_config(steps=2))
    world.start()
    while not world.planner.state.micro_batches or not world.planner.state.micro_batches[-1].last:
        assert world.step()
    state = world.planner.state
    ids = tuple(tuple(s.id for g in m.groups for s in state.groups[g].siblings) for m in state.micro_batches)
    zombie = StepCommitted(1, state.commit.manifest, 1, state.trainer.epoch, ids, 1, "", "zombie", "zombie")
    world.restart_trainer()
    while world.planner.state.trainer.attempt == 1:
        assert world.step()
    world.observe(StepProposed(zombie, StepStats()))
    assert world.planner.state.version == 0
    decision = world.planner.decide([TrainerReady(1, world.planner.epoch, 0)], 0.0)
    assert [a.message for a in decision.actions if isinstance(a, SendToTrainer)] == [
        Fence(2, world.planner.epoch)
    ]
    world.run()
    assert world.finished == "Succeeded"
    check_history(world)


def test_a_proposal_survives_the_coordinator_that_should_have_committed_it():
    world = World(job_config(steps=2))
    world.start()
    while not world.planner.state.micro_batches or not world.planner.state.micro_batches[-1].last:
        assert world.step()
    state = world.planner.state
    ids = tuple(tuple(s.id for g in m.groups for s in state.groups[g].siblings) for m in state.micro_batches)
    proposal = StepCommitted(1, state.commit.manifest, 1, state.trainer.epoch, ids, 1, "", "m1", "k1")
    world.restart_coordinator("c2")
    world.trainer_version, world.manifest = 1, "m1"
    decision = world.planner.decide([TrainerReady(1, world.planner.epoch, 1, proposal)], 0.0)
    # The ledger that its manifest names may be lost.
    assert decision.records[0] == StepRestored(proposal, moved={}, dropped=())
    assert isinstance(decision.records[1], TrainerAttempt)
    assert world.planner.state.version == 1


def test_the_removal_of_a_key_by_the_coordinator_itself_is_no_other_loss_of_the_engine():
    world = World(job_config(steps=2), engines=1, slots=4)
    world.start()
    (engine,) = world.engines.values()
    world.beat(LEASE_HEARTBEATS + 1, heard=False)  # then it signals, and lives
    lost = len([r for r in records(world) if isinstance(r, SiblingReset)])
    assert lost > 0
    world.observe(SignalSeen(engine.name, None))
    assert len([r for r in records(world) if isinstance(r, SiblingReset)]) == lost
    world.observe(SignalSeen(engine.name, None))  # this one is another's
    assert len([r for r in records(world) if isinstance(r, SiblingReset)]) > lost


def test_a_lost_payload_aborts_its_group_and_the_step_takes_another():
    world = World(job_config(steps=2))
    world.start()
    while not world.planner.state.micro_batches:
        assert world.step()
    group = world.planner.state.in_training()[0]
    world.observe(PayloadMissing(1, world.planner.epoch, 0, (f"{group}.0",)))
    assert GroupAborted(group, "PayloadLost") in records(world)
    world.run()
    assert world.finished == "Succeeded"
    check_history(world)


def test_evaluation_is_outside_the_buffers_and_scores_both_kinds_of_answer():
    config = job_config(steps=4, evaluation={"everySteps": 2, "samples": 3})
    world = World(config, reward=lambda t: 1.0 if t.startswith("e") and t.endswith(".1") else 0.25)
    seen = []
    act = world.act

    def record(action):
        if isinstance(action, PublishMetrics):
            seen.append(action.metrics)
        act(action)

    world.act = record
    world.start()
    world.run()
    assert world.finished == "Succeeded"
    scores = {m.version: (m.heldout_sampled, m.heldout_greedy) for m in seen if m.heldout_sampled is not None}
    assert scores == {0: (0.25, 1.0), 2: (0.25, 1.0), 4: (0.25, 1.0)}
    assert not [r for r in records(world) if isinstance(r, GroupReserved) and r.group.startswith("e")]
    steps = [m.step for m in seen if m.reward_mean is not None]
    assert steps == [1, 2, 3, 4]
    check_history(world)


@pytest.mark.parametrize("rewards_first", [False, True])
def test_an_evaluation_counts_the_answers_that_are_not_of_its_version_alone(rewards_first: bool):
    """Some answers take longer than steps: their engines take newer weights meanwhile."""
    config = job_config(steps=6, evaluation={"everySteps": 3, "samples": 6})
    world = World(config, slots=3, length=lambda work: 90 if "-0." in work.trajectory else 2)
    world.rewards_first = rewards_first
    world.start()
    world.run()
    assert world.finished == "Succeeded"
    newest: dict[str, int] = {}
    for message in world.streams:
        for summary in message.summaries if isinstance(message, PayloadSeen) else ():
            newest[summary.trajectory] = summary.span.max
    found = {r.version: (r.newest, r.mixed) for r in records(world) if isinstance(r, Evaluated)}
    assert {0, 6} <= set(found)
    for version, stated in found.items():
        later = [v for t, v in newest.items() if t.startswith(f"e{version}-") and v > version]
        assert stated == (max(later, default=0), len(later))
    assert found[0][1] > 0
    assert found[6] == (0, 0)
    assert not set(world.stored) - world.deleted - unread(world)


@pytest.mark.parametrize(("failing", "scores"), [(2, (8 / 10, 1.0)), (3, (None, None))])
def test_held_out_answers_without_a_score_are_counted_and_many_fail_the_evaluation(failing, scores):
    config = job_config(steps=1, evaluation={"everySteps": 1, "samples": 10})
    world = World(config, reward=lambda _: 1.0)
    lines = []
    act, observe = world.act, world.observe

    def fail(seen):
        if not isinstance(seen, RewardsSeen):
            return seen
        bad = {f"e1-{prompt}.0" for prompt in range(failing)}
        return replace(
            seen,
            results=tuple(
                replace(r, failure=Failure(Reason.REWARD_RAISED, "no gold")) if r.trajectory in bad else r
                for r in seen.results
            ),
        )

    def record(action):
        if isinstance(action, PublishMetrics) and action.metrics.is_evaluation:
            lines.append(action.metrics)
        act(action)

    world.act, world.observe = record, lambda *seen: observe(*map(fail, seen))
    world.start()
    world.run()
    assert world.finished == "Succeeded"
    first, last = (r for r in records(world) if isinstance(r, Evaluated))
    assert (first.sampled, first.greedy, first.failed, first.error) == (1.0, 1.0, 0, "")
    assert (last.sampled, last.greedy) == scores
    assert last.failed == failing
    assert last.error.endswith(": RewardRaised: no gold")
    line = lines[-1]
    assert (line.heldout_sampled, line.heldout_failed, line.heldout_error) == (scores[0], failing, last.error)
    assert (": the evaluation fails; prompt " in line.unscored) == (scores[0] is None)


def unread(world: World) -> set[int]:
    """Stored payloads of groups that are open at the end."""
    return {s for s, (t, _) in world.stored.items() if world.planner.state.sibling(t) is not None}


def test_a_checkpoint_that_the_trainer_misses_is_reported_in_every_line():
    world = World(job_config())
    world.start()
    while world.planner.state.trainer is None:
        assert world.step()
    lost = OptimizerReset(1, 3, "step-000002", None)
    stated = "the checkpoint step-000002 is gone: the optimizer continues from version 3 with fresh moments"
    for event, expected in ((replace(lost, attempt=7), ""), (lost, stated)):
        actions = world.planner.decide([event], 0.0).actions
        assert [a.metrics.optimizer_reset for a in actions if isinstance(a, PublishMetrics)] == (
            [expected] if expected else []
        )
    assert metrics_line(world.planner.context).optimizer_reset == stated


def test_lost_samples_are_said_and_change_nothing_else():
    world = World(job_config())
    world.start()
    decision = world.planner.decide([SamplesLost("sums-reward-0", 3, "no space left")], 0.0)
    stated = "sums-reward-0 cannot store samples (3 are lost), training continues: no space left"
    assert [a.metrics.samples_lost for a in decision.actions if isinstance(a, PublishMetrics)] == [stated]
    assert decision.records == ()
    assert metrics_line(world.planner.context).samples_lost == stated


def test_samples_are_lost_until_each_worker_says_that_it_stores_them_or_is_gone():
    world = World(job_config())
    world.start()

    def said(event: SamplesLost, now: float) -> list[str]:
        actions = world.planner.decide([event], now).actions
        return [a.metrics.samples_lost.partition(" ")[0] for a in actions if isinstance(a, PublishMetrics)]

    full, well = "no space left", ""
    assert said(SamplesLost("reward-1", 3, full), 0.0) == ["reward-1"]
    assert said(SamplesLost("reward-0", 3, full), 1.0) == ["reward-0"]
    assert said(SamplesLost("reward-0", 3, full), 61.0) == []  # known
    assert said(SamplesLost("reward-0", 3, well), 121.0) == ["reward-1"]
    assert said(SamplesLost("reward-1", 3, well), 122.0) == [""]
    assert said(SamplesLost("reward-1", 3, full), 200.0) == ["reward-1"]
    assert said(SamplesLost("reward-0", 3, well), 600.0) == []  # nothing has changed, as reward-1 is gone
    assert metrics_line(world.planner.context).samples_lost == ""


def test_a_worker_that_invents_names_has_few_of_them_kept_and_none_for_long():
    world = World(job_config())
    world.start()
    for number in range(1000):
        world.planner.decide([SamplesLost(f"reward-{number:04}", 3, "full")], 0.0)
    assert len(world.planner.context.samples_lost) == 64
    world.planner.decide([SamplesLost("reward-new", 3, "full")], 0.5)
    assert len(world.planner.context.samples_lost) == 64
    assert "reward-new" in world.planner.context.samples_lost
    world.planner.decide([SamplesLost("reward-0", 3, "full")], 301.0)
    assert list(world.planner.context.samples_lost) == ["reward-0"]


def test_a_role_that_cannot_continue_fails_the_job_with_its_words():
    world = World(job_config())
    world.start()
    world.observe(RoleFailed("rollout", Failure(Reason.INVALID_SPEC, "spec.model.uri: no such folder")))
    assert JobFinished(Failure(Reason.INVALID_SPEC, "rollout: spec.model.uri: no such folder")) in records(
        world
    )
    ended = {r.group: r.reason for r in records(world) if isinstance(r, GroupAborted)}
    assert ended == {r.group: "JobFinished" for r in records(world) if isinstance(r, GroupReserved)}
    assert not world.planner.state.groups


def test_a_gang_that_was_replaced_cannot_fail_the_job():
    world = World(job_config())
    world.start()
    world.observe(TrainerReady(2, world.planner.epoch, None))
    world.observe(RoleFailed("trainer", Failure(Reason.INVALID_SPEC, "its weights are gone"), 1))
    assert world.planner.state.finished is None
    world.observe(RoleFailed("trainer", Failure(Reason.INVALID_SPEC, "its weights are gone"), 2))
    assert world.planner.state.finished == JobFinished(
        Failure(Reason.INVALID_SPEC, "trainer: its weights are gone")
    )


def test_a_checkpoint_of_a_step_that_was_never_committed_is_none():
    world = World(job_config(steps=3))
    world.start()
    while world.planner.state.version < 2:
        assert world.step()
    lineage = world.planner.state.lineage
    world.observe(CheckpointWritten(1, 1, "another", "step-000001"))
    world.observe(CheckpointWritten(1, 3, "m3", "step-000003"))
    assert world.planner.state.checkpoint is None
    world.observe(CheckpointWritten(1, 1, lineage[1], "step-000001-2"))
    assert world.planner.state.checkpoint == CheckpointSaved(1, 1, "step-000001-2")


@pytest.mark.parametrize("reason", ["WeightsRejected", "WeightsUnavailable", ""])
def test_weights_that_no_engine_can_use_end_the_job_with_a_reason(reason):
    world = World(job_config(steps=3), engines=2)
    world.start()
    while world.planner.state.version < 1:
        assert world.step()
    for _ in range(REJECTED_HEARTBEATS + 1):
        for name in ("e0.x", "e1.x"):
            stuck = EngineSignal(name, "a", world.planner.epoch, 0, 0, 4, 0, 0, 0, stuck=reason)
            world.observe(SignalSeen(name, stuck))
        world.observe(OwnHeartbeat())
    end = world.planner.state.finished
    if reason == "WeightsRejected":
        assert end is not None
        assert end.failure.reason is Reason.WEIGHTS_DAMAGED
        assert end.failure.flags == ["--from-version", "0"]
    else:
        assert end is None


def test_one_engine_that_can_use_the_weights_is_enough():
    world = World(job_config(steps=3), engines=2)
    world.start()
    while world.planner.state.version < 1:
        assert world.step()
    for _ in range(REJECTED_HEARTBEATS + 1):
        for name, version, reason in (("e0.x", 0, "WeightsRejected"), ("e1.x", 1, "")):
            signal = EngineSignal(name, "a", world.planner.epoch, version, 0, 4, 0, 0, 0, stuck=reason)
            world.observe(SignalSeen(name, signal))
        world.observe(OwnHeartbeat())
    assert world.planner.state.finished is None


def test_what_another_engine_says_of_a_trajectory_does_not_count():
    world = World(job_config(), engines=2)
    world.start()
    (sibling, *_) = world.planner.state.generating_at("e0.x")
    world.observe(GenerationEnded("e1.x", sibling.id, sibling.attempt, "EngineFailed", True))
    assert (sibling.attempt, sibling.engine) == (1, "e0.x")
    world.observe(GenerationEnded("e0.x", sibling.id, sibling.attempt, "EngineFailed", True))
    assert sibling.attempt == 2


@pytest.mark.parametrize("uniform", [False, True])
def test_a_ledger_that_breaks_off_before_what_follows_from_a_group_s_last_reward(uniform):
    config = job_config(steps=2, algorithm={"dropUniformGroups": True})
    world = World(config, reward=lambda t: 0.0 if uniform else float(t.endswith(".1")))
    world.start()
    while not any(isinstance(r, GroupReady | GroupAborted) for r in records(world)):
        assert world.step()
    batch = world.ledger.pop()
    follows = next(n for n, r in enumerate(batch.records) if isinstance(r, GroupReady | GroupAborted))
    assert isinstance(batch.records[follows - 1], Rewarded)
    world.ledger.append(RecordBatch(batch.writer, batch.records[:follows]))
    group = batch.records[follows].group
    world.restart_coordinator("c2")
    ends = [r for r in records(world) if isinstance(r, GroupReady | GroupAborted) and r.group == group]
    assert len(ends) == 1
    assert type(ends[0]) is type(batch.records[follows])


def test_a_ledger_that_breaks_off_at_the_job_s_end_leaves_no_group_open():
    world = World(job_config())
    world.start()
    world.observe(RoleFailed("rollout", Failure(Reason.INVALID_SPEC, "no such folder")))
    batch = world.ledger.pop()
    end = next(n for n, r in enumerate(batch.records) if isinstance(r, JobFinished))
    world.ledger.append(RecordBatch(batch.writer, batch.records[: end + 2]))
    world.restart_coordinator("c2")
    assert not world.planner.state.groups
    reserved = {r.group for r in records(world) if isinstance(r, GroupReserved)}
    assert sorted(r.group for r in records(world) if isinstance(r, GroupAborted)) == sorted(reserved)


def test_a_stuck_engine_is_given_only_what_its_weights_admit():
    stuck = EngineView("a", "pool", slots=4, version=1, stuck="WeightsRejected")
    busy = EngineView("b", "pool", slots=4, version=2, assigned=3)
    for engines, version, expected in (
        ([stuck, busy], 1, stuck),
        ([stuck, busy], 2, busy),
        ([stuck], 2, None),
    ):
        assert choose(engines, min_version=version, waits=True, prefetch=0.0) is expected


def test_an_engine_takes_a_group_whole_or_as_much_as_it_may_hold_beyond_its_slots():
    engine = EngineView("a", "pool", slots=64, version=0, assigned=73)
    assert not engine.takes(8, 0.25)
    assert engine.takes(7, 0.25)
    engine.assigned = 64
    assert engine.takes(100, 0.25)
    small = EngineView("b", "pool", slots=2, version=0, assigned=1)
    assert small.takes(8, 0.25)


def test_keep_engines_are_given_only_what_their_weights_admit():
    world = World(job_config(pipeline={"mode": "Streaming", "inflight": "Keep"}, steps=3), engines=1)
    swap, held = world.swap, []
    world.swap = lambda engine: held.append(engine) if world.planner.state.version else swap(engine)
    world.start()
    while world.planner.state.version < 1:
        assert world.step()
    for _ in range(5):
        world.step()
    assert world.engines["e0.x"].version == 0
    assert not world.engines["e0.x"].waiting  # step 1 needs version 1: nothing was sent to wait there
    world.swap = swap
    swap(held[0])
    world.run()
    assert world.finished == "Succeeded"


def test_a_coordinator_that_has_slept_takes_nobody_for_dead() -> None:
    """Leases count its own heartbeats: while it stood still, it could hear nobody."""
    planner = Planner(job_config())
    planner.start("c1", 0.0)
    planner.decide((StoresRead(()),), 0.0)
    planner.decide((SignalSeen("e.1", EngineSignal("e.1", "a", 0, 0, 0, 8, 0, 0, 0)),), 0.0)

    def retired(now: float) -> bool:
        return any(isinstance(a, RetireEngine) for a in planner.decide((OwnHeartbeat(),), now).actions)

    assert not any(retired(now) for now in (1.0, 601.0, 1201.0))
    assert any(retired(1201.0) for _ in range(LEASE_HEARTBEATS))


def test_the_best_version_is_one_of_those_that_are_saved_and_evaluated() -> None:
    def kept(scores: dict[int, float | None], **checkpoint: Any) -> Retention | None:
        trainer = {"checkpoint": {"everySteps": 4, **checkpoint}}
        planner = Planner(job_config(steps=10, evaluation={"everySteps": 2}, trainer=trainer))
        planner.state.evaluated = {v: Evaluated(v, score, 0.0, 4) for v, score in scores.items()}
        return retention(planner.context)

    scores: dict[int, float | None] = {0: 0.9, 2: 0.8, 4: 0.5, 6: 0.7, 8: 0.5}  # 2 and 6 are not saved
    assert kept(scores) is None
    assert kept(scores, keepBest=True) == Retention(best=8, evaluated=8, every=2)
    assert kept({**scores, 10: 0.6}, keepBest=True) == Retention(best=10, evaluated=10, every=2)
    assert kept({0: 0.9, 2: 0.8}, keepBest=True) == Retention(best=0, evaluated=2, every=2)
    # An evaluation of which too many answers failed has no score.
    assert kept({**scores, 8: None}, keepBest=True) == Retention(best=4, evaluated=8, every=2)
