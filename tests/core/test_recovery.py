"""A new coordinator restores commits whose records the ledger has lost: which ones it restores, and which not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from exploration import small_job
from interleavings import Model
from world import World, job_config

from rljob_core.actions import StoresRead
from rljob_core.messages import MicroBatch
from rljob_core.planner import Planner
from rljob_core.records import RecordBatch, StepCommitted, StepRestored

STEPS = 4


@pytest.fixture
def world() -> World:
    """A job that has ended, with its ledger and its manifests."""
    world = World(job_config(steps=STEPS))
    world.start()
    world.run()
    assert world.finished == "Succeeded"
    return world


def commits(world: World) -> list[StepCommitted]:
    return [r for batch in world.ledger for r in batch.records if isinstance(r, StepCommitted)]


def before_commit(world: World, version: int) -> list[RecordBatch]:
    """The ledger without its end, from the message on that commits `version`."""
    for place, batch in enumerate(world.ledger):
        if any(isinstance(r, StepCommitted) and r.version == version for r in batch.records):
            return world.ledger[:place]
    raise AssertionError


def successor(ledger: list[RecordBatch], found: StoresRead) -> tuple[Planner, list[StepRestored]]:
    """A coordinator that takes over, and what it takes back."""
    planner = Planner(job_config(steps=STEPS))
    planner.state.replay(ledger)
    planner.start("next", 0.0)
    decision = planner.decide([found], 0.0)
    return planner, [r for r in decision.records if isinstance(r, StepRestored)]


@pytest.mark.parametrize("version", range(1, STEPS + 1))
def test_all_commits_after_the_cut_are_taken_back_in_order(world: World, version: int) -> None:
    made = commits(world)
    planner, restored = successor(before_commit(world, version), StoresRead(tuple(made), made[-1].manifest))
    assert [r.commit for r in restored] == made[version - 1 :]
    assert planner.state.version == STEPS
    assert planner.state.commit.manifest == made[-1].manifest


@pytest.mark.parametrize("kept", [0, 1, 2, 5])
def test_a_ledger_that_has_hardly_anything_left_gets_all_commits_back(world: World, kept: int) -> None:
    made = commits(world)
    planner, restored = successor(world.ledger[:kept], StoresRead(tuple(made)))
    assert len(restored) == STEPS
    state = planner.state
    assert state.counts["consumed"] == STEPS * 4
    assert state.counts["planned"] == STEPS * 4 + sum(len(g.siblings) for g in state.groups.values()) + sum(
        state.aborted.values()
    )


def test_the_next_prompts_are_those_that_were_not_consumed(world: World) -> None:
    made = commits(world)
    planner, _ = successor(world.ledger[:1], StoresRead((made[0],)))
    consumed = {t.rpartition(".")[0] for part in made[0].micro_batches for t in part}
    assert not consumed & planner.state.groups.keys()
    prompts = sorted(group.prompt for group in planner.state.groups.values())
    assert prompts == [n for n in range(100) if f"g{n}" not in consumed][: len(prompts)]


def test_a_manifest_of_another_branch_is_passed_over(world: World) -> None:
    made = commits(world)
    stranger = replace(made[1], parent="another", manifest="stranger")
    planner, restored = successor(before_commit(world, 2), StoresRead((stranger,)))
    assert not restored
    assert planner.state.version == 1


def test_what_a_replaced_gang_left_is_no_commit(world: World) -> None:
    made = commits(world)
    ledger = before_commit(world, 2)
    planner, _ = successor(ledger, StoresRead(()))
    assert planner.state.trainer is not None
    zombie = replace(made[1], attempt=planner.state.trainer.attempt - 1, manifest="zombie")
    _, restored = successor(ledger, StoresRead((zombie,)))
    assert not restored


def test_unless_something_shows_that_it_was_committed(world: World) -> None:
    made = commits(world)
    ledger = before_commit(world, 2)
    old = replace(made[1], attempt=0, manifest="old")
    _, restored = successor(ledger, StoresRead((old,), announced="old"))
    assert [r.commit for r in restored] == [old]
    child = replace(made[2], parent="old")
    _, restored = successor(ledger, StoresRead((old, child)))
    assert [r.commit.manifest for r in restored] == ["old", child.manifest]


def test_of_two_gangs_the_one_with_a_child_counts_else_the_newer(world: World) -> None:
    made = commits(world)
    ledger = before_commit(world, 2)
    newer = replace(made[1], attempt=made[1].attempt + 1, manifest="newer")
    _, restored = successor(ledger, StoresRead((made[1], newer)))
    assert [r.commit.manifest for r in restored] == ["newer"]
    _, restored = successor(ledger, StoresRead((made[1], newer, made[2])))
    assert [r.commit.manifest for r in restored] == [made[1].manifest, made[2].manifest]


def test_a_commit_of_groups_that_have_ended_is_not_taken_back(world: World) -> None:
    made = commits(world)
    twice = replace(made[1], micro_batches=made[0].micro_batches, manifest="twice")
    _, restored = successor(before_commit(world, 2), StoresRead((twice,), announced="twice"))
    assert not restored


def test_a_job_that_has_ended_takes_nothing_back(world: World) -> None:
    made = commits(world)
    more = replace(made[-1], version=STEPS + 1, parent=made[-1].manifest, manifest="more")
    _, restored = successor(world.ledger, StoresRead((more,), announced="more"))
    assert not restored


def test_the_other_groups_of_the_buffer_continue_elsewhere(world: World) -> None:
    made = commits(world)
    ledger = before_commit(world, 1)
    open_groups = set(successor(ledger, StoresRead(()))[0].state.groups)
    # In the lost part of the ledger, the step was made of the groups of the next one.
    others = replace(made[0], micro_batches=made[1].micro_batches, manifest="others")
    planner, (restored,) = successor(ledger, StoresRead((others,), announced="others"))
    consumed = {t.rpartition(".")[0] for part in others.micro_batches for t in part}
    left = open_groups - consumed
    assert set(restored.moved) | set(restored.dropped) <= left
    assert left - set(restored.dropped) <= planner.state.groups.keys()
    for buffer in planner.state.buffers.buffers.values():
        assert len(buffer.entries) <= buffer.capacity
        assert all(buffer.admits(entry.base) for entry in buffer.entries.values())


def test_a_step_that_names_a_lost_part_of_the_ledger_is_restored() -> None:
    """Its micro-batch was sent again, and the ledger lost what it had got between the two messages."""
    model = Model(small_job(pipeline={"maxStaleness": 2}), losses=2, restless=True)

    def go_on(until: Callable[[], object], *, without: str = "train") -> None:
        while not until():
            choices = [c for c in model.choices() if c[0] not in {"beat", "report", without}]
            model.do(min(choices, key=lambda choice: choice[0] == "finish"))

    def is_assigned() -> bool:
        return any(isinstance(message.work, MicroBatch) for message in model.trainer.inbox)

    go_on(is_assigned, without="")
    model.do(("lose training", ""))
    length = len(model.ledger)
    go_on(lambda: len(model.ledger) > length)
    model.do(("report", ""))
    go_on(is_assigned)
    model.do(("cut", str(len(model.ledger) - length)))
    assert model.planner.state.micro_batches
    go_on(lambda: model.planner.state.version, without="")
    written = [record for batch in model.ledger for record in batch.records]
    (restored,) = [record for record in written if isinstance(record, StepRestored)]
    assert restored.commit.ledger not in model.digests
    go_on(lambda: model.finished, without="")
