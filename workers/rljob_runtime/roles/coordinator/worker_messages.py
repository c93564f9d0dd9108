"""Reads what workers send to the coordinator, and refuses what it cannot take: no message of a worker may end it.

A message that is refused is acknowledged, or left where a newer one replaces it, and has no other effect: an engine
whose signals are refused loses its lease, an attempt whose end is refused ends with that lease.
"""

from __future__ import annotations

from pydantic import ValidationError

from rljob_core.messages import (
    COORDINATOR_EVENT,
    ENGINE_SIGNAL,
    ENGINE_SIGNALS,
    CoordinatorEvent,
    EngineSignal,
    RoleFailed,
    SamplesLost,
    TrainerReady,
)
from rljob_core.messages.limits import OutOfBounds, within_limits
from rljob_core.ports import Message
from rljob_core.records import EPOCH_STRIDE
from rljob_core.site_border import SOURCE
from rljob_runtime.messaging.announce import event_sender
from rljob_runtime.messaging.refusal_log import Refusals

_AT_SITES = "rollout"
"""The one role that runs at sites."""
CLAIMS_AHEAD = 16
"""Claims of coordinators that a worker may know of and the ledger not.

A server that loses the ledger's end loses a second of it, and a coordinator takes longer to start. A worker that tells
of a newer coordinator ends this one, whose successor claims a newer epoch: one forged message may cost so many starts.
"""


class WorkerMessages:
    """Decodes events and signals.

    Attributes:
        epoch: writer epoch of the coordinator that reads, once it has claimed one.
        earlier: sequence of the newest event that was stored before that claim.
        refusals: what was refused.
    """

    def __init__(self) -> None:
        self.epoch = 0
        self.earlier = 0
        self.refusals = Refusals()

    def event(self, message: Message) -> CoordinatorEvent | None:
        """The event in a message of the coordinator's queue; None if it is refused, or out of date."""
        try:
            if SOURCE in message.headers and message.suffix != _AT_SITES:
                raise OutOfBounds(f"it comes from a site, where there is no {message.suffix}")
            event = within_limits(COORDINATOR_EVENT.validate_json(message.data))
            if event_sender(event) != message.suffix:
                # The server lets each role publish under its own name only.
                raise OutOfBounds(f"only {event_sender(event)} sends {event.kind}")
            if isinstance(event, TrainerReady):
                self._check_epoch(event.epoch)
        except (ValidationError, OutOfBounds) as error:
            self.refusals.add(f"events.{message.suffix}", message.data, _why(error))
            return None
        # How a role was under an earlier coordinator says nothing about now: what still holds, the role says again.
        is_out_of_date = isinstance(event, RoleFailed | SamplesLost) and message.sequence <= self.earlier
        return None if is_out_of_date else event

    def signal(self, key: str, value: bytes) -> EngineSignal | None:
        """The heartbeat that an engine's key holds; None if it is refused."""
        try:
            signal = within_limits(ENGINE_SIGNAL.validate_json(value))
            if ENGINE_SIGNALS + signal.engine != key:
                raise OutOfBounds(f"engine is {signal.engine}")
            self._check_epoch(signal.epoch)
        except (ValidationError, OutOfBounds) as error:
            self.refusals.add(key, value, _why(error))
            return None
        return signal

    def _check_epoch(self, epoch: int) -> None:
        ahead = epoch // EPOCH_STRIDE - self.epoch // EPOCH_STRIDE
        if ahead > CLAIMS_AHEAD:
            raise OutOfBounds(
                f"epoch is {epoch}, {ahead} coordinators after this one: if the ledger was restored from an old copy, "
                "restart all workers"
            )


def own_number(value: str, instance: str) -> int:
    """The number in `<instance>/<number>`, which a coordinator gives its marks and beats; 0 in that of another one."""
    sender, _, number = value.rpartition("/")
    is_own = sender == instance and number.isdecimal() and number.isascii() and len(number) < 16
    return int(number) if is_own else 0


def _why(error: ValidationError | OutOfBounds) -> str:
    if isinstance(error, OutOfBounds):
        return str(error)
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    return ": ".join(filter(None, (".".join(map(str, first["loc"])), first["msg"])))
