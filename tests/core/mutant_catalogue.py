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
        by: the checks that detect the mutant: the model of `interleavings`, or the simulation of whole jobs.
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
    sites: bool = False
    episodes: bool = False


MUTANTS: dict[str, Mutant] = {
    "a displaced group may land past its bound": Mutant(
        "rljob_core.planner.buffers",
        "if buffers.buffers[source].admits(base)), None",
        "), None",
        by=("model", "simulation"),
    ),
    "results of an old attempt are taken": Mutant(
        "rljob_core.planner.results",
        "if sibling is None or sibling.attempt != summary.attempt:\n        context.messages.payloads.release(key)",
        "if sibling is None:\n        context.messages.payloads.release(key)",
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
        "rljob_core.planner.spec_change",
        'context.spec = context.spec.model_copy(update={"pipeline": pipeline})',
        'context.spec = context.spec.model_copy(update={"pipeline": pipeline})\n'
        "    for buffer in context.state.buffers.buffers.values():\n"
        "        buffer.max_staleness = pipeline.bound",
        by=("model", "simulation"),
    ),
    "a change of the bound is not written down": Mutant(
        "rljob_core.planner.spec_change",
        "if last is None or replace(last, step=record.step) != record:",
        "if last is None:",
        by=("model", "simulation"),
    ),
    "a change of the spec is not written down": Mutant(
        "rljob_core.planner.spec_change",
        "    context.emit(spec_in_force(new))\n",
        "",
        by=("simulation",),
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
        "                self._act(action, self.planner.epoch, self._digest(action))\n"
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
    "what is quarantined is sent out beside other work": Mutant(
        "rljob_core.planner.dispatch",
        "group.id in trial.groups or ",
        "",
        walk=7,
        poison=True,
    ),
    "an engine that tries what is quarantined takes other work": Mutant(
        "rljob_core.planner.quarantine",
        "        return Trial(apart=tried_at, groups=groups)\n",
        "        return Trial(groups=groups)\n",
        walk=10,
        poison=True,
    ),
    "a cohort that killed its engine is tried again as it was": Mutant(
        "rljob_core.planner.quarantine",
        "        cohorts.insert(*_halves(lost))\n",
        "        cohorts.insert(lost)\n",
        walk=28,
        poison=True,
    ),
    "a death with one quarantined group alone is nobody's failure": Mutant(
        "rljob_core.planner.engines",
        "if alone and quarantine.is_tried(context, s)]",
        "if False]",
        walk=0,
        poison=True,
    ),
    "the early trial is sent out beside other work": Mutant(
        "rljob_core.planner.quarantine",
        "    found |= {sibling.id: _engine(sibling) for sibling in early_trial.members(context)}\n",
        "",
        walk=8,
        poison=True,
    ),
    "all engines wait for what is quarantined": Mutant(
        "rljob_core.planner.quarantine",
        "apart=frozenset() if waits else frozenset({engine.engine}), groups",
        "apart=frozenset(context.liveness.engines), groups",
        walk=16,
        poison=True,
    ),
    "a score that no sum can hold is taken": Mutant(
        "rljob_core.planner.results",
        "    if not abs(result.reward) <= spec.reward.largest * LARGEST_SCORE + penalty:\n",
        "    if False:\n",
        by=("simulation",),
    ),
    "tokens of weights that do not exist are taken": Mutant(
        "rljob_core.planner.results",
        "    if span.max > committed:\n",
        "    if False:\n",
        by=("simulation",),
    ),
    "an episode is as old as its last turn": Mutant(
        "rljob_runtime.roles.rollout.episodes",
        "span=reduce(or_, (span_of(s) for s in segments if s.source is Source.MODEL)),",
        "span=span_of(segments[-1]),",
        by=("simulation",),
        episodes=True,
    ),
    "observations are trained on": Mutant(
        "rljob_runtime.roles.rollout.running",
        "        np.zeros(size, np.uint8),\n",
        "        np.ones(size, np.uint8),\n",
        by=("simulation",),
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
        by=("simulation",),
    ),
    "a prompt that no engine can be sent is waited for": Mutant(
        "rljob_core.planner.backpressure",
        "        _give_up_prompt(context, prompt, reason, evaluation=measured.evaluation)\n",
        "        pass\n",
        by=("simulation",),
        seed=17,
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
    "appends are not fenced": Mutant(
        "rljob_runtime.messaging.ledger",
        "            expected_sequence=max(self._end.sequence, self._lost),\n",
        "            expected_sequence=None,\n",
        by=("simulation",),
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
        "                found.free -= stored_bytes(context, sibling.payload)\n",
        "                pass\n",
        store=True,
    ),
    "answers that are being generated take no room": Mutant(
        "rljob_core.planner.backpressure",
        "trajectory in run.unscored:\n            found.free -= size\n",
        "trajectory in run.unscored:\n",
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
    "a loss at a site overtakes what the site had stored": Mutant(
        "rljob_core.planner.site_marks",
        "    if site not in context.sites.links or not context.has_work(engine):\n        return False\n",
        "    return False\n",
        by=("model", "simulation"),
        sites=True,
        walk=821,
        slow=True,
        seed=108,
    ),
    "a site that is away is sent work": Mutant(
        "rljob_core.planner.engine_choice",
        "return self.reachable and not self.draining",
        "return not self.draining",
        by=("simulation",),
        sites=True,
    ),
    "all that a site has is given to others": Mutant(
        "rljob_core.planner.sites",
        "groups = False, buffer.groups(EntryState.RESERVED)\n",
        "groups = False, list(context.state.groups)\n",
        by=("simulation",),
        sites=True,
    ),
    "a site is to blame for being away": Mutant(
        "rljob_core.planner.sites",
        "context, sibling, reason, failure=False, carries=",
        "context, sibling, reason, failure=False, died=True, carries=",
        by=("simulation",),
        sites=True,
    ),
    "the ledger does not say where engines are": Mutant(
        "rljob_core.planner.dispatch",
        "Dispatched(ids, attempts, engine, min_version, inherited, context.site_of(engine))",
        "Dispatched(ids, attempts, engine, min_version, inherited)",
        by=("simulation",),
        sites=True,
    ),
}
