"""A prompt whose row raises when it is read again: what engines have answered needs no prompt any more."""

from __future__ import annotations

from world import World, job_config

from rljob_core.actions import PromptsMeasured
from rljob_core.job_state.groups import GroupState
from rljob_core.records import GroupAborted


def test_only_siblings_that_no_engine_has_answered_are_named() -> None:
    world = World(job_config())
    world.start()

    def groups(*, whole: bool) -> list[GroupState]:
        """Open groups of which all siblings have payloads, or some do and some do not."""
        answered = [
            (group, [s.payload is not None for s in group.siblings]) for group in state.groups.values()
        ]
        return [group for group, have in answered if any(have) and all(have) == whole]

    state = world.planner.state
    while not (groups(whole=True) and groups(whole=False)):
        assert world.step()
    whole, part = groups(whole=True)[0], groups(whole=False)[0]
    unsent = {sibling.id for sibling in part.siblings if sibling.payload is None}
    for group in (whole, part):
        reasons = {group.prompt: "OSError: [Errno 5]"}
        world.observe(PromptsMeasured((group.prompt,), (0,), unsendable=reasons))
    assert whole.id in state.groups
    assert part.id not in state.groups
    aborted = [r for batch in world.ledger for r in batch.records if isinstance(r, GroupAborted)]
    (ended,) = [record for record in aborted if record.reason == "PromptExhausted"]
    assert (ended.group, ended.causes) == (part.id, dict.fromkeys(unsent, "PromptUnsendable"))
