"""Which engine takes the siblings of a group: each its own where slots are left over, and otherwise all the same one.

A group is spread over engines while slots are free, so that a prompt with long answers occupies no engine alone. It
stays on one engine when prefilling it on each costs more: when the prompt is longer than its answers are expected to
be. It also stays on one when more waits than engines have slots for, later steps included, unless KV caches are half
full: spreading gains 4 % at most there, and a prompt that kills its engines would end several, with four times as many
prompts to quarantine.

What an engine held when it died may be what killed it. Siblings share a prompt: if it kills engines, it kills as many
at once as generate it. So the siblings of such a group stay together from then on, and such groups are spread over the
engines: the next death then points at few of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection
from heapq import heapify, heappop, heappush

from rljob_core.job_state import GroupState
from rljob_core.planner.context import PlannerContext
from rljob_core.planner.engine_choice import EngineView, Rank, choose, rank, whole
from rljob_core.planner.far_engines import FarEngines, recount
from rljob_core.trajectory import State, group_of


class EngineQueue:
    """Answers as `choose` does for one trajectory at a time, without looking at every engine each time.

    It is a heap whose keys may be out of date: an engine that has been given something since is put back with its new
    key when it comes first. Signals do not change engines within a round.

    Args:
        engines: those that may take work.
        prefetch: see `PlannerContext`.
        tokens: see `EngineView.gain`.
        by_profile: whether all engines that are compared have a profile.
    """

    def __init__(
        self, engines: Collection[EngineView], *, prefetch: float, tokens: float, by_profile: bool
    ) -> None:
        self._prefetch, self._tokens, self._by_profile = prefetch, tokens, by_profile
        self._engines = {engine.engine: engine for engine in engines}
        self._heap = [self._key(engine) for engine in engines]
        heapify(self._heap)

    def choose(self, *, min_version: int, waits: bool, together: int = 1) -> EngineView | None:
        """The engine whose throughput one trajectory raises the most; None if none has room. See `choose`."""
        passed: list[Rank] = []
        found = None
        while self._heap and found is None:
            key = heappop(self._heap)
            engine = self._engines[key[2]]
            if engine.room(self._prefetch) <= 0:
                continue
            if (now := self._key(engine)) != key:
                heappush(self._heap, now)
                continue
            passed.append(key)
            if engine.takes(together, self._prefetch) and engine.admits(min_version, waits=waits):
                found = engine
        for key in passed:
            heappush(self._heap, key)
        return found

    def _key(self, engine: EngineView) -> Rank:
        return rank(engine, by_profile=self._by_profile, tokens=self._tokens)


class SiteQueues:
    """An `EngineQueue` for each site, the hub among them; one alone answers as that queue does.

    Args:
        engines: those that may take work.
        prefetch: see `PlannerContext`.
        tokens: see `EngineView.gain`.
    """

    def __init__(self, engines: Collection[EngineView], *, prefetch: float, tokens: float) -> None:
        self._tokens = tokens
        self._by_profile = all(engine.profile is not None for engine in engines)
        by_site: dict[str, list[EngineView]] = {}
        for engine in engines:
            by_site.setdefault(engine.site, []).append(engine)
        self._queues = [
            EngineQueue(some, prefetch=prefetch, tokens=tokens, by_profile=self._by_profile)
            for some in by_site.values()
        ]

    def choose(
        self, *, min_version: int, waits: bool, share: Callable[[EngineView], float], together: int = 1
    ) -> EngineView | None:
        """The engine for which a trajectory is worth the most; None if none has room. See `choose`."""
        heads = [
            queue.choose(min_version=min_version, waits=waits, together=together) for queue in self._queues
        ]
        found = [head for head in heads if head is not None]
        if len(found) < 2:
            return found[0] if found else None
        by_profile, tokens = self._by_profile, self._tokens
        return min(found, key=lambda e: rank(e, by_profile=by_profile, tokens=tokens, share=share(e)))


PARTING_CACHE = 0.5
"""Share of the KV caches in use from which siblings are parted in any case: long answers fill one engine's cache."""


def open_engines(context: PlannerContext, apart: Collection[str]) -> list[EngineView]:
    """Engines with room for work outside of quarantine; neither those that are `apart` nor those of full sites."""
    recount(context)
    full, found = context.transfers.full, context.liveness.with_room(context.prefetch)
    return [e for e in found if e.engine not in apart and e.site not in full]


class Placement:
    """Chooses engines in one round of dispatch, for one group after the other.

    Args:
        apart: names of engines that may take none of it.

    Attributes:
        able: those that may take the siblings of the group.
        is_survivor: whether an engine died that was generating one of them. Other groups may then find room where
            this one does not.
    """

    def __init__(self, context: PlannerContext, *, apart: Collection[str] = ()) -> None:
        self.able: Collection[EngineView] = ()
        self._open: list[EngineView] | None = None
        self.is_survivor = False
        self._context, self._apart = context, apart
        self._waiting_at_first, self._slots = len(context.state.waiting), -1
        self._tokens = context.liveness.load.mean_tokens
        self._queue: SiteQueues | None = None
        self._far: FarEngines | None = None
        self._group: GroupState | None = None
        self._together = False
        self._engine: EngineView | None = None
        self._full: set[str] = set()
        self._survivors: dict[str, tuple[int, str]] | None = None

    @property
    def _engines(self) -> list[EngineView]:
        """Those with room when they were first asked for: mostly, nothing is dispatched."""
        if self._open is None:
            self._open = open_engines(self._context, self._apart)
        return self._open

    @property
    def is_over(self) -> bool:
        """Whether no engine has room for anything."""
        return all(e.room(self._context.prefetch) <= 0 for e in self._engines)

    @property
    def _all_find_slots(self) -> bool:
        """Whether engines had slots for all that waited when they were first asked for."""
        if self._slots < 0:
            self._slots = sum(max(0, e.free_slots) for e in self._engines)
        return self._slots >= self._waiting_at_first

    def begin(self, group: GroupState) -> None:
        """Turn to this group, unless it is the last one still."""
        if self._group is group:
            return
        self._group, self._engine = group, None
        self.is_survivor, self.able = group.deaths > 0, self._engines
        crowd = not self._all_find_slots and self._context.liveness.load.cache_share < PARTING_CACHE
        self._together = self.is_survivor or crowd or self._prefill_outweighs(group)
        if not self.is_survivor:
            return
        _, home = self._all_survivors()[group.id]
        crowded = {home} ^ {e.engine for e in self._engines} if home else self._crowded(group.deaths)
        self.able = [e for e in self._engines if e.engine not in crowded]

    def choose(self, min_version: int) -> EngineView | None:
        """The engine for the group's next sibling; None if none has room."""
        context = self._context
        self._leave_full_sites()
        engine, share = self._engine, self._shares(min_version)
        if not self._together or engine is None or engine.room(context.prefetch) <= 0:
            together = self._waiting() if self._together else 1
            waits = context.swaps_on_its_own
            if self.able is self._engines:
                engine = self._all_queued().choose(
                    min_version=min_version, waits=waits, share=share, together=together
                )
            else:
                engine = choose(
                    self.able,
                    min_version=min_version,
                    waits=waits,
                    prefetch=context.prefetch,
                    together=together,
                    tokens=self._tokens,
                    share=share,
                )
        if engine is not None:
            self.place(engine)
        return engine

    def place(self, engine: EngineView) -> None:
        """Note which engine takes the group's next sibling."""
        self._engine = engine
        if self.is_survivor and self._group is not None:
            self._all_survivors()[self._group.id] = (self._group.deaths, engine.engine)
            self.able = [engine]

    def _all_queued(self) -> SiteQueues:
        if self._queue is None:
            self._queue = SiteQueues(self._engines, prefetch=self._context.prefetch, tokens=self._tokens)
        return self._queue

    def _shares(self, min_version: int) -> Callable[[EngineView], float]:
        """What counts of each engine's worth for the group's next sibling."""
        context, group = self._context, self._group
        if not context.transfers.sites:
            return whole
        if (far := self._far) is None:
            near = sum(max(0, e.free_slots) for e in self._engines if not e.site)
            far = self._far = FarEngines(context, crowded=near < self._waiting_at_first)
        prompt = group.prompt if group is not None else None
        return lambda engine: far.share(engine, prompt, min_version)

    def _leave_full_sites(self) -> None:
        """Turn away from sites whose outboxes what was sent in this round may fill."""
        full = self._context.transfers.full - self._full
        if not full:
            return
        self._full |= full
        all_able = self.able is self._open
        self._open = [engine for engine in self._engines if engine.site not in full]
        self.able = self._open if all_able else [e for e in self.able if e.site not in full]
        self._queue = None
        if self._engine is not None and self._engine.site in full:
            self._engine = None

    def _prefill_outweighs(self, group: GroupState) -> bool:
        """Whether each engine that computes the prompt again would lose more by it than is gained by parting siblings.

        A token of a prompt takes about a tenth of one that is generated (a model of 8 billion parameters on an H100 at
        half of its peak, against a decode step of 64 sequences), and to part siblings brings about as much.
        """
        prompt, answer = (
            self._context.room.prompts.get(group.id),
            self._context.lengths.known.get(group.prompt),
        )
        return prompt is not None and answer is not None and prompt > answer.mean

    def _waiting(self) -> int:
        return sum(s.state is State.RESERVED for s in self._group.siblings) if self._group is not None else 1

    def _all_survivors(self) -> dict[str, tuple[int, str]]:
        """Of each group that outlived engines, how many, and which one has it now ("" for none)."""
        if self._survivors is None:
            self._survivors = {}
            for trajectory in self._context.state.survivors:
                group = self._context.state.groups[group_of(trajectory)]
                homes = (s.engine for s in group.siblings if s.deaths and s.state is State.GENERATING)
                self._survivors[group.id] = (group.deaths, next(homes, ""))
        return self._survivors

    def _crowded(self, deaths: int) -> set[str]:
        """Engines that have their share of the groups that outlived as many engines, or more."""
        homes = [home for outlived, home in self._all_survivors().values() if outlived >= deaths]
        everyone = self._context.liveness.engines.values()
        able = [e.engine for e in everyone if e.engine not in self._apart and e.takes_work and not e.stuck]
        share = -(-len(homes) // max(1, len(able)))
        return {engine for engine, number in Counter(homes).items() if engine and number >= share}
