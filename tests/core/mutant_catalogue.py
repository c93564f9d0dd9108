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


SUSPECTS = "tests/core/test_suspects.py"
LOST_LEDGER = "tests/runtime/roles/test_lost_ledger.py"
CAREFUL_START = "tests/runtime/roles/test_careful_start.py"
REPLICATED = (
    "tests/contract/test_replicated_streams.py::"
    "test_a_server_that_is_behind_does_not_say_that_messages_are_gone"
)
DEAF = "tests/runtime/rewards/test_process.py::test_a_function_that_hears_no_signal_costs_its_chunk_nothing"
HOSTILE_WORKERS = "tests/runtime/roles/test_hostile_workers.py"
LABELS = "tests/runtime/roles/test_staleness_of_payloads.py"

MUTANTS: dict[str, Mutant] = {
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
        "rljob_core.planner.engines", "        dispatch.resend(context, view.engine)\n", ""
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
        walk=1303,
        poison=True,
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
        "missing = [sequence for sequence, message in found.items() if message is None]",
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
    "a reward function may run as long as it likes": Mutant(
        "rljob_runtime.rewards.pool",
        "                    pool_process.kill(process)\n",
        "",
        by=("tests",),
        tests=DEAF,
    ),
    "what a reward function has started outlives it": Mutant(
        "rljob_runtime.rewards.pool_process",
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
        "rljob_runtime.roles.rollout.assignments",
        "        except GenerationFailed:\n            raise\n        except Exception as error:\n",
        "        except GenerationFailed as error:\n",
        by=("simulation",),
    ),
    "an engine that hangs says that it is alive": Mutant(
        "rljob_runtime.roles.rollout.hang_watch",
        "            if not busy or now != before:\n",
        "            if True:\n",
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
    "a response that cannot be is stored": Mutant(
        "rljob_runtime.roles.rollout.trajectory_publisher",
        "fault = output_fault(completed, self._progress.limits(completed.id, running.work))",
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
        "rljob_runtime.roles.trainer.micro_batches",
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
        "self._careful.admit([w for w in self.waiting if w.min_version <= self._engine.version])\n",
        "self._careful.admit(self.waiting)\n",
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
        "rljob_core.planner.engines",
        "    for engine in sorted(context.state.generating.keys() | liveness.engines.keys()):\n"
        "        if liveness.lease_ends(engine):\n",
        "    gap = max(1, int(context.now - context.__dict__.get('_last', context.now)))\n"
        "    context.__dict__['_last'] = context.now\n"
        "    for engine in sorted(context.state.generating.keys() | liveness.engines.keys()):\n"
        "        liveness.leases[engine] = liveness.leases.get(engine, 0) + gap - 1\n"
        "        if liveness.lease_ends(engine):\n",
        by=("simulation",),
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
        "                found.free -= _stored_bytes(sibling)\n",
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
}
