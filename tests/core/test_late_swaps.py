"""An engine that knows of a version and takes it later is not taken for one that has lost a message."""

from __future__ import annotations

import pytest
from world import World, job_config

from rljob_core.actions import OwnHeartbeat, SendToEngine
from rljob_core.planner.heartbeats import RESEND_HEARTBEATS


@pytest.mark.parametrize("knows", [True, False])
def test_its_work_is_sent_again_only_if_it_does_not_know_of_the_version(knows: bool) -> None:
    world = World(job_config(steps=6))
    world.start()
    while world.planner.state.version < 1:
        assert world.step()
    context = world.planner.context
    view = next(v for v in context.liveness.engines.values() if context.state.generating_at(v.engine))
    for other in context.liveness.engines.values():
        other.held, other.version = other.assigned, context.state.version
    view.version, view.announced = 0, context.state.version if knows else -1
    had = {s.id for s in context.state.generating_at(view.engine)}
    actions = [
        action
        for _ in range(RESEND_HEARTBEATS + 1)
        for action in world.planner.decide((OwnHeartbeat(),), context.now).actions
    ]
    again = [
        item
        for action in actions
        if isinstance(action, SendToEngine) and action.engine == view.engine
        for item in action.items
        if getattr(item, "trajectory", "") in had
    ]
    assert bool(again) is not knows
