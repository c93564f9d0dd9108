"""Which engines are alive, as far as this coordinator has heard: their leases and their last heartbeats.

Leases count the coordinator's own heartbeats as they come back through the store, not seconds. A coordinator that was
frozen, or whose connection was lost, counts none in that time and so declares no engine dead. Nothing of this is in
the ledger: a new coordinator learns it again from the engines' signals.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from rljob_core.planner.engine_choice import EngineView
from rljob_core.planner.stored_messages import AttemptKey


@dataclass(slots=True)
class FleetLoad:
    """Sums over the engines' last signals.

    Attributes:
        running, context: trajectories that are generated, and the tokens that these have together.
        cached, kv_tokens: of the engines that say how much their KV caches hold, the tokens in them and that number.
    """

    running: int = 0
    context: int = 0
    cached: int = 0
    kv_tokens: int = 0

    def add(self, view: EngineView) -> None:
        """Count an engine, unless it cannot be reached."""
        self._count(view, 1)

    def remove(self, view: EngineView) -> None:
        """Count an engine no longer, before what it says changes or it is gone."""
        self._count(view, -1)

    def _count(self, view: EngineView, sign: int) -> None:
        if not view.reachable:
            return
        self.running += sign * view.running
        self.context += sign * view.context
        if view.kv_tokens:
            self.cached += sign * view.context
            self.kv_tokens += sign * view.kv_tokens

    @property
    def mean_tokens(self) -> float:
        """Tokens that a running trajectory has on average, prompt included; 0 if none runs."""
        return self.context / self.running if self.running else 0.0

    @property
    def cache_share(self) -> float:
        """Share of the KV caches that is in use; 0 if no engine says how large its is."""
        return self.cached / self.kv_tokens if self.kv_tokens else 0.0


LEASE_HEARTBEATS = 10
"""Own heartbeats (one a second) without a signal after which an engine is declared lost."""
TOGETHER_HEARTBEATS = 2
"""Own heartbeats within which engines fall silent that have ended together, as their machine did."""
REPLACED_HEARTBEATS = 1
"""Own heartbeats after which an engine is declared lost that never signalled to this coordinator, while another
instance of its pod does."""


@dataclass(slots=True)
class Liveness:
    """Engines and their leases.

    Attributes:
        engines: those that have signalled and are not lost, by instance name.
        leases: own heartbeats since each engine's last signal; engines that only the ledger names have one too.
        heartbeats: own heartbeats so far.
        rejected_heartbeats: own heartbeats in a row at which every engine rejected the newest weights.
        leaving: engines that have drained, and are removed once their results were read, up to their last word in the
            trajectory stream.
        removed: engines that were declared lost, with the (trajectory, attempt) pairs that they had. If one of them
            signals again, these are cancelled there.
        dead: engines whose process is known to have ended: a signal of theirs was sent before that.
        retired: engines whose keys this coordinator has removed, and has not read of the removal.
        silent: of each engine that was lost without a report of its end, own heartbeats so far at that time; only of
            the newest ones.
        load: what all engines together generate and hold.
    """

    engines: dict[str, EngineView] = field(default_factory=dict)
    leases: dict[str, int] = field(default_factory=dict)
    heartbeats: int = 0
    rejected_heartbeats: int = 0
    leaving: dict[str, None] = field(default_factory=dict)
    removed: dict[str, list[AttemptKey]] = field(default_factory=dict)
    dead: set[str] = field(default_factory=set)
    retired: set[str] = field(default_factory=set)
    silent: dict[str, int] = field(default_factory=dict)
    load: FleetLoad = field(default_factory=FleetLoad)
    _roomy: dict[str, None] = field(default_factory=dict)
    """Engines that may have room: those that had when they were last asked, and whose load has changed since."""
    _freed: dict[str, None] = field(default_factory=dict)
    """Engines of which a slot has become free since `pop_freed`."""

    def lease_ends(self, engine: str) -> bool:
        """Count one own heartbeat towards the engine's lease; True if the lease has run out."""
        self.leases[engine] = self.leases.get(engine, 0) + 1
        # All keys of the signal bucket are read within one heartbeat: an engine that has none, while another instance
        # of its pod has one, is dead.
        replaced = engine not in self.engines and self.of_pod(engine)
        return self.leases[engine] > (REPLACED_HEARTBEATS if replaced else LEASE_HEARTBEATS)

    def is_echo(self, engine: str) -> bool:
        """Whether the removal of an engine's key is this coordinator's own, which says nothing of the engine.

        An engine that was declared lost and is alive may have signalled meanwhile. If it counted as lost once more, its
        key would be removed once more, and so on, and each time would count as a death of what it generates. Should
        this coordinator never read of its own removal, and take another's for it, the lease ends instead.
        """
        if engine not in self.retired:
            return False
        self.retired.remove(engine)
        return True

    def ended_alone(self, engine: str) -> bool:
        """Whether an engine that is lost has ended by itself: its crash was reported, or no other one went with it.

        What ends several engines at once, or one together with the coordinator that heard it, is their machine, its
        power or its network, whatever they were generating.
        """
        if engine in self.dead:
            return True
        if engine not in self.engines:  # the coordinator that heard it has ended, too
            return False
        quiet = LEASE_HEARTBEATS - TOGETHER_HEARTBEATS
        # Leases of engines that cannot be reached stand still.
        others = (e for e, v in self.engines.items() if v.reachable and e != engine and e not in self.dead)
        recent = [e for e, then in self.silent.items() if then >= self.heartbeats - TOGETHER_HEARTBEATS]
        return not recent and all(self.leases.get(other, 0) <= quiet for other in others)

    def note_loss(self, engine: str) -> None:
        """Remember when an engine was lost, if nobody reported its end."""
        recent = {e: then for e, then in self.silent.items() if then >= self.heartbeats - TOGETHER_HEARTBEATS}
        self.silent = recent if engine in self.dead else {**recent, engine: self.heartbeats}

    def forget(self, engine: str) -> bool:
        """Remove an engine and its lease; True if it had signalled."""
        self.leases.pop(engine, None)
        self.leaving.pop(engine, None)
        view = self.engines.pop(engine, None)
        if view is not None:
            self.load.remove(view)
        return view is not None

    def with_room(self, prefetch: float) -> list[EngineView]:
        """Engines that can be given something; see `EngineView.room`."""
        found = [self.engines[name] for name in self._roomy if name in self.engines]
        found = [view for view in found if view.room(prefetch) > 0]
        self._roomy = dict.fromkeys(view.engine for view in found)
        return found

    def pop_freed(self) -> list[EngineView]:
        """Engines of which a slot has become free since the last call."""
        found = [self.engines[name] for name in self._freed if name in self.engines]
        self._freed = {}
        return found

    def has_changed(self, view: EngineView) -> None:
        """An engine may have room that had none."""
        self._roomy[view.engine] = None

    def of_pod(self, engine: str) -> list[EngineView]:
        """Instances of the engine's pod that have signalled."""
        pod = _pod(engine)
        # The prefix is compared first: each of thousands of engines is looked for among all as it begins.
        return [view for name, view in self.engines.items() if name.startswith(pod) and _pod(name) == pod]

    def free_slot(self, engine: str) -> None:
        """Count one trajectory less on an engine; an unknown engine is ignored."""
        view = self.engines.get(engine)
        if view is not None:
            view.assigned = max(0, view.assigned - 1)
            # An episode ends in its environment: one that was there at the last signal leaves no slot by its end.
            view.in_environment = max(0, view.in_environment - 1)
            self.has_changed(view)
            self._freed[engine] = None


def _pod(engine: str) -> str:
    return engine.rpartition(".")[0]
