"""The catalogue of mutants: each removes one guard of the protocol, and names the checks that must detect it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Mutant:
    """A change of the source that removes one guard.

    Attributes:
        module: the module whose source is changed.
        guard: text that the source contains exactly once.
        instead: text that replaces it.
        by: the checks that detect the mutant: the model of `interleavings`, the simulation of whole jobs, or tests.
        tests: the file of these tests, or one of them.
        walk: seed of a random walk through the model that detects the mutant; it is tried first, because a search takes
            longer.
        slow: whether that walk delays one trajectory.
        poison: whether one of its groups kills engines.
        store: whether a store that is small for the job detects the mutant.
        sites: whether jobs over several sites detect the mutant, in the model or in the simulation.
        episodes: whether simulated jobs with an environment detect the mutant.
        seed: of a simulated job that detects the mutant, tried first; one that few of them detect.
    """

    module: str
    guard: str
    instead: str
    by: tuple[str, ...] = ("model",)
    walk: int | None = None
    slow: bool = False
    poison: bool = False
    store: bool = False
    seed: int | None = None
    tests: str = ""
    sites: bool = False
    episodes: bool = False


SUSPECTS = "tests/core/test_suspects.py"
LOST_LEDGER = "tests/runtime/roles/test_lost_ledger.py"
CAREFUL_START = "tests/runtime/roles/test_careful_start.py"
REPLICATED = (
    "tests/contract/test_replicated_streams.py::"
    "test_a_server_that_is_behind_does_not_say_that_messages_are_gone"
)
DEAF = "tests/runtime/rewards/test_process.py::test_a_function_that_hears_no_signal_costs_its_chunk_nothing"
EPISODES = "tests/runtime/roles/test_episodes.py"
OPEN_EPISODES = "tests/runtime/roles/test_open_episodes.py"
ENGINES_OF_EPISODES = "tests/core/test_engines_of_episodes.py"
HOSTILE_WORKERS = "tests/runtime/roles/test_hostile_workers.py"
LABELS = "tests/runtime/roles/test_staleness_of_payloads.py"
SITES = "tests/core/test_sites.py"
WEIGHT_SYNC = "tests/core/test_weight_sync.py"
SWAP_TIME = "tests/runtime/roles/test_swap_time.py"
SITE_MARKS = "tests/core/test_site_marks.py"
SITE_BORDER = "tests/core/test_site_definitions.py"
SITE_ROLES = "tests/runtime/roles/test_site_roles.py"

MUTANTS: dict[str, Mutant] = {
    "what needs newer weights waits until a swap is worth its cost": Mutant(
        "rljob_core.weight_sync",
        "if needed or idle or",
        "if idle or",
        by=("tests",),
        tests=WEIGHT_SYNC,
    ),
    "an engine does not say that it has work for newer weights": Mutant(
        "rljob_runtime.roles.rollout.weight_updates",
        "not self._assignments.running, bool(self._assignments.too_new)",
        "not self._assignments.running, False",
        by=("tests",),
        tests=SWAP_TIME,
    ),
    "weights that could not be loaded wait until a swap is worth its cost": Mutant(
        "rljob_runtime.roles.rollout.weight_updates",
        "if self._revoked or self.stuck:",
        "if self._revoked:",
        by=("tests",),
        tests=SWAP_TIME,
    ),
    "revoked weights are used until a swap is worth its cost": Mutant(
        "rljob_runtime.roles.rollout.weight_updates",
        "if self._revoked or self.stuck:",
        "if self.stuck:",
        by=("tests",),
        tests=SWAP_TIME,
    ),
    "a displaced group may land past its bound": Mutant(
        "rljob_core.planner.buffers",
        "if buffers.buffers[source].admits(base)), None",
        "), None",
        by=("model", "simulation"),
    ),
    "a finished group may move past its bound": Mutant(
        "rljob_core.planner.buffers",
        "        if current.admits(later.entries[group].base)\n",
        "",
        by=("tests",),
        tests="tests/core/test_staleness.py",
    ),
    "results of an old attempt are taken": Mutant(
        "rljob_core.planner.results",
        "if sibling is None or sibling.attempt != summary.attempt:\n        context.messages.payloads.release([key])",
        "if sibling is None:\n        context.messages.payloads.release([key])",
        by=("model", "simulation"),
    ),
    "a payload that comes twice is taken twice": Mutant(
        "rljob_core.planner.results",
        "    if sibling.state not in _UNANSWERED:\n        return\n    context.liveness.free_slot",
        "    context.liveness.free_slot",
        by=("model", "simulation"),
    ),
    "a zombie trainer's step is committed": Mutant(
        "rljob_core.planner.training",
        "        or (proposal.attempt, proposal.epoch) != (trainer.attempt, trainer.epoch)\n",
        "",
        by=("model", "simulation"),
    ),
    # The model's gangs that were taken for dead are never taken on again: a coordinator that was replaced would have
    # to be replaced once more.
    "an old gang is taken on again": Mutant(
        "rljob_core.planner.training",
        "    if trainer is not None and event.attempt < trainer.attempt:",
        "    if False:",
        by=("simulation",),
    ),
    "a waiting gang is not informed again": Mutant(
        "rljob_core.planner.training",
        "        _resend(context, event)\n",
        "        return\n",
        by=("model", "simulation"),
    ),
    "what was in training stays there when the gang dies": Mutant(
        "rljob_core.job_state.state",
        "for group in self.in_training():",
        "for group in ():",
        by=("model", "simulation"),
    ),
    "records of a fenced coordinator count": Mutant(
        "rljob_core.job_state.state", "if batch.writer == self.writer:", "if True:"
    ),
    "open buffers take a new bound": Mutant(
        "rljob_core.planner.pipeline_change",
        'context.spec = context.spec.model_copy(update={"pipeline": pipeline})',
        'context.spec = context.spec.model_copy(update={"pipeline": pipeline})\n'
        "    for buffer in context.state.buffers.buffers.values():\n"
        "        buffer.max_staleness = pipeline.bound",
        by=("model", "simulation"),
    ),
    "a change of the bound is not written down": Mutant(
        "rljob_core.planner.pipeline_change",
        "if last is None or replace(last, step=record.step) != record:",
        "if last is None:",
        by=("model", "simulation"),
    ),
    "a change of the spec is not written down": Mutant(
        "rljob_core.planner.spec_change",
        "    context.emit(spec_in_force(new))\n",
        "",
        by=("simulation", "tests"),
        tests="tests/core/test_spec_change.py",
    ),
    "a coordinator records fields of which it has other values": Mutant(
        "rljob_core.planner.spec_change",
        "before == after or read_by_coordinator(before) != read_by_coordinator(after)",
        "before == after",
        by=("tests",),
        tests="tests/core/test_spec_change.py",
    ),
    "a recorded spec has a pipeline that is not in force": Mutant(
        "rljob_core.planner.spec_change",
        ', "pipeline": context.spec.pipeline}',
        "}",
        by=("tests",),
        tests="tests/core/test_spec_change.py",
    ),
    "a buffer opens before its weights can exist": Mutant(
        "rljob_core.staleness",
        "return range(self.next_step, min(steps, self.version + max_staleness + 1))",
        "return range(self.next_step, min(steps, self.version + max_staleness + 2))",
        by=("model", "simulation"),
    ),
    "a reservation asks for no version": Mutant(
        "rljob_core.planner.dispatch",
        "        min_version = max(min_version, oldest)\n",
        "        min_version = 0\n",
    ),
    "engines start below the minVersion": Mutant(
        "model_roles", "if w.min_version <= self.version]", "]", by=("model",)
    ),
    "payloads are deleted before they are trained": Mutant(
        "rljob_core.planner.results",
        "    context.emit(Rewarded(result.trajectory, result.attempt, result.reward, result.digest))\n",
        "    context.emit(Rewarded(result.trajectory, result.attempt, result.reward, result.digest))\n"
        "    context.release(sibling)\n",
    ),
    "a coordinator acts before its records are stored": Mutant(
        "interleavings",
        "        if records:\n",
        "        if dies:\n"
        "            for action in decision.actions:\n"
        "                self._act(action, self.planner.epoch)\n"
        "            return\n"
        "        if records:\n",
        by=("model",),
    ),
    "a lost engine's work is forgotten": Mutant(
        "rljob_core.planner.engines",
        """        endings.reset_sibling(
            context, sibling, ENGINE_LOST, failure=False, detail=cause, carries=carries, died=True
        )
""",
        "",
    ),
    "inherited tokens do not count towards the base": Mutant(
        "rljob_core.job_state.groups",
        "return sibling.min_version if made is None else min(made.span.min, sibling.min_version)",
        "return sibling.min_version",
        walk=24,
        slow=True,
    ),
    "a trajectory goes on under older weights than it had": Mutant(
        "rljob_core.planner.dispatch",
        "min_version=max(buffer.min_version, made.span.max)",
        "min_version=buffer.min_version",
        by=("tests",),
        tests="tests/core/test_migration.py",
    ),
    "what was looked up is waited for although it was found": Mutant(
        "rljob_core.planner.progress_lookups",
        "        del self.pending[answer.trajectory]\n",
        "        pass\n",
    ),
    "a commit that the ledger has lost is not taken back": Mutant(
        "rljob_core.planner.recovery", "    if context.state.finished is not None:\n", "    if True:\n"
    ),
    "a restored step leaves its groups where they are": Mutant(
        "rljob_core.staleness", "            if group in self._where:\n", "            if False:\n"
    ),
    "a payload of a lost part of the ledger is taken past the bound": Mutant(
        "rljob_core.planner.results",
        "    if not context.state.buffers.buffer_of(group_of(sibling.id)).admits(summary.span.min):\n",
        "    if False:\n",
        walk=1276,
    ),
    "a payload older than what was asked for does not lower its group's base": Mutant(
        "rljob_core.job_state.state",
        "        if record.span.min < self.buffers.entry_of(group).base:\n",
        "        if False:\n",
        walk=1019,
    ),
    "two coordinators may have the same epoch": Mutant(
        "rljob_core.records.writer",
        " + stable_hash(instance) % EPOCH_STRIDE, instance)",
        ", instance)",
        walk=901,
    ),
    "a lost payload is waited for": Mutant(
        "rljob_core.planner.results",
        'endings.reset_sibling(context, sibling, "NotHeld", failure=False)',
        "return",
    ),
    "a lost score is waited for": Mutant(
        "rljob_core.planner.results",
        'endings.reset_sibling(context, sibling, "RewardLost", failure=False)',
        "return",
    ),
    "an engine that lacks what it was sent is not sent it again": Mutant(
        "rljob_core.planner.heartbeats", "        dispatch.resend(context, view.engine)\n", ""
    ),
    "work that was on its way is not sent again": Mutant(
        "rljob_core.planner.planner", "    dispatch.resend(context)\n", ""
    ),
    "nobody counts what is held by engines that die": Mutant(
        "rljob_core.job_state.state",
        "        sibling.deaths += record.died\n",
        "",
        walk=0,
        poison=True,
    ),
    "suspects are sent out beside other work": Mutant(
        "rljob_core.planner.dispatch",
        "group.id in trial.groups or ",
        "",
        walk=7,
        poison=True,
    ),
    "an engine that tries suspects takes other work": Mutant(
        "rljob_core.planner.suspects",
        "        return Trial(apart=tried_at, groups=groups)\n",
        "        return Trial(groups=groups)\n",
        walk=10,
        poison=True,
    ),
    "a cohort that killed its engine is tried again as it was": Mutant(
        "rljob_core.planner.suspects",
        "        cohorts.insert(*_halves(accused))\n",
        "        cohorts.insert(accused)\n",
        walk=28,
        poison=True,
    ),
    "the death of a cohort counts as a failure of each": Mutant(
        "rljob_core.planner.engines",
        "if alone and suspects.is_tried(context, s)]",
        "if suspects.is_tried(context, s)]",
        by=("tests",),
        tests=SUSPECTS,
    ),
    "a death with one suspect alone is nobody's failure": Mutant(
        "rljob_core.planner.engines",
        "if alone and suspects.is_tried(context, s)]",
        "if False]",
        walk=0,
        poison=True,
    ),
    "the prime suspect is sent out beside other work": Mutant(
        "rljob_core.planner.suspects",
        "    found |= {sibling.id: _engine(sibling) for sibling in prime_suspect.members(context)}\n",
        "",
        walk=8,
        poison=True,
    ),
    "all engines wait for the suspects": Mutant(
        "rljob_core.planner.suspects",
        "apart=frozenset() if waits else frozenset({engine.engine}), groups",
        "apart=frozenset(context.liveness.engines), groups",
        walk=16,
        poison=True,
    ),
    "a score that no sum can hold is taken": Mutant(
        "rljob_core.planner.reward_checks",
        "    if not abs(result.reward) <= len(functions) * LARGEST_SCORE:\n",
        "    if False:\n",
        by=("simulation",),
    ),
    "tokens of weights that do not exist are taken": Mutant(
        "rljob_core.planner.payload_checks",
        "    if span.max > committed:\n",
        "    if False:\n",
        by=("simulation",),
    ),
    # Whom a death is laid to: of what is innocent, a random job seldom gives up anything, so tests detect these.
    "deaths that others explain are a group's own": Mutant(
        "rljob_core.planner.attributed_deaths",
        "    return sibling.deaths - max((deaths_of(context, rival) for rival in rivals), default=0)\n",
        "    return sibling.deaths\n",
        by=("tests",),
        tests=SUSPECTS,
    ),
    "deaths count for nothing, whatever explains them": Mutant(
        "rljob_core.planner.attributed_deaths",
        "    return max(sibling.failures, own_deaths(context, sibling, beside(context, group)))\n",
        "    return sibling.failures\n",
        by=("tests",),
        tests=SUSPECTS,
    ),
    "deaths beside a held-out prompt that kills engines count": Mutant(
        "rljob_core.planner.attributed_deaths",
        "    return context.evaluation is None or not context.evaluation.killers\n",
        "    return True\n",
        by=("tests",),
        tests=SUSPECTS,
    ),
    "deaths count that an evaluation before this coordinator may explain": Mutant(
        "rljob_core.planner.attributed_deaths",
        "    if context.spec.evaluation is not None and group in context.cohorts.inherited:\n",
        "    if False:\n",
        by=("tests",),
        tests=SUSPECTS,
    ),
    "what is convicted explains no deaths of held-out answers": Mutant(
        "rljob_core.planner.suspects",
        "    if convicted and context.evaluation is not None:\n",
        "    if False:\n",
        by=("tests",),
        tests=SUSPECTS,
    ),
    "a prime suspect that is given up explains no deaths of held-out answers": Mutant(
        "rljob_core.planner.prime_suspect",
        "        if context.evaluation is not None:\n            context.evaluation.explain_deaths()\n",
        "",
        by=("tests",),
        tests=SUSPECTS,
    ),
    "siblings explain one another's deaths": Mutant(
        "rljob_core.planner.attributed_deaths",
        "if group_of(t) != group]",
        "if t != group]",
        by=("tests",),
        tests=SUSPECTS,
    ),
    "what is convicted explains no deaths": Mutant(
        "rljob_core.job_state.state",
        "                sibling.deaths = 0\n",
        "                pass\n",
        by=("tests",),
        tests=SUSPECTS,
    ),
    "what is generated stays accused": Mutant(
        "rljob_core.job_state.state",
        "sibling.payload, sibling.deaths = record, 0",
        "sibling.payload = record",
        by=("tests",),
        tests=SUSPECTS,
    ),
    "the prime suspect is given up at once": Mutant(
        "rljob_core.planner.prime_suspect",
        "if attributed_deaths.own_deaths(context, sibling, prime.rivals) >= context",
        "if sibling.deaths >= context",
        by=("tests",),
        tests=SUSPECTS,
    ),
    "the prime suspect is given up while it is tried again": Mutant(
        "rljob_core.planner.prime_suspect",
        "    if any(s.state is State.GENERATING for s in members(context)):  # it is tried",
        "    if False:  # it is tried",
        by=("tests",),
        tests=SUSPECTS,
    ),
    "the prime suspect is tried again while others can explain its deaths": Mutant(
        "rljob_core.planner.prime_suspect",
        "any(_is_generated(context, t) for t in prime.rivals)",
        "False",
        by=("tests",),
        tests=SUSPECTS,
    ),
    "what was not begun may be the prime suspect": Mutant(
        "rljob_core.planner.prime_suspect",
        "    if beginning in map(group_of, held):\n"
        "        return [beginning] if beginning in context.state.groups else []\n",
        "",
        by=("tests",),
        tests=SUSPECTS,
    ),
    "what has made progress may be the prime suspect": Mutant(
        "rljob_core.planner.prime_suspect",
        "    if any((sibling.id, sibling.attempt) in context.lookups.found for sibling in members(context)):\n",
        "    if False:\n",
        by=("tests",),
        tests=SUSPECTS,
    ),
    "what had as many tokens in two deaths is no prime suspect": Mutant(
        "rljob_core.planner.prime_suspect",
        "[(g, True) for g in as_far]",
        "[]",
        by=("tests",),
        tests=SUSPECTS,
    ),
    "what has no token yet has as many as before": Mutant(
        "rljob_core.planner.death_positions",
        "if t in held and n}",
        "if t in held}",
        by=("tests",),
        tests=SUSPECTS,
    ),
    "any sibling that has as many tokens as before is as suspect as the foremost": Mutant(
        "rljob_core.planner.death_positions",
        "    closest = sorted(foremost, key=foremost.__getitem__)\n",
        "    closest: list[str] = []\n",
        by=("tests",),
        tests=SUSPECTS,
    ),
    "progress acquits what kills later than with its first token": Mutant(
        "rljob_core.planner.prime_suspect",
        "    if prime is None or prime.has_tokens:\n",
        "    if prime is None:\n",
        by=("tests",),
        tests=SUSPECTS,
    ),
    "the prime suspect among others is tried in its turn": Mutant(
        "rljob_core.planner.suspects",
        "            cohorts.insert(prime)\n",
        "            pass\n",
        by=("tests",),
        tests=SUSPECTS,
    ),
    "what was tried alone fails with its whole machine": Mutant(
        "rljob_core.planner.engines",
        "    tried = [s for s in tried if ended_alone or not",
        "    tried = [s for s in tried if True or not",
        by=("tests",),
        tests=SUSPECTS,
    ),
    "what takes its whole machine with it is never given up": Mutant(
        "rljob_core.planner.suspects",
        "    return deaths < SUSPECT_DEATHS + context",
        "    return True or deaths < SUSPECT_DEATHS + context",
        by=("tests",),
        tests=SUSPECTS,
    ),
    "an engine that no coordinator has heard since ended alone": Mutant(
        "rljob_core.planner.liveness",
        "        if engine not in self.engines:  # the coordinator",
        "        if False:  # the coordinator",
        by=("tests",),
        tests=SUSPECTS,
    ),
    "what begins after a death may be as silent as anything else": Mutant(
        "rljob_core.hang_limit",
        "(known.suspects_seconds if work.suspects else 0) or known.seconds",
        "known.seconds",
        by=("tests",),
        tests="tests/core/test_hang_limit.py",
    ),
    "an engine is not known before it is warm": Mutant(
        "rljob_core.hang_limit",
        "        if self._seen < EARLY:\n",
        "        if True:\n",
        by=("tests",),
        tests="tests/core/test_hang_limit.py",
    ),
    "siblings that wait on other engines kill these, too": Mutant(
        "rljob_core.planner.engines",
        "    suspects.recall_siblings(context, engine, siblings)\n",
        "",
        by=("tests",),
        tests=SUSPECTS,
    ),
    "an engine of whose end nothing is known makes prime suspects": Mutant(
        "rljob_core.planner.prime_suspect",
        "    if engine not in context.liveness.dead:\n        return []\n",
        "",
        by=("tests",),
        tests=SUSPECTS,
    ),
    "what an earlier coordinator's trainer proposes is an ordinary step": Mutant(
        "rljob_core.planner.training",
        "context.emit(proposal if proposal.epoch == context.epoch else recovery.restored(state, proposal))",
        "context.emit(proposal)",
        by=("tests",),
        tests=LOST_LEDGER,
    ),
    "all that outlived an engine begins at once": Mutant(
        "rljob_runtime.roles.rollout.careful_start",
        "        return [w for w in work if not w.survivor or group_of(w.trajectory) == group]\n",
        "        return list(work)\n",
        by=("tests",),
        tests=CAREFUL_START,
    ),
    "the next group begins before the last one has a token": Mutant(
        "rljob_runtime.roles.rollout.careful_start",
        'group = "" if self._awaited_tokens else next(',
        "group = next(",
        by=("tests",),
        tests=CAREFUL_START,
    ),
    "tokens that a request inherits show that it was begun": Mutant(
        "rljob_runtime.roles.rollout.careful_start",
        "request.inherited_tokens + 1 for",
        "request.inherited_tokens for",
        by=("tests",),
        tests=CAREFUL_START,
    ),
    "what runs no more is waited for": Mutant(
        "rljob_runtime.roles.rollout.careful_start",
        "if r in running and r not in begun",
        "if r not in begun",
        by=("tests",),
        tests=CAREFUL_START,
    ),
    "one sibling that has begun is enough": Mutant(
        "rljob_runtime.roles.rollout.careful_start",
        "            if self._awaited_tokens:\n                await",
        "            if begun:\n                self._awaited_tokens = {}\n            else:\n                await",
        by=("tests",),
        tests=CAREFUL_START,
    ),
    "nobody is told which group begins": Mutant(
        "rljob_runtime.roles.rollout.careful_start",
        "        self._alive.begin(group_of(careful[0][0].trajectory))\n",
        "",
        by=("tests",),
        tests=CAREFUL_START,
    ),
    "a group that has begun is blamed for what comes later": Mutant(
        "rljob_runtime.roles.rollout.careful_start",
        '        self._alive.begin("")\n',
        "",
        by=("tests",),
        tests=CAREFUL_START,
    ),
    "where nobody reads what begins, it begins carefully": Mutant(
        "rljob_runtime.roles.rollout.careful_start",
        "        if not self._alive.is_read:\n            return list(work)\n",
        "",
        by=("tests",),
        tests=CAREFUL_START,
    ),
    # What workers, engines, users' code and servers say.
    "a queue that is made again ahead of its stream stays so": Mutant(
        "rljob_runtime.messaging.nats.queue",
        'if info["delivered"]["consumer_seq"]:',
        "if False:",
        by=("tests",),
        tests="tests/contract/test_cut_streams.py::"
        "test_a_queue_gives_out_all_that_is_stored_later[nats-queues-state0-trajectories]",
    ),
    "a queue whose state is damaged is never there again": Mutant(
        "rljob_runtime.messaging.nats.queue",
        "if not needs_memory(error.description):",
        "if True:",
        by=("tests",),
        tests="tests/contract/test_cut_streams.py::"
        "test_a_queue_gives_out_all_that_is_stored_later[nats-states-state0-trajectories]",
    ),
    "what a replica does not have is gone": Mutant(
        "rljob_runtime.messaging.nats.store",
        "missing = [place for place, message in enumerate(found) if message is None]",
        "missing = list[int]()",
        by=("tests",),
        tests=f"{REPLICATED}[a follower]",
    ),
    "nothing is blamed for a server that is lost while it loads": Mutant(
        "rljob_runtime.rewards.server_start",
        "if self._seconds is None and lost and failures >= _MAX_LOST_LOADING:",
        "if False:",
        by=("tests",),
        tests="tests/runtime/rewards/test_scorer.py::"
        "test_a_module_that_ends_the_server_while_it_is_imported_is_named",
    ),
    "an engine may say that any number of its episodes needs no slot": Mutant(
        "rljob_core.planner.engines",
        "min(signal.in_environment, context.most_in_environment(view.slots))",
        "signal.in_environment",
        by=("tests",),
        tests=ENGINES_OF_EPISODES,
    ),
    "an episode that ends leaves a slot that it did not have": Mutant(
        "rljob_core.planner.liveness",
        "view.in_environment = max(0, view.in_environment - 1)",
        "pass",
        by=("tests",),
        tests=ENGINES_OF_EPISODES,
    ),
    "an episode goes on with weights that its engine has left": Mutant(
        "rljob_runtime.roles.rollout.weight_updates",
        "if inflight == Inflight.RESTART and self._episodes is not None:",
        "if False:",
        by=("tests",),
        tests=f"{EPISODES}::test_an_episode_is_of_one_version_where_new_weights_restart",
    ),
    "an episode is as old as its last turn": Mutant(
        "rljob_runtime.roles.rollout.episodes",
        "span=reduce(or_, (span_of(s) for s in segments if s.source is Source.MODEL)),",
        "span=span_of(segments[-1]),",
        by=("tests", "simulation"),
        tests=f"{EPISODES}::test_episodes_are_trained_once_though_engines_die_and_prompts_have_no_game",
        episodes=True,
    ),
    "observations are trained on": Mutant(
        "rljob_runtime.roles.rollout.segments",
        "        np.zeros(size, np.uint8),\n",
        "        np.ones(size, np.uint8),\n",
        by=("tests", "simulation"),
        tests=f"{EPISODES}::test_episodes_are_trained_once_though_engines_die_and_prompts_have_no_game",
        episodes=True,
    ),
    "a later turn may be older than the one before": Mutant(
        "rljob_runtime.roles.rollout.trajectory_publisher",
        "max(limits.oldest, running.oldest)",
        "limits.oldest",
        by=("simulation",),
        episodes=True,
        seed=546,
    ),
    "an episode may last as long as it likes": Mutant(
        "rljob_runtime.roles.rollout.episodes",
        "asyncio.timeout(self._environment.episode_seconds)",
        "asyncio.timeout(None)",
        by=("simulation",),
        episodes=True,
        seed=11,
    ),
    "each attempt plays a game of its own": Mutant(
        "rljob_runtime.roles.rollout.episode_starts",
        "{held_out}/{work.prompt}",
        "{held_out}/{work.prompt}/{work.attempt}",
        by=("simulation",),
        episodes=True,
    ),
    "an answer to another call is taken": Mutant(
        "rljob_runtime.environments.episode_child",
        "        if reply.number != number:\n",
        "        if False:\n",
        by=("simulation",),
        episodes=True,
        seed=11,
    ),
    "what waits for the engine fails with its server": Mutant(
        "rljob_runtime.environments.link",
        "            raise EnvironmentFailed(LOST, message, blamed=False)\n",
        "            raise EnvironmentFailed(LOST, message)\n",
        by=("simulation",),
        episodes=True,
        seed=14,
    ),
    "an environment that cannot be started is to blame": Mutant(
        "rljob_runtime.environments.link",
        "blamed=reason not in _NOT_BLAMED",
        "blamed=True",
        by=("simulation",),
        episodes=True,
        seed=4,
    ),
    "first responses of revoked weights count by their number": Mutant(
        "rljob_runtime.roles.rollout.weight_updates",
        "since=None if revoked else announced.version",
        "since=announced.version",
        by=("tests",),
        tests=f"{OPEN_EPISODES}::"
        "test_revoked_weights_give_back_open_episodes_and_first_responses_of_any_version",
    ),
    "a reward function may run as long as it likes": Mutant(
        "rljob_runtime.rewards.pool",
        "if child_processes.kill(process):",
        "if process:",
        by=("tests",),
        tests=DEAF,
    ),
    "what a reward function has started outlives it": Mutant(
        "rljob_runtime.process.child_processes",
        "for each in (parent, *parent.children(recursive=True)):",
        "for each in (parent,):",
        by=("tests",),
        tests=DEAF,
    ),
    "all that a lost scoring server had has failed": Mutant(
        "rljob_runtime.rewards.scorer",
        "            if not answer.suspect:\n",
        "            if False:\n",
        by=("tests",),
        tests="tests/runtime/rewards/test_scorer.py::test_a_function_that_ends_its_server_costs_its_own_answer",
    ),
    "a function's score may be any finite number": Mutant(
        "rljob_runtime.rewards.registry",
        "if not abs(number) <= LARGEST_SCORE:",
        "if not math.isfinite(number):",
        by=("tests",),
        tests="tests/runtime/rewards/test_registry.py::test_anything_else_fails",
    ),
    "events may hold anything": Mutant(
        "rljob_runtime.roles.coordinator.worker_messages",
        "event = within_limits(COORDINATOR_EVENT.validate_json(message.data))",
        "event = COORDINATOR_EVENT.validate_json(message.data)",
        by=("tests",),
        tests=HOSTILE_WORKERS,
    ),
    "heartbeats may hold anything": Mutant(
        "rljob_runtime.roles.coordinator.worker_messages",
        "signal = within_limits(ENGINE_SIGNAL.validate_json(value))",
        "signal = ENGINE_SIGNAL.validate_json(value)",
        by=("tests",),
        tests=HOSTILE_WORKERS,
    ),
    "events that do not decode end the coordinator": Mutant(
        "rljob_runtime.roles.coordinator.worker_messages",
        '        except (ValidationError, OutOfBounds) as error:\n            self.refusals.add(f"events.',
        '        except OutOfBounds as error:\n            self.refusals.add(f"events.',
        by=("tests",),
        tests=HOSTILE_WORKERS,
    ),
    "an engine that refuses a request ends": Mutant(
        "rljob_runtime.roles.rollout.requests",
        "    except GenerationFailed:\n        raise\n    except Exception as error:\n",
        "    except GenerationFailed as error:\n",
        by=("simulation",),
    ),
    "an engine that hangs says that it is alive": Mutant(
        "rljob_runtime.roles.rollout.hang_watch",
        "                if not busy or now != before or seconds > said:\n",
        "                if True:\n",
        by=("tests", "simulation"),
        tests="tests/runtime/roles/test_hang_watch.py",
    ),
    "a prompt that no engine can be sent is waited for": Mutant(
        "rljob_core.planner.backpressure",
        "        _give_up_prompt(context, prompt, reason, evaluation=measured.evaluation)\n",
        "        pass\n",
        by=("simulation",),
        seed=17,
    ),
    "the trainer takes tokens past the bound": Mutant(
        "rljob_runtime.roles.trainer.micro_batches",
        "        if staleness > work.max_staleness:\n",
        "        if False:\n",
        by=("tests",),
        tests=LABELS,
    ),
    "the trainer takes tokens of weights that do not exist": Mutant(
        "rljob_runtime.roles.trainer.micro_batches",
        "        if not 0 <= span.min <= span.max <= work.step:\n",
        "        if False:\n",
        by=("tests",),
        tests=LABELS,
    ),
    # What only the roles' own code guards.
    "an engine that has drained is left before its results were read": Mutant(
        "rljob_core.planner.engines",
        "        if not has_work:\n",
        "        if True:\n",
        by=("tests",),
        tests="tests/core/test_migration.py::test_a_drained_engine_is_left_once_its_last_results_were_seen",
    ),
    "a response that cannot be is stored": Mutant(
        "rljob_runtime.roles.rollout.trajectory_publisher",
        "fault = output_fault(completed, limits)",
        'fault = ""',
        by=("simulation",),
    ),
    "a loss that is not finite is committed": Mutant(
        "rljob_runtime.roles.trainer.poison",
        '    for what, value in (("the loss", stats.loss), ("the gradient\'s norm", stats.grad_norm)):\n',
        "    stats = replace(stats, loss=_shown(stats.loss))\n    for what, value in ():\n",
        by=("simulation",),
    ),
    "weights that are not finite are committed": Mutant(
        "rljob_runtime.roles.trainer.policy_weights",
        "tensors=finite_tensors(self._backend.tensors()),",
        "tensors=self._backend.tensors(),",
        by=("simulation",),
    ),
    "a micro-batch that exhausts memory is not named": Mutant(
        "rljob_runtime.roles.trainer.trainer",
        "        except (JobFailed, MemoryError) as error:\n",
        "        except JobFailed as error:\n",
        by=("simulation",),
    ),
    "a step is proposed before the log is durable": Mutant(
        "rljob_runtime.roles.trainer.trainer",
        "            await asyncio.to_thread(self._consumed_log.sync)\n",
        "            asyncio.get_running_loop().call_later(5.0, self._consumed_log.sync)\n",
        by=("simulation",),
    ),
    "a line that a power cut has cut off is continued": Mutant(
        "rljob_runtime.roles.trainer.consumed_log",
        "        self._cut_incomplete_line()\n",
        "",
        by=("simulation",),
    ),
    "the removal of a key by the coordinator counts as the engine's death": Mutant(
        "rljob_core.planner.liveness",
        "        if engine not in self.retired:\n",
        "        if True:\n",
        by=("tests",),
        tests=SUSPECTS,
    ),
    "rollouts start below the minVersion": Mutant(
        "rljob_runtime.roles.rollout.assignments",
        "admitted = [w for w in self.waiting if w.min_version <= self._engine.version]\n",
        "admitted = list(self.waiting)\n",
        by=("simulation",),
    ),
    "a micro-batch is fed twice": Mutant(
        "rljob_runtime.roles.trainer.trainer",
        "            and (work.resume, work.step, work.micro_batch)\n"
        "            == (self._resumed, self._policy.version, len(self._step.fed))\n",
        "",
        by=("simulation",),
    ),
    "a gang begins again for a coordinator that was replaced": Mutant(
        "rljob_runtime.roles.trainer.trainer",
        "case Hello() if work.epoch > self._epoch:",
        "case Hello():",
        by=("simulation",),
    ),
    "the coordinator acts before its records are acknowledged": Mutant(
        "rljob_runtime.roles.coordinator.coordinator",
        "            await self._ledger.append(self._planner.state.writer, decision.records)\n",
        "            await self._actions.run(decision.actions, epoch=self._planner.epoch, ledger='')\n"
        "            await self._ledger.append(self._planner.state.writer, decision.records)\n"
        "            return\n",
        by=("simulation",),
    ),
    "leases run on the clock, not on heartbeats": Mutant(
        "rljob_core.planner.heartbeats",
        "    for engine in sites.engines_at(context, site):\n"
        "        if engine in context.sites.losses or not context.liveness.lease_ends(engine):\n",
        "    liveness = context.liveness\n"
        "    gap = max(1, int(context.now - context.__dict__.get('_last', context.now)))\n"
        "    context.__dict__['_last'] = context.now\n"
        "    for engine in sites.engines_at(context, site):\n"
        "        liveness.leases[engine] = liveness.leases.get(engine, 0) + gap - 1\n"
        "        if engine in context.sites.losses or not liveness.lease_ends(engine):\n",
        by=("tests",),
        tests="tests/core/test_planner.py",
    ),
    "appends are not fenced": Mutant(
        "rljob_runtime.messaging.ledger",
        "            expected_sequence=self._end.sequence,\n",
        "            expected_sequence=None,\n",
        by=("simulation",),
    ),
    "the window holds back the current step": Mutant(
        "rljob_core.planner.admission",
        "        if current is None or buffer.step <= current.step or not window:\n",
        "        if current is None or not window:\n",
        by=("tests",),
        tests="tests/core/test_admission.py",
    ),
    "the window holds nothing back": Mutant(
        "rljob_core.planner.admission",
        "        return lacks and self.trainer_starves\n",
        "        return True\n",
        by=("tests",),
        tests="tests/core/test_admission.py",
    ),
    "a trajectory is dispatched without room for it": Mutant(
        "rljob_core.planner.backpressure",
        "        return size <= self.free - earlier - (self.answers if step > self.current else 0.0)\n",
        "        return True\n",
        store=True,
    ),
    "later steps take the room of earlier ones": Mutant(
        "rljob_core.planner.backpressure",
        "earlier = sum(waiting for other, waiting in self.waiting.items() if other < step)",
        "earlier = 0.0",
        store=True,
    ),
    "a held-out answer is dispatched without room for it": Mutant(
        "rljob_core.planner.backpressure",
        "        return size <= self.free - self.waiting.get(self.current, 0.0)\n",
        "        return True\n",
        store=True,
    ),
    "what one round dispatches takes no room": Mutant(
        "rljob_core.planner.dispatch",
        "        self.allowance.spend(step, backpressure.sibling_bytes(context, group_of(sibling.id)))\n",
        "        self.allowance.spend(step, 0)\n",
        store=True,
    ),
    "what is being generated takes no room": Mutant(
        "rljob_core.planner.backpressure",
        "            elif sibling.state is State.GENERATING:\n                found.free -= size\n",
        "            elif sibling.state is State.GENERATING:\n",
        store=True,
    ),
    "what is stored takes no room": Mutant(
        "rljob_core.planner.backpressure",
        "                found.free -= _stored_bytes(context, sibling)\n",
        "                pass\n",
        store=True,
    ),
    "answers that are being generated take no room": Mutant(
        "rljob_core.planner.backpressure",
        "trajectory in run.unscored):\n            found.free -= size\n",
        "trajectory in run.unscored):\n",
        store=True,
    ),
    "a prompt that is not measured is taken for empty": Mutant(
        "rljob_core.planner.backpressure",
        "    if tokens is None:\n        return math.inf\n",
        "    if tokens is None:\n        return 0\n",
        store=True,
    ),
    "no stored group of a later step gives way": Mutant(
        "rljob_core.planner.backpressure",
        "    elif not _generate_later(context, short):\n        _give_up(context, found, short)\n",
        "",
        store=True,
    ),
    "a step that does not fit waits for ever": Mutant(
        "rljob_core.planner.backpressure", "if room.heartbeats > STUCK_HEARTBEATS:", "if False:", store=True
    ),
    "leases at a site count own heartbeats": Mutant(
        "rljob_core.planner.sites",
        "engine for engine in known if context.site_of(engine) == site",
        "engine for engine in known if site in (str(), context.site_of(engine))",
        by=("tests",),
        tests=SITES,
    ),
    "a loss at a site overtakes what the site had stored": Mutant(
        "rljob_core.planner.site_marks",
        "    if site not in context.sites.links or not context.has_work(engine):\n        return False\n",
        "    return False\n",
        by=("model", "simulation", "tests"),
        tests=SITE_MARKS,
        sites=True,
        walk=821,
        slow=True,
        seed=108,
    ),
    "a drained engine's results are given to others while they are behind a backlog": Mutant(
        "rljob_core.planner.engines",
        "    if not site_marks.await_results(context, engine, drained=True):\n",
        "    if True:\n",
        by=("tests",),
        tests=SITE_MARKS,
    ),
    "progress of a site is looked up before it is here": Mutant(
        "rljob_core.planner.site_marks",
        "    if not site or not context.sites.reaches(site):  # what",
        "    if True:  # what",
        by=("tests",),
        tests=SITE_MARKS,
    ),
    "lookups wait for a site that is away": Mutant(
        "rljob_core.planner.sites",
        "            site_marks.on_away(context, site)\n",
        "",
        by=("tests",),
        tests=SITE_MARKS,
    ),
    "lookups wait forever for a site that returns no marks": Mutant(
        "rljob_core.planner.site_marks",
        "    _find(context, [h for h in context.lookups.held if h.beats >= PROGRESS_HEARTBEATS])\n",
        "",
        by=("tests",),
        tests=SITE_MARKS,
    ),
    "a loss waits forever for a site that returns no marks": Mutant(
        "rljob_core.planner.site_marks",
        " or loss.beats >= GRACE_HEARTBEATS)",
        ")",
        by=("tests",),
        tests=SITE_MARKS,
    ),
    "a mark that was lost is waited for": Mutant(
        "rljob_core.planner.site_links",
        " or self.beats >= MARK_HEARTBEATS\n",
        "\n",
        by=("tests",),
        tests=SITE_MARKS,
    ),
    "a mark is sent while another is on its way": Mutant(
        "rljob_core.planner.site_links",
        "(self.wanted > self.sent and is_back)",
        "self.wanted > self.sent",
        by=("tests",),
        tests=SITE_MARKS,
    ),
    "a mark that was lost in a cut is sent again late": Mutant(
        "rljob_core.planner.sites",
        "link.reached, link.marks.beats = True, MARK_HEARTBEATS",
        "link.reached = True",
        by=("tests",),
        tests=SITE_MARKS,
    ),
    "a site says that marks have come back which were not sent": Mutant(
        "rljob_core.planner.site_marks",
        "min(seen.number, link.marks.sent)",
        "seen.number",
        by=("tests",),
        tests=SITE_MARKS,
    ),
    "what is said of a death is forgotten while its results are awaited": Mutant(
        "rljob_core.planner.heartbeats",
        "        if engine in context.sites.losses or not context.liveness",
        "        if not context.liveness",
        by=("tests",),
        tests=SITE_MARKS,
    ),
    "an engine that signals again is lost all the same": Mutant(
        "rljob_core.planner.engines",
        "    context.sites.losses.pop(signal.engine, None)  # it lives\n",
        "",
        by=("tests",),
        tests=SITE_MARKS,
    ),
    "beats that come at once end leases": Mutant(
        "rljob_core.planner.heartbeats",
        "    if is_counted:\n        return\n",
        "",
        by=("tests",),
        tests=SITE_MARKS,
    ),
    "a beat from before a cut says that the link works": Mutant(
        "rljob_core.planner.heartbeats",
        " or beat.age >= AWAY_HEARTBEATS:",
        ":",
        by=("tests",),
        tests=SITE_MARKS,
    ),
    "an engine of a removed pool is at the hub": Mutant(
        "rljob_core.planner.sites",
        "    view.site = signal.site\n",
        '    view.site = ""\n',
        by=("tests",),
        tests=SITE_MARKS,
    ),
    "the sites of what is being generated are not heard": Mutant(
        "rljob_core.planner.planner",
        "        context.sites.meet(sibling.site)  #",
        "        pass  #",
        by=("tests",),
        tests=SITE_MARKS,
    ),
    "an engine may claim to be at any number of sites": Mutant(
        "rljob_core.planner.engines",
        "        if not context.sites.may_meet(signal.site):\n",
        "        if False:\n",
        by=("tests",),
        tests=SITE_MARKS,
    ),
    "a site is never forgotten": Mutant(
        "rljob_core.planner.heartbeats",
        "    sites.forget_left(context)\n",
        "",
        by=("tests",),
        tests=SITE_MARKS,
    ),
    "a site is away though its beats come back": Mutant(
        "rljob_core.planner.sites",
        "    link.silent, link.met = 0, True\n",
        "    link.met = True\n",
        by=("tests",),
        tests=SITES,
    ),
    "a site that is reached loses its work where somebody says that it is lost": Mutant(
        "rljob_core.planner.heartbeats",
        "        if context.sites.is_away(site):\n            _give_up(context, site)\n",
        "        _give_up(context, site)\n",
        by=("tests",),
        tests=SITES,
    ),
    "the work of a site that is lost waits for its grace": Mutant(
        "rljob_core.planner.sites",
        "            if site in context.sites.lost:\n                over.append(site)\n",
        "",
        by=("tests",),
        tests=SITES,
    ),
    "a site that is away is sent work": Mutant(
        "rljob_core.planner.engine_choice",
        "return self.reachable and not self.draining",
        "return not self.draining",
        by=("simulation", "tests"),
        tests=SITES,
        sites=True,
    ),
    "a site is sent work before a beat has come back": Mutant(
        "rljob_core.planner.site_links",
        "    reached: bool = False\n",
        "    reached: bool = True\n",
        by=("tests",),
        tests=SITES,
    ),
    "a site counts as reached while it is away": Mutant(
        "rljob_core.planner.sites",
        "            link.reached = False\n",
        "",
        by=("tests",),
        tests=SITES,
    ),
    "a site that is reached again gets nothing": Mutant(
        "rljob_core.planner.sites",
        "            view.reachable, view.heartbeats_behind = reachable, 0\n",
        "            view.reachable, view.heartbeats_behind = False, 0\n",
        by=("tests",),
        tests=SITES,
    ),
    "an engine that is away counts in the load": Mutant(
        "rljob_core.planner.fleet_load",
        "        if not view.reachable:\n            return\n",
        "",
        by=("tests",),
        tests=SITES,
    ),
    "all that a site has is given to others": Mutant(
        "rljob_core.planner.sites",
        "groups = False, buffer.groups(EntryState.RESERVED)\n",
        "groups = False, list(context.state.groups)\n",
        by=("simulation", "tests"),
        tests=SITES,
        sites=True,
    ),
    "a trial at a site that is away keeps the current step's suspects from theirs": Mutant(
        "rljob_core.planner.sites",
        "    if awaits_trial:  # suspects",
        "    if False:  # suspects",
        by=("tests",),
        tests=SITES,
    ),
    "held-out answers wait for an engine that has no weights": Mutant(
        "rljob_core.planner.sites",
        "    return lacks or context.sites.is_away(",
        "    return context.sites.is_away(",
        by=("tests",),
        tests=SITES,
    ),
    "an engine that has drained at a site has died": Mutant(
        "rljob_core.planner.heartbeats",
        "        if site and engine in context.liveness.leaving:\n",
        "        if False:\n",
        by=("tests",),
        tests=SITES,
    ),
    "what a site has is given to others before the trainer waits": Mutant(
        "rljob_core.planner.sites",
        "if buffer is not None and context.trainer_waits and",
        "if buffer is not None and",
        by=("tests",),
        tests=SITES,
    ),
    "what a site has is given to others when there are none": Mutant(
        "rljob_core.planner.sites",
        "context.trainer_waits and _others_admit(context, buffer.min_version):",
        "context.trainer_waits:",
        by=("tests",),
        tests=SITES,
    ),
    "nothing that a site has is given to others": Mutant(
        "rljob_core.planner.sites",
        "            if context.sites.is_away(context.site_of(sibling.engine)):\n",
        "            if False:\n",
        by=("tests",),
        tests=SITES,
    ),
    "a site is to blame for being away": Mutant(
        "rljob_core.planner.sites",
        "context, sibling, reason, failure=False, carries=",
        "context, sibling, reason, failure=False, died=True, carries=",
        by=("simulation", "tests"),
        tests=SITES,
        sites=True,
    ),
    "the work of a site that is away is kept forever": Mutant(
        "rljob_core.planner.sites",
        "        elif link.silent == context.sites.kept(site):\n",
        "        elif False:\n",
        by=("tests",),
        tests=SITES,
    ),
    "a site makes marks of another one": Mutant(
        "rljob_core.site_border",
        '    return before is None or not before.startswith(f"to.{site}.")\n',
        "    return before is None\n",
        by=("tests",),
        tests=SITE_BORDER,
    ),
    "engines go on with what others have": Mutant(
        "rljob_core.planner.sites",
        "                endings.cancel(context, engine, attempts, site=site)\n",
        "",
        by=("tests",),
        tests=SITES,
    ),
    "a site that is away is sent cancellations": Mutant(
        "rljob_core.planner.endings",
        "    if not context.sites.reaches(site):\n",
        "    if False:\n",
        by=("tests",),
        tests=SITES,
    ),
    "an engine that is given up while away goes on when it is back": Mutant(
        "rljob_core.planner.engines",
        "    had += context.sites.pop_cancelled(engine)\n",
        "",
        by=("tests",),
        tests=SITES,
    ),
    "a site is not sent what an earlier coordinator may not have sent": Mutant(
        "rljob_core.planner.sites",
        "        if is_first:  #",
        "        if False:  #",
        by=("tests",),
        tests=SITES,
    ),
    "work is sent again to a site that cannot be reached": Mutant(
        "rljob_core.planner.dispatch",
        "for name in filter(context.reaches, [engine] if engine else list(context.state.generating)):",
        "for name in [engine] if engine else list(context.state.generating):",
        by=("tests",),
        tests=SITES,
    ),
    "the ledger does not say where engines are": Mutant(
        "rljob_core.planner.dispatch",
        "Dispatched(ids, attempts, engine, min_version, inherited, context.site_of(engine))",
        "Dispatched(ids, attempts, engine, min_version, inherited)",
        by=("simulation", "tests"),
        tests=SITES,
        sites=True,
    ),
    "engines that are away reject weights": Mutant(
        "rljob_core.planner.heartbeats",
        "v.version < version and v.reachable and v.stuck",
        "v.version < version and v.stuck",
        by=("tests",),
        tests=SITES,
    ),
    "an engine that awaits weights is sent its work again": Mutant(
        "rljob_core.planner.heartbeats",
        "    waits = view.draining or view.stuck.startswith(AWAITED)\n",
        "    waits = view.draining\n",
        by=("tests",),
        tests=SITES,
    ),
    "what cannot begin for want of weights is waited for": Mutant(
        "rljob_core.planner.sites",
        "            elif view is not None and view.lacks_weights_for(sibling.min_version):\n",
        "            elif False:\n",
        by=("tests",),
        tests=SITES,
    ),
    "progress is resumed at sites": Mutant(
        "rljob_core.planner.migration",
        "e for e in engines if not e.site and (",
        "e for e in engines if (",
        by=("tests",),
        tests=SITES,
    ),
    "what would start over moves to a site": Mutant(
        "rljob_core.planner.balancing",
        " and not v.stuck and not v.site\n",
        " and not v.stuck\n",
        by=("tests",),
        tests=SITES,
    ),
    "siblings are recalled from engines that are away": Mutant(
        "rljob_core.planner.suspects",
        " and not begun and context.reaches(sibling.engine):",
        " and not begun:",
        by=("tests",),
        tests=SITES,
    ),
    "suspects are tried where they cannot be sent": Mutant(
        "rljob_core.planner.suspects",
        "            if members and engine.takes_work:\n",
        "            if members and not engine.draining:\n",
        by=("tests",),
        tests=SITES,
    ),
    "what is held away narrows the window": Mutant(
        "rljob_core.planner.dispatch",
        "        begun = len(outbox.siblings) - away\n",
        "        begun = len(outbox.siblings)\n",
        by=("tests",),
        tests=SITES,
    ),
    "a pool that is added is at the hub": Mutant(
        "rljob_core.planner.spec_change",
        "    context.sites.follow(new.rollout.sites)\n",
        "",
        by=("tests",),
        tests=SITES,
    ),
    "weights that are not there yet are rejected at a site": Mutant(
        "rljob_runtime.roles.rollout.weight_updates",
        "awaited = self._waits_for_copies and isinstance",
        "awaited = False and isinstance",
        by=("tests",),
        tests=SITE_ROLES,
    ),
    "weights that do not verify are waited for at a site": Mutant(
        "rljob_runtime.roles.rollout.weight_updates",
        "isinstance(error, (WeightsMissing, StoreUnavailable))",
        "isinstance(error, (WeightsRejected, StoreUnavailable))",
        by=("tests",),
        tests=SITE_ROLES,
    ),
    "an engine at a site gives back what waits for weights": Mutant(
        "rljob_runtime.roles.rollout.weight_updates",
        "        if not awaited:\n            await self._assignments",
        "        if True:\n            await self._assignments",
        by=("tests",),
        tests=SITE_ROLES,
    ),
    "a site that the spec does not name is sent no beats": Mutant(
        "rljob_runtime.roles.coordinator.inputs",
        "for site in sorted(self._sites()):",
        "for site in sorted(self._config.spec.rollout.datacenters):",
        by=("tests",),
        tests=SITE_ROLES,
    ),
    "an engine at a site waits for room for its last word for ever": Mutant(
        "rljob_runtime.roles.rollout.trajectory_publisher",
        "        self._patience = LAST_WORD_SECONDS if site else None\n",
        "        self._patience = None\n",
        by=("tests",),
        tests=SITE_ROLES,
    ),
    "another coordinator's beats count": Mutant(
        "rljob_runtime.roles.coordinator.inputs",
        '                sent = own_number(value.decode(errors="replace"), self._instance)\n',
        "                sent = int(value[-1:].isdigit())\n",
        by=("tests",),
        tests=SITE_ROLES,
    ),
    "work is left behind at the site of an engine that is gone": Mutant(
        "rljob_runtime.roles.coordinator.actions",
        "                await store.purge(Channel.WORK, work_suffix(action.engine, site=action.site))\n",
        '                await store.purge(Channel.WORK, f"engine.{action.engine}")\n',
        by=("tests",),
        tests=SITE_ROLES,
    ),
    "what a site keeps waiting is displaced like all else": Mutant(
        "rljob_core.planner.buffers",
        "moves(buffers, kept)",
        "moves(buffers)",
        by=("tests",),
        tests=SITES,
    ),
}
