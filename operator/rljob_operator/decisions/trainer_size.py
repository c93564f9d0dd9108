"""Decides how many nodes the trainer's gang has: `spec.trainer.numNodes`, or fewer while not all of them can run.

A gang starts with all nodes. With `minNodes`:

* If a pod of the gang finds no node in the time that the cluster's settings give it (`gang_seconds`), or the Job cannot
  create it because a quota is used up, a gang of as many nodes as have been found replaces it. If these are fewer than
  `minNodes`, the gang waits, as one of a fixed size does. The time begins again with each node that is found, because
  where one has come, the next may be about to come: a gang that has waited for `minNodes` is not cut to them at once.
* Every other attempt tries all nodes again: after a crash, the loss of a node, or a change of the job.
* A smaller gang that has been Ready for ten times that time is stopped, whereby it saves a checkpoint, and the next
  attempt tries all nodes. After each trial in vain it trains for as long as the gang has been smaller, so the time
  doubles, up to sixty times: trials in vain take a tenth of the time at first, and in the end a sixtieth.
* No gang is stopped for a trial before it has committed a step, and been Ready for three times as long as it took to
  start on its nodes. Starting may take longer than all times above, since it depends on the model, and so may a step;
  a job whose gangs are stopped before would never train.

Only an attempt shows whether there is room for all pods: the operator may not read nodes, and only the scheduler knows
which pods it would evict. A gang that tries in vain holds the nodes that it gets for that time, and then trains there.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from rljob_operator.decisions.conditions import ConditionValue, condition
from rljob_operator.decisions.observe import Gang, Observed
from rljob_operator.decisions.pods import Pod

FIRST_TRIAL = 10
"""Shortest interval between attempts to grow a smaller gang again, in times that pods have to find a node."""
LAST_TRIAL = 60
"""Longest interval between attempts to grow the gang again, after attempts in vain, in the same unit."""
STARTS = 3
"""Shortest interval, in times that the whole gang took until it was Ready, as a fourth goes into starting."""

REDUCED: Final = "TrainerReduced"
"""The condition that the gang has fewer nodes than `numNodes`; its transition time is when that began."""


@dataclass(frozen=True, slots=True)
class Size:
    """The decision about the size of a gang that runs.

    Attributes:
        nodes: the gang's; others, if another attempt of that size is to replace it.
        reduced: what `TrainerReduced` then says.
        retry_at: when to decide again; None if an event will come first.
    """

    nodes: int
    reduced: ConditionValue | None = None
    retry_at: datetime | None = None


def decide_size(observed: Observed, gang: Gang, *, patience: timedelta) -> Size:
    """Whether a running gang stays as large as it is.

    Args:
        observed: what is known of the job.
        gang: the Job of its newest attempt.
        patience: in which its pods have to find a node.
    """
    trainer = observed.job.spec.trainer
    pods = [pod for pod in observed.pods if pod.attempt == gang.attempt]
    # The Job is about to end because of a pod that has, and whether that counts as a failure is decided then.
    if trainer.min_nodes is None or any(pod.exit is not None for pod in pods):
        return Size(gang.nodes)
    if waiting := _waiting_since(gang, pods):
        return _smaller(observed, gang, pods, waiting, patience)
    if gang.nodes < trainer.num_nodes and _all_ready(gang.nodes, pods):
        return _larger(observed, gang, pods, patience)
    return Size(gang.nodes)


def initial_nodes(observed: Observed) -> int:
    """Nodes of an attempt that starts: as decided when the one before it ended, if the spec still allows that."""
    trainer, decided = observed.job.spec.trainer, observed.status.trainer_nodes
    return decided if trainer.least_nodes <= decided <= trainer.num_nodes else trainer.num_nodes


def all_nodes(observed: Observed, gang: Gang) -> ConditionValue | None:
    """What `TrainerReduced` says when an attempt of all nodes follows the gang; None if the gang had as many."""
    nodes = observed.job.spec.trainer.num_nodes
    if gang.nodes >= nodes:
        return None
    return (
        True,
        "TryingAllNodes",
        f"attempt {gang.attempt} had {gang.nodes} nodes; the next one tries all {nodes}",
    )


def reduced(observed: Observed, attempt: int, nodes: int) -> ConditionValue | None:
    """What `TrainerReduced` says of an attempt that is not to be replaced by one of another size; None for nothing.

    It stays true while all nodes are tried, until all of them train.
    """
    trainer, before = observed.job.spec.trainer, condition(observed.status, REDUCED)
    pods = [pod for pod in observed.pods if pod.attempt == attempt]
    if before is not None and before.status == "True":
        if nodes < trainer.num_nodes or not _all_ready(nodes, pods):
            return True, before.reason, before.message
    elif nodes < trainer.num_nodes:
        return True, "FewerNodes", f"{nodes} of {trainer.num_nodes} nodes"
    return None if before is None and trainer.min_nodes is None else (False, "AllNodes", "")


def _waiting_since(gang: Gang, pods: list[Pod]) -> datetime | None:
    """Since when one of the gang's pods waits for room; None if none does."""
    times = [pod.unschedulable.since for pod in pods if pod.unschedulable is not None and not _leaves(pod)]
    # A pod may be seen before the Job counts it.
    if gang.uncreated and len(pods) < gang.nodes and gang.began is not None:
        times.append(gang.began)
    return min(times, default=None)


def _leaves(pod: Pod) -> bool:
    """Whether the pod is going, which ends the attempt: its Job has no retries."""
    return pod.terminating or pod.evicted


def _smaller(observed: Observed, gang: Gang, pods: list[Pod], waiting: datetime, patience: timedelta) -> Size:
    with_node = [pod for pod in pods if pod.scheduled and not _leaves(pod)]
    able = len(with_node)
    if not observed.job.spec.trainer.least_nodes <= able < gang.nodes:
        return Size(gang.nodes)
    found = (pod.scheduled_at for pod in with_node if pod.scheduled_at is not None)
    until = max([waiting, *found]) + patience
    if observed.now < until:
        return Size(gang.nodes, retry_at=until)
    messages = (p.unschedulable.message for p in pods if p.unschedulable is not None and not _leaves(p))
    why = next(messages, "the others cannot be created: is a quota of the namespace used up?")
    wanted = observed.job.spec.trainer.num_nodes
    message = f"{able} of {wanted} nodes have room for attempt {gang.attempt}: {why}"
    return Size(able, (True, "Unschedulable", message))


def _larger(observed: Observed, gang: Gang, pods: list[Pod], patience: timedelta) -> Size:
    metrics = observed.metrics
    if gang.began is None or metrics is None or metrics.step_attempt < gang.attempt:
        return Size(gang.nodes)  # until the metrics of its first step come
    ready = max((pod.ready_since for pod in pods if pod.ready_since is not None), default=gang.began)
    before = condition(observed.status, REDUCED)
    lasted = timedelta()
    if before is not None and before.status == "True" and before.last_transition_time is not None:
        lasted = ready - datetime.fromisoformat(before.last_transition_time)
    pause = min(max(lasted, FIRST_TRIAL * patience), LAST_TRIAL * patience)
    start = ready - max([gang.began, *(pod.scheduled_at for pod in pods if pod.scheduled_at is not None)])
    trial = ready + max(pause, STARTS * start)
    if observed.now < trial:
        return Size(gang.nodes, retry_at=trial)
    return Size(observed.job.spec.trainer.num_nodes, all_nodes(observed, gang))


def _all_ready(nodes: int, pods: list[Pod]) -> bool:
    return sum(pod.ready for pod in pods) >= nodes
