"""The groups of a job as its ledger plans them: which prompts, in which buffers, and what became of each trajectory."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from rljob_cli.audit.evidence import Violation
from rljob_cli.audit.ledger_items import Member, Planned
from rljob_core.records import GroupMoved, GroupReserved, Inherited, MicroBatchAssigned, SiblingReset
from rljob_core.trajectory import group_of, prompt_of_group, trajectory_id


@dataclass(slots=True)
class Plan:
    """Groups and their trajectories; its methods apply records and collect what contradicts those before.

    Attributes:
        stamps: staleness bound of each step: its buffer's, or its commit's if the ledger has lost the buffer.
        groups: all reserved groups, by id.
        specs: the specs under which coordinators claimed the ledger.
        moves: number of groups that were moved to another buffer.
        resumed, resumed_tokens: how many attempts continued an earlier one, and the tokens that they inherited.
        out_of_order: trainer attempts that went back, and results of an attempt that is not the current one.
        misplaced: reservations and moves that break the bound of their buffer.
        disordered: groups that are not of the prompt that comes next in the data's order.
        unlike_spec: buffers and groups whose size is not that of the spec in force.
    """

    stamps: dict[int, int] = field(default_factory=dict)
    groups: dict[str, Planned] = field(default_factory=dict)
    specs: list[dict[str, Any]] = field(default_factory=list)
    moves: int = 0
    resumed: int = 0
    resumed_tokens: int = 0
    out_of_order: list[Violation] = field(default_factory=list)
    misplaced: list[Violation] = field(default_factory=list)
    disordered: list[Violation] = field(default_factory=list)
    unlike_spec: list[Violation] = field(default_factory=list)
    _assigned: list[MicroBatchAssigned] = field(default_factory=list)
    _next_prompt: int = 0
    _restored_prompts: set[int] = field(default_factory=set)

    def _reserve(self, record: GroupReserved) -> None:
        if record.group in self.groups:
            self.out_of_order.append(Violation((record.group,), "was planned twice"))
            return
        self._check_size((record.group,), "groupSize", record.siblings)
        self._check_prompt(record)
        ids = [trajectory_id(record.group, n) for n in range(record.siblings)]
        members = {i: Member() for i in ids}
        self.groups[record.group] = Planned(record, record.step, members)
        self._check_stamp(record.group, record.min_version, record.step, "was reserved into")

    def _check_size(self, ids: tuple[str, ...], field: str, size: int) -> None:
        given = self.specs[-1]["data"][field] if self.specs else size
        if size != given:
            self.unlike_spec.append(Violation(ids, f"is of size {size}, but spec.data.{field} is {given}"))

    def _check_prompt(self, record: GroupReserved) -> None:
        """Prompts are planned in the data's order; those that restored steps have trained on are passed over."""
        if record.prompt != self._next_prompt or prompt_of_group(record.group) != record.prompt:
            text = f"is planned for prompt {record.prompt}, but prompt {self._next_prompt} comes next"
            self.disordered.append(Violation((record.group,), text))
        self._next_prompt = max(self._next_prompt, record.prompt + 1)
        self._pass_restored_prompts()

    def _pass_restored_prompts(self) -> None:
        while self._next_prompt in self._restored_prompts:
            self._next_prompt += 1

    def _inherit(self, trajectory: str, member: Member, inherited: Inherited | None) -> None:
        member.inherited = inherited
        if inherited is None:
            return
        self.resumed += 1
        self.resumed_tokens += inherited.tokens
        if inherited.attempt >= member.attempt:
            text = f"attempt {member.attempt} continues from attempt {inherited.attempt}"
            self.out_of_order.append(Violation((trajectory,), text))
        group = group_of(trajectory)
        self._check_stamp(group, inherited.span.min, self.groups[group].step, "continues in")

    def _reset(self, record: SiblingReset) -> None:
        member = self._member(record.trajectory)
        if member is None:
            self._unknown(record.trajectory, "is generated again")
            return
        if record.attempt <= member.attempt:
            text = f"goes back from attempt {member.attempt} to {record.attempt}"
            self.out_of_order.append(Violation((record.trajectory,), text))
        group = self.groups[group_of(record.trajectory)]
        group.members[record.trajectory] = Member(
            record.attempt, failures=member.failures + record.failure, deaths=member.deaths + record.died
        )

    def _move(self, record: GroupMoved) -> None:
        self._place(record.group, record.source, record.target)
        if record.displaced:
            self._place(record.displaced, record.target, record.source)

    def _place(self, name: str, source: int, target: int) -> None:
        self.moves += 1
        group = self.groups.get(name)
        if group is None:
            self._unknown(name, "is moved")
            return
        if group.step != source:
            text = f"is moved from the buffer of step {source}, but is in that of step {group.step}"
            self.misplaced.append(Violation((name,), text))
        if any(name in assigned.groups for assigned in self._assigned):
            self.misplaced.append(Violation((name,), f"is moved to step {target} while it is in training"))
        group.step = target
        known = [m.version for m in group.members.values() if m.version is not None]
        if known:
            self._check_stamp(name, min(known), target, "was moved into")

    def _check_stamp(self, group: str, base: int, step: int, how: str) -> None:
        stamp = self.stamps.get(step)
        if stamp is None:
            self.misplaced.append(
                Violation((group,), f"{how} the buffer of step {step}, which was never opened")
            )
        elif step - base > stamp:
            text = f"{how} the buffer of step {step} from version {base}, past its stamp of {stamp}"
            self.misplaced.append(Violation((group,), text))

    def _member(self, trajectory: str) -> Member | None:
        group = self.groups.get(group_of(trajectory))
        return None if group is None else group.members.get(trajectory)

    def _holder(self, trajectory: str, attempt: int, what: str) -> Member | None:
        """Find a trajectory, and report a result of another attempt than the current one; None if it is unknown."""
        member = self._member(trajectory)
        if member is None:
            self._unknown(trajectory, what)
        elif member.attempt != attempt:
            text = f"{what} of attempt {attempt}, but attempt {member.attempt} holds it"
            self.out_of_order.append(Violation((trajectory,), text))
        return member

    def _unknown(self, name: str, what: str) -> None:
        self.out_of_order.append(Violation((name,), f"{what}, but was never planned"))
