"""Holds back what the trajectory stream has no room for, so that whatever is dispatched can also be stored.

A trajectory counts from its dispatch until its group ends: while it is generated, as the most that its prompt and
`maxTokens` can take; once it is stored, as what it takes. Both together never pass the stream's limit [room]. A
trajectory of a later buffer is dispatched only if, beside it, everything that the earlier buffers have yet to dispatch
would fit: the trainer never waits for a trajectory whose place was given to a later one.

What can make the current buffer short of room nevertheless is a larger prompt that replaces another one, or a stored
trajectory that must be generated again. Then the stream is asked to grow; if it cannot, stored groups of the newest
buffers are generated again later. If not even that makes room for one step, the job ends and says how much it needs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from rljob_core.actions import GrowStream, MeasurePrompts, PromptsMeasured, StreamLimit, Summary
from rljob_core.failures import Failure, Reason
from rljob_core.job_state import GroupState
from rljob_core.planner import endings
from rljob_core.planner.context import PlannerContext
from rljob_core.planner.evaluation import prompt_of
from rljob_core.planner.metrics_line import publish
from rljob_core.records import Generated
from rljob_core.streams_budget import largest_payload_bytes, payload_bytes
from rljob_core.trajectory import State, group_id

UNSENDABLE = Reason.PROMPT_UNSENDABLE
"""Why a group ends whose prompt cannot be sent to any engine: too long, no text, or its data raises an error."""
STUCK_HEARTBEATS = 30
"""Own heartbeats (one a second) for which a step that does not fit waits for a larger stream before the job ends."""


@dataclass(slots=True)
class Allowance:
    """What one round of dispatch may send; all in bytes.

    Attributes:
        free: of the stream, beside what is stored or being generated; infinite without a limit.
        current: the step whose buffer is trained next.
        waiting: what each buffer's trajectories that wait for an engine will take at most, by step.
        answers: what the held-out answers that wait will take at most.
        generating: what is being generated, and will take less once it is stored.
    """

    free: float
    current: int
    waiting: dict[int, float] = field(default_factory=dict)
    answers: float = 0.0
    generating: float = 0.0

    def admits(self, step: int, size: float) -> bool:
        """Whether a trajectory of a step's buffer fits beside all that goes first."""
        earlier = sum(waiting for other, waiting in self.waiting.items() if other < step)
        return size <= self.free - earlier - (self.answers if step > self.current else 0.0)

    def admits_answer(self, size: float) -> bool:
        """Whether a held-out answer fits; the current step goes first, and later steps wait for the answer."""
        return size <= self.free - self.waiting.get(self.current, 0.0)

    def spend(self, step: int, size: float) -> None:
        """Count a trajectory of a step's buffer as dispatched."""
        self.free -= size
        self.waiting[step] = self.waiting.get(step, 0.0) - size

    def spend_answer(self, size: float) -> None:
        """Count a held-out answer as dispatched."""
        self.free -= size
        self.answers -= size


def on_stream_limit(context: PlannerContext, observed: StreamLimit) -> None:
    """The stream's limit was read, at the start or because it was to grow."""
    room = context.room
    news = observed.refused and not room.refused
    room.limit, room.refused, room.asking = observed.bytes, observed.refused, False
    if news:
        # The operator may enlarge the stream where this coordinator may not.
        publish(context)


def on_prompts_measured(context: PlannerContext, measured: PromptsMeasured) -> None:
    """The lengths of prompts are known."""
    lengths = dict(zip(measured.prompts, measured.tokens, strict=True))
    if measured.evaluation:
        context.room.measured({}, lengths)
    else:
        context.room.measured({group_id(prompt): tokens for prompt, tokens in lengths.items()}, {})
    for prompt, reason in measured.unsendable.items():
        _give_up_prompt(context, prompt, reason, evaluation=measured.evaluation)


def _give_up_prompt(context: PlannerContext, prompt: int, reason: str, *, evaluation: bool) -> None:
    """End what waits for engines: none can be sent this prompt."""
    group = context.state.groups.get(group_id(prompt))
    if evaluation and context.evaluation.sets:
        # An engine may have an answer: the prompt was measured, and raised when it was to be sent.
        endings.give_up_answers(context, prompt, f"{UNSENDABLE}: {reason}")
    elif not evaluation and group is not None:
        # A row that could be read before may raise when it is read again, by the next coordinator, for instance.
        unsent = [sibling.id for sibling in group.siblings if sibling.payload is None]
        if not unsent:
            return  # all of it is generated: no engine needs the prompt
        causes: dict[str, str] = dict.fromkeys(unsent, UNSENDABLE)
        said = reason[: endings.DETAIL_CHARACTERS]
        detail = f"prompt {prompt} ({group.id}): {UNSENDABLE}: {said}: mend its row in its place"
        endings.abort_group(context, group.id, "PromptExhausted", causes, detail=detail)


def on_heartbeat(context: PlannerContext) -> None:
    """A step that does not fit waits for a larger stream, but not forever."""
    room = context.room
    if room.heartbeats and context.state.finished is None:
        room.heartbeats += 1
        room.wanted = 0  # the stream may have been enlarged by somebody else


def measure_prompts(context: PlannerContext) -> None:
    """Ask for the lengths of prompts that were planned; what is not measured is not dispatched."""
    if not context.room.limit:
        return
    state = context.state
    if groups := context.room.unmeasured(state):
        context.act(MeasurePrompts(tuple(state.groups[group].prompt for group in groups)))
    if prompts := context.room.unmeasured_held_out(context.evaluation):
        context.act(MeasurePrompts(tuple(prompts), evaluation=True))


def sibling_bytes(context: PlannerContext, group: str) -> float:
    """What one sibling of a group takes at most; infinite while its prompt is not measured."""
    return _largest(context, context.room.prompts.get(group))


def answer_bytes(context: PlannerContext, trajectory: str) -> float:
    """Largest size of a held-out answer in bytes; infinite while its prompt is not measured."""
    return _largest(context, context.room.held_out.get(prompt_of(trajectory)))


def _largest(context: PlannerContext, tokens: int | None) -> float:
    if not context.room.limit:
        return 0
    if tokens is None:
        return math.inf
    return largest_payload_bytes(context.spec, prompt_tokens=tokens)


def allowance(context: PlannerContext) -> Allowance:
    """What may be dispatched now, by all that is stored, being generated, or waiting."""
    state, run = context.state, context.evaluation
    found = Allowance(math.inf, state.version)
    if _is_ample(context):
        return found
    found.free = context.room.limit - context.messages.payloads.idle_bytes
    for group in state.groups.values():
        size, step = sibling_bytes(context, group.id), state.buffers.buffer_of(group.id).step
        for sibling in group.siblings:
            if sibling.payload is not None:
                found.free -= stored_bytes(context, sibling.payload)
            elif sibling.state is State.GENERATING:
                found.free -= size
                found.generating += size
            else:
                found.waiting[step] = found.waiting.get(step, 0.0) + size
    for trajectory in run.attempts:
        size = answer_bytes(context, trajectory)
        if trajectory in run.engines or trajectory in run.unscored:
            found.free -= size
            found.generating += size
        else:
            found.answers += size
    return found


def _is_ample(context: PlannerContext) -> bool:
    room, idle = context.room, context.messages.payloads.idle_bytes
    return not room.limit or room.is_ample(context.state, context.spec, context.asked, idle=idle)


def stored_bytes(context: PlannerContext, payload: Generated | Summary) -> int:
    """What a payload that is stored takes."""
    prompt_tokens, response_tokens = payload.tokens - payload.response_tokens, payload.response_tokens
    turns = context.spec.rollout.max_turns
    return payload_bytes(prompt_tokens=prompt_tokens, response_tokens=response_tokens, turns=turns)


def make_room(context: PlannerContext) -> None:
    """If the stream has no room for all that is planned, ask for more; if the current step lacks room, make some."""
    room = context.room
    if _is_ample(context):
        room.heartbeats = 0
        return
    found = allowance(context)
    planned = sum(found.waiting.values()) + found.answers
    if math.isinf(planned - found.free) or planned <= found.free:
        room.heartbeats = 0
        return
    taken, current = room.limit - found.free, found.waiting.get(found.current, 0.0)
    if room.may_ask_for(math.ceil(taken + planned), version=context.state.version):
        context.act(GrowStream(room.wanted, math.ceil(taken + current), _waiting_in_words(context)))
        return
    short = current - found.free
    if room.asking:
        return
    if short <= 0 or not room.refused:
        room.heartbeats = 0
    elif not _generate_later(context, short):
        _give_up(context, found, short)


def _generate_later(context: PlannerContext, short: float) -> bool:
    """Have stored groups of the newest buffers generated again until the current one has room; whether any was."""
    state, found = context.state, False
    for buffer in sorted(state.buffers.buffers.values(), key=lambda buffer: -buffer.step):
        if buffer.step == state.version:
            break
        for name in reversed(list(buffer.entries)):
            for sibling in state.groups[name].siblings:
                if sibling.payload is not None:
                    short -= stored_bytes(context, sibling.payload)
                    endings.reset_sibling(context, sibling, "NoRoom", failure=False)
                    found = True
            if short <= 0:
                return True
    return found


def _give_up(context: PlannerContext, found: Allowance, short: float) -> None:
    """End the job if nothing will make room for what the current step has yet to generate."""
    room, state, buffer = context.room, context.state, context.state.buffers.current
    waiting = [
        sibling_bytes(context, group)
        for group in (buffer.entries if buffer is not None else ())
        for sibling in state.groups[group].siblings
        if sibling.state is State.RESERVED
    ]
    # What is being generated takes less once it is stored, or makes room when it ends.
    if found.generating or min(waiting) <= found.free:
        room.heartbeats = 0
        return
    room.heartbeats = max(room.heartbeats, 1)
    if room.heartbeats > STUCK_HEARTBEATS:
        data, needed = context.spec.data, room.limit + short
        detail = (
            f"the trajectory stream holds {_megabytes(room.limit)} MB and step {state.version} needs "
            f"{_megabytes(needed)} MB ({room.refused}): give the NATS server or its account more storage, or lower "
            f"spec.rollout.sampling.maxTokens ({context.spec.rollout.sampling.max_tokens}). Shorter prompts or a "
            f"smaller step (spec.data.promptsPerStep is {data.prompts_per_step}, groupSize {data.group_size}) need "
            "another job: spec.data is immutable"
        )
        endings.finish_job(context, Failure(Reason.STREAM_TOO_SMALL, detail))


def _waiting_in_words(context: PlannerContext) -> str:
    """Who waits for room, for people."""
    groups: list[GroupState] = list(context.state.groups.values())
    waiting = sum(s.state is State.RESERVED for group in groups for s in group.siblings)
    longest = max((context.room.prompts.get(group.id, 0) for group in groups), default=0)
    return (
        f"{waiting} trajectories of the steps from {context.state.version} on wait for room in the trajectory stream "
        f"(prompts of up to {longest} tokens, spec.rollout.sampling.maxTokens "
        f"{context.spec.rollout.sampling.max_tokens})"
    )


def _megabytes(size: float) -> str:
    return f"{size / (1 << 20):.3g}"
