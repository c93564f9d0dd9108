"""The contract of the port `TrainerBackend`, on one rank."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from rljob_contract.backend_steps import (
    Tolerance,
    Weights,
    distance,
    feed,
    finite,
    require_equal,
    require_same_statistics,
    require_same_step,
    stored,
    tolerance_of,
    weights,
)
from rljob_contract.check import Contract, ContractBroken, require
from rljob_contract.samples import random_samples
from rljob_core.errors import JobFailed, WeightsRejected
from rljob_core.ports import TrainerBackend, TrainingSample
from rljob_core.trajectory import VersionSpan


@dataclass(frozen=True, slots=True)
class BackendSubject:
    """Backends of one kind, with one configuration.

    Attributes:
        create: a new one with the initial model's weights.
        folder: makes an empty folder.
        dtype: what they compute in, as `float32`; None takes it from the weights that they publish.
    """

    create: Callable[[], TrainerBackend]
    folder: Callable[[], Path]
    dtype: str | None = None

    def tolerance(self, held: Weights) -> Tolerance:
        """How much two steps of a backend with these weights may differ."""
        return tolerance_of(held, self.dtype)


BACKEND = Contract[BackendSubject]()


# ---------------------------------------------------------------------------------------------------- the checks


@BACKEND.check
def a_step_changes_the_weights(subject: BackendSubject) -> None:
    """A step changes the weights, and they stay finite.

    finish_step() divides what was accumulated by the step's normalisers, clips, and takes the optimizer step.
    """
    backend = subject.create()
    before = weights(backend)
    stats = feed(backend, [random_samples(8)])
    after = weights(backend)
    require(distance(after, before) > 0, "all weights are what they were")
    require(finite(after), "some weights are not finite")
    require(
        math.isfinite(stats.loss) and math.isfinite(stats.grad_norm),
        f"its statistics are not finite: {stats}",
    )


@BACKEND.check
def the_loss_falls(subject: BackendSubject) -> None:
    """The loss falls over steps on the same samples (a backend that reports no loss is not checked).

    The loss rewards tokens of positive advantage; look for a sign, or for weights that the forward does not use.
    """
    backend = subject.create()
    samples = random_samples(8)
    losses = [feed(backend, [samples], step=step).loss for step in range(6)]
    require(
        not any(losses) or losses[-1] < losses[0],
        f"over six steps it went from {losses[0]:g} to {losses[-1]:g}",
    )


@BACKEND.check
def micro_batches_add_up_to_the_whole_batch(subject: BackendSubject) -> None:
    """A step is the same however its batch is cut into micro-batches.

    Accumulate sums, and divide once in finish_step() by what is known only then: sequences or tokens of the whole step.
    Where a backend publishes in another dtype than it computes in, name the latter with --dtype.
    """
    # All of one sign, so that the loss is not what little is left of a sum; no two alike, so that no part is the whole.
    samples = [_of_advantage(each, (1 + index) / 4) for index, each in enumerate(random_samples(12))]
    whole, cut = subject.create(), subject.create()
    before = weights(whole)
    expected = feed(whole, [samples])
    found = feed(cut, [samples[:1], [], samples[1:4], samples[4:]])
    allowed, what = subject.tolerance(before), "in four micro-batches"
    require_same_step(weights(cut), weights(whole), before, within=allowed.step, what=what)
    require_same_statistics(found, expected, within=allowed.statistics, what=what)


@BACKEND.check
def a_step_without_samples_is_a_step(subject: BackendSubject) -> None:
    """A step whose only micro-batch is empty succeeds.

    A rank may get no sample of a step: divide by nothing, and take part in whatever ranks do together.
    """
    backend = subject.create()
    stats = feed(backend, [[]])
    require(math.isfinite(stats.loss), f"its loss is {stats.loss}")
    require(finite(weights(backend)), "afterwards some weights are not finite")


@BACKEND.check
def the_same_start_and_samples_give_the_same_step(subject: BackendSubject) -> None:
    """The same weights, state and samples give the same step, so a step that is repeated after a crash is the same.

    Seed what is random from the configuration; switch dropout off, since samples come from the model without it.
    """
    one, other = subject.create(), subject.create()
    before = weights(one)
    require_equal(weights(other), before, "of two new backends")
    for backend in (one, other):
        feed(backend, [random_samples(8)])
    require_same_step(
        weights(other),
        weights(one),
        before,
        within=subject.tolerance(before).repeated,
        what="of two new backends",
    )


@BACKEND.check
def begin_step_forgets_what_was_accumulated(subject: BackendSubject) -> None:
    """A step that was interrupted leaves nothing behind.

    begin_step() drops gradients and counts; load() does, too.
    """
    clean, broken_off, loaded = subject.create(), subject.create(), subject.create()
    before = weights(clean)
    feed(clean, [random_samples(8)])
    expected = weights(clean)
    for backend in (broken_off, loaded):
        backend.begin_step(0)
        backend.accumulate(random_samples(4, seed=5))
    loaded.load(stored(before))
    for backend, what in ((broken_off, "after begin_step()"), (loaded, "after load()")):
        feed(backend, [random_samples(8)])
        require_same_step(
            weights(backend), expected, before, within=subject.tolerance(before).repeated, what=what
        )


@BACKEND.check
def published_weights_load_again(subject: BackendSubject) -> None:
    """A backend that loads another one's published weights publishes the same ones.

    load() takes torch CPU tensors by name, in any order, and copies them: they are not its own.
    """
    backend, other = subject.create(), subject.create()
    feed(backend, [random_samples(8)])
    published = weights(backend)
    given = stored(published)
    other.load(reversed(given))
    require_equal(weights(other), published, "after load()")
    feed(other, [random_samples(8, seed=1)])
    changed = [name for name, tensor in given if not tensor.equal(published[name])]
    require(not changed, f"a step has changed tensors that load() was given: {', '.join(changed[:3])}")


@BACKEND.check
def load_none_restores_the_initial_state(subject: BackendSubject) -> None:
    """load(None) and load_state(None) restore the initial weights and optimizer state.

    None means the initial model's weights, and an optimizer and a random state as of a new backend.
    """
    backend, new = subject.create(), subject.create()
    before = weights(backend)
    feed(backend, [random_samples(8, seed=3)])
    backend.load(None)
    backend.load_state(None)
    require_equal(weights(backend), before, "after load(None)")
    for each in (backend, new):
        feed(each, [random_samples(8)])
    what = "in the step after load_state(None)"
    require_same_step(
        weights(backend), weights(new), before, within=subject.tolerance(before).repeated, what=what
    )


@BACKEND.check
def a_restored_state_takes_the_very_same_next_step(subject: BackendSubject) -> None:
    """A backend that loads another one's weights and checkpoint takes the same next step.

    save() writes moments, counts of steps and random state into the folder; load_state() reads all of it.
    """
    backend, other = subject.create(), subject.create()
    for step in range(2):
        feed(backend, [random_samples(8, seed=step)], step=step)
    folder = str(subject.folder())
    backend.save(folder)
    before, random = weights(backend), backend.random_state()
    other.load(stored(before))
    other.load_state(folder)
    require(other.random_state() == random, "its random state is another one")
    for each in (backend, other):
        feed(each, [random_samples(8, seed=9)], step=2)
    require_same_step(
        weights(other),
        weights(backend),
        before,
        within=subject.tolerance(before).repeated,
        what="in the step after it",
    )


@BACKEND.check
def weights_of_another_model_are_refused(subject: BackendSubject) -> None:
    """Weights of another model are refused, and the right ones load afterwards.

    Compare names and shapes, and look for what is missing; raise WeightsRejected. What is in use then may be a mixture,
    since tensors may be taken one at a time: the next load() replaces all of it.
    """
    backend = subject.create()
    before = weights(backend)
    last = list(before)[-1]
    spoilt: dict[str, Weights] = {
        "a tensor too few": {name: tensor + 1 for name, tensor in before.items() if name != last},
        "a tensor too many": {
            name: tensor + 1 for name, tensor in [*before.items(), ("no.such.tensor", before[last])]
        },
        "a tensor of another shape": {
            name: tensor.new_zeros(3, 3, 3) if name == last else tensor + 1 for name, tensor in before.items()
        },
    }
    for what, given in spoilt.items():
        try:
            backend.load(stored(given))
        except WeightsRejected:
            backend.load(stored(before))
            require_equal(
                weights(backend), before, f"after {what} was refused and the right ones were loaded"
            )
        else:
            raise ContractBroken(f"load() has taken {what}")


@BACKEND.check
def a_folder_without_a_checkpoint_is_refused(subject: BackendSubject) -> None:
    """A folder without a checkpoint of this kind is refused, by its name.

    Raise JobFailed with the folder in its message.
    """
    folder = str(subject.folder())
    try:
        subject.create().load_state(folder)
    except JobFailed as error:
        require(folder in str(error), f"the message does not name the folder: {error}")
    else:
        raise ContractBroken("load_state() has taken an empty folder")


@BACKEND.check
def staleness_is_stated(subject: BackendSubject) -> None:
    """A step reports how stale its samples were, and how many tokens they had.

    Staleness is the step's number less the trajectory's span.min; BackendBase counts it, or count it in accumulate().
    """
    backend = subject.create()
    samples = [_of_version(each, 4 + index % 2) for index, each in enumerate(random_samples(8))]
    stats = feed(backend, [samples[:3], samples[3:]], step=5)
    require(
        (stats.staleness_max, stats.staleness_mean) == (1, 0.5),
        f"half of the samples are 1 stale: it says at most {stats.staleness_max}, {stats.staleness_mean:g} on average",
    )
    require(stats.tokens > 0, "it says no tokens")


def _of_version(sample: TrainingSample, version: int) -> TrainingSample:
    span = VersionSpan(version, version)
    return TrainingSample(replace(sample.item, span=span), replace(sample.trajectory, span=span))


def _of_advantage(sample: TrainingSample, advantage: float) -> TrainingSample:
    return TrainingSample(replace(sample.item, advantage=advantage), sample.trajectory)
