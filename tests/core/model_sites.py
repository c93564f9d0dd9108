"""The model of `interleavings` with an engine at another site, whose link may be cut at any time.

While it is cut, the engine there goes on with what it has, and everything that it stores waits. After that, payloads
arrive one by one, in order, while signals and events pass them. What is late in one direction only, the model has
anyway: each message may arrive at any time.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from interleavings import Choice, Model, require

from rljob_core.actions import (
    Action,
    FindMark,
    MarkFound,
    OwnHeartbeat,
    RetireEngine,
    SendMark,
    SendToEngine,
    SignalSeen,
    SiteHeartbeat,
    SiteMarkSeen,
)
from rljob_core.config import JobConfig
from rljob_core.job_state import ENGINE_LOST
from rljob_core.messages import EngineSignal
from rljob_core.planner.heartbeats import RESEND_HEARTBEATS
from rljob_core.planner.liveness import LEASE_HEARTBEATS
from rljob_core.planner.site_links import AWAY_HEARTBEATS, GRACE_HEARTBEATS, MARK_HEARTBEATS, SiteLink
from rljob_core.records import SiblingReset
from rljob_core.trajectory import group_of

SITE = "east"
POOLS = [{"name": "a"}, {"name": "b", "site": SITE}]
THERE = "e1.x"
"""The engine at the site."""


class ModelOverSites(Model):
    """A job with engines at the hub and one at a site.

    Args:
        config: whose second pool is at the site (`POOLS`).
        cuts: how often the link may be cut.
        heals: whether it works again at some time.
        scope: see `Model`.
    """

    def __init__(self, config: JobConfig, *, cuts: int = 1, heals: bool = True, **scope: Any) -> None:
        self.cuts, self.heals = cuts, heals
        self.cut = self.grace = self.begins = False
        self.held: list[tuple[Any, Any]] = []
        """Payloads that the site has stored and the hub has not, with their rewards to come; words and marks between
        them, without rewards."""
        self.mark = ("", 0)
        """The newest mark among the progress, and the coordinator that has sent it."""
        self.key_there: EngineSignal | None = None
        """What the hub's bucket has of the engine there."""
        super().__init__(config, **scope)

    @property
    def link(self) -> SiteLink:
        """As the coordinator knows it."""
        return self.planner.context.sites.links[SITE]

    # ------------------------------------------------------------------------------------------ what may happen

    def choices(self) -> list[Choice]:
        found = super().choices()
        context = self.planner.context
        if not self.finished and THERE in context.sites.losses:  # it waits for a mark already
            found = [choice for choice in found if choice != ("expire", THERE)]
        if not self.cut and not self.finished:
            if self.held:
                found.append(("arrive", ""))
            if not found and (context.sites.losses or context.lookups.held):
                found.append(("remind", ""))
        if not self.cut or self.finished:
            return found
        found = [c for c in found if not self._crosses(c)]
        if not self.link.away:
            found.append(("away", ""))
        elif THERE in self.planner.state.generating and self.link.silent < AWAY_HEARTBEATS + GRACE_HEARTBEATS:
            found.append(("grace", ""))
        if not found:
            found.append(("report", ""))
        if self.heals:
            found.append(("heal", ""))
        return found

    def mishaps(self) -> list[Choice]:
        found = [c for c in super().mishaps() if not (self.cut and self._crosses(c))]
        if self.cuts and not self.cut and THERE in self.engines and not self.finished:
            found.append(("unlink", ""))
        return found

    def _crosses(self, choice: Choice) -> bool:
        """Whether an event needs the link."""
        what, whom = choice
        return what in {"deliver", "swap", "publish", "expire", "drain"} and whom.split()[0] == THERE

    def do(self, choice: Choice) -> None:
        what, _ = choice
        if what not in {"unlink", "away", "grace", "heal", "arrive", "remind"}:
            super().do(choice)
            return
        if what == "unlink":
            self.cuts -= 1
            self.cut = True
        elif what == "away":
            self._own_heartbeat(AWAY_HEARTBEATS)
            require(not self.link.reached, "[away] the site counts as reached")
        elif what == "grace":
            self.grace = True
            self._own_heartbeat(AWAY_HEARTBEATS + GRACE_HEARTBEATS)
            self.grace = False
            others = any(view.takes_work for view in self.planner.context.liveness.engines.values())
            kept = THERE in self.planner.state.generating
            require(not (kept and others), "[grace] work is kept for the site")
        elif what == "arrive":
            self._arrive()
        elif what == "remind":  # beats have come back, and the mark has not
            self.link.marks.beats = MARK_HEARTBEATS
            self._beat_there()
        else:
            self._heal()
        self.truth.check(self.planner.state, self.engines)
        self._check_quarantine()

    def _own_heartbeat(self, silent: int) -> None:
        """The own heartbeat comes back which is the one of this number without a beat."""
        context = self.planner.context
        self.link.silent = silent - 1
        context.liveness.leases, context.score_checks.waiting, context.liveness.heartbeats = {}, {}, 0
        for view in context.liveness.engines.values():
            view.heartbeats_behind = 0
        self._observe(OwnHeartbeat())
        self.planner.context.liveness.leases = {}

    def _heal(self) -> None:
        self.cut = False
        self.link.marks.beats = MARK_HEARTBEATS  # the newest may have been lost
        if THERE in self.engines:
            self._signal(THERE)
        self._beat_there()

    def _arrive(self) -> None:
        """The next of what the site has stored comes to the hub."""
        stored, reward = self.held.pop(0)
        self.sequence += 1
        if reward is None:
            self.absences[self.sequence] = replace(stored, sequence=self.sequence)
            return
        self.payloads[self.sequence] = stored
        self.sequence += 1
        self.rewards[self.sequence] = reward

    def _hold(self, before: int) -> None:
        """What the engine there has stored since then waits behind what waits already."""
        if (self.cut or self.held) and self.sequence > before:
            if (word := self.absences.pop(self.sequence, None)) is not None:
                self.held.append((word, None))
            else:
                self.held.append((self.payloads.pop(self.sequence - 1), self.rewards.pop(self.sequence)))

    def _beat_there(self) -> None:
        self.link.silent = max(1, self.link.silent)  # an own heartbeat has come back since the last beat
        self._observe(SiteHeartbeat(SITE))
        self.planner.context.liveness.leases = {}

    def _beat(self) -> None:
        super()._beat()
        if self.cut:
            return
        context = self.planner.context
        self.link.marks.beats = MARK_HEARTBEATS
        if THERE not in self.engines:
            context.liveness.leases[THERE] = LEASE_HEARTBEATS  # it ends
        elif (view := context.liveness.engines.get(THERE)) is not None:
            view.heartbeats_behind = RESEND_HEARTBEATS
        self._beat_there()

    def _expire(self, name: str) -> None:
        liveness = self.planner.context.liveness
        if name == THERE and name in liveness.leaving:  # its last word was lost
            for view in liveness.engines.values():
                view.heartbeats_behind = 0
            liveness.leases = {THERE: LEASE_HEARTBEATS}
            self._beat_there()
            return
        super()._expire(name)
        if not self.cut:
            self._beat_there()

    # ------------------------------------------------------------------------------------------ the roles

    def _start_coordinator(self) -> None:
        self.begins = True
        marks = {s: a for s, a in self.absences.items() if isinstance(a, SiteMarkSeen)}
        self.absences |= {s: replace(mark, number=0) for s, mark in marks.items()}  # of another coordinator
        self.held = [(replace(m, number=0) if isinstance(m, SiteMarkSeen) else m, r) for m, r in self.held]
        if THERE in self.engines:
            self.engines[THERE].pool, self.engines[THERE].site = "b", SITE
        super()._start_coordinator()
        self.begins = False
        if not self.cut:
            self._beat_there()

    def _signal(self, name: str) -> None:
        if name != THERE:
            super()._signal(name)
        elif not self.cut:
            self.key_there = self.engines[name].signal(name)
            self._observe(SignalSeen(name, self.key_there))
        elif self.begins and self.key_there is not None:
            self._observe(SignalSeen(name, self.key_there))

    def _finish(self, whom: str) -> None:
        before = self.sequence
        super()._finish(whom)
        if whom.split(maxsplit=1)[0] == THERE:
            self._hold(before)

    def _deliver(self, name: str) -> None:
        before = self.sequence
        super()._deliver(name)
        if name == THERE:
            self._hold(before)

    def _drain(self, name: str) -> None:
        before = self.sequence
        super()._drain(name)
        if name == THERE:
            self._hold(before)

    def _act(self, action: Action, epoch: int, ledger: str) -> None:
        if isinstance(action, SendToEngine) and epoch == self.planner.epoch:
            require(action.site == (SITE if action.engine == THERE else ""), f"[site] {action}")
            sent = action.engine == THERE and self.cut and self.link.away
            require(not sent, f"[away] {action} to a site that is away")
        if isinstance(action, RetireEngine) and action.engine == THERE:
            self.key_there = None
        if isinstance(action, SendMark) and not self.cut:
            number, before = (action.number if epoch == self.planner.epoch else 0), self.sequence
            self.mark = f"c{self.instances}", number
            self.sequence += 1
            self.absences[self.sequence] = SiteMarkSeen(self.sequence, SITE, number)
            self._hold(before)
        if isinstance(action, FindMark):
            sender, number = self.mark
            self.answers.append(MarkFound(SITE, number if sender == f"c{self.instances}" else 0))
        super()._act(action, epoch, ledger)

    def _perform(self, decision: Any, *, dies: bool = False) -> None:
        for record in decision.records:
            if isinstance(record, SiblingReset) and record.reason == "SiteAway":
                step = self.planner.state.buffers.buffer_of(group_of(record.trajectory)).step
                current = step == self.planner.state.version
                require(self.grace or current, f"[current] {record.trajectory} was not waited for yet")
                require(not record.died and not record.failure, f"[away] {record} is to blame")
            elif isinstance(record, SiblingReset) and record.reason in {ENGINE_LOST, "Drained"}:
                waits = {(s.trajectory, s.attempt) for s, reward in self.held if reward is not None}
                key = record.trajectory, record.attempt - 1
                require(key not in waits or THERE in self.engines, f"[stored] {key} waits at the site")
        super()._perform(decision, dies=dies)

    def key(self) -> int:
        context, link = self.planner.context, self.link
        return hash(
            (
                super().key(),
                self.cuts,
                self.cut,
                (link.reached, link.away, link.met, link.silent >= AWAY_HEARTBEATS + GRACE_HEARTBEATS),
                repr(context.sites.cancelled),
                context.trainer_link.waits_after,
                tuple(
                    (s.trajectory, s.attempt, s.span) if reward is not None else repr(replace(s, sequence=0))
                    for s, reward in self.held
                ),
                self.mark,
                repr(link.marks),
                repr(context.sites.losses),
                repr(context.lookups.held),
                None if self.key_there is None else (self.key_there.version, self.key_there.held),
                THERE in self.engines and self._engine_key(THERE),
                tuple(self.planner.state.generating.get(THERE, ())),
            )
        )
