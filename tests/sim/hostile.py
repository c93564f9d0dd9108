"""What a broken or hostile worker may send to the coordinator: bytes that are nothing, and events that cannot be."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, get_args

from hypothesis import strategies as st

from rljob_core.messages import (
    COORDINATOR_EVENT,
    ENGINE_SIGNAL,
    ENGINE_SIGNALS,
    CoordinatorEvent,
    EngineSignal,
    RoleFailed,
)
from rljob_core.ports import Channel, MessageStore
from rljob_runtime.messaging.announce import event_sender


@dataclass(frozen=True)
class Sent:
    """One message.

    Attributes:
        after: seconds after the one before it.
        subject: the suffix of an event, or the key of a signal.
        signal: whether it is a signal.
    """

    after: float
    subject: str
    data: bytes
    signal: bool


async def send(store: MessageStore, messages: Sequence[Sent]) -> None:
    """Send them in order."""
    for message in messages:
        await asyncio.sleep(message.after)
        if message.signal:
            await store.put_signal(message.subject, message.data)
        else:
            await store.publish(Channel.EVENTS, message.subject, message.data)


#: Ids that may exist, cannot exist, and would do harm as part of a subject or of the ledger.
_TEXTS = st.one_of(
    st.sampled_from(
        ["g0.0", "g1.1", "g9999.7", "e0-0.1", "e-.-", "g0.-1", "rollout-0.1", "unknown.x", "", ">", "a.*"]
    ),
    st.text(max_size=20),
    st.just("x" * 100_000),
)
_NUMBERS = st.one_of(
    st.integers(-3, 10), st.sampled_from([2**53, 2**63, -(2**70), 10**400, 10**15]), st.integers()
)
_FLOATS = st.one_of(st.floats(), st.just(1e308))


def _value(old: Any) -> st.SearchStrategy[Any]:
    """Any value of the type of a valid one, or of another type."""
    wrong = st.sampled_from([None, [], {}, "1", -1, True, [["g0.0"]]])
    match old:
        case bool():
            return st.one_of(st.booleans(), wrong)
        case int():
            return st.one_of(_NUMBERS, wrong)
        case float():
            return st.one_of(_FLOATS, wrong)
        case str():
            return st.one_of(_TEXTS, wrong)
        case list():
            return st.one_of(st.lists(_TEXTS, max_size=3), wrong)
        case dict():
            return st.fixed_dictionaries({key: st.one_of(st.just(v), _value(v)) for key, v in old.items()})
        case _:
            return st.one_of(st.none(), _NUMBERS, wrong)


def _altered(valid: bytes) -> st.SearchStrategy[bytes]:
    """A valid message, some of whose values are others."""
    fields = json.loads(valid)
    kept = {key: st.just(value) if key == "kind" else _value(value) for key, value in fields.items()}
    return st.fixed_dictionaries(kept).map(lambda found: json.dumps(found).encode())


def _events() -> st.SearchStrategy[tuple[str, bytes]]:
    # Not that a role has failed: every role may end the job so, with words for the user.
    kinds = [kind for kind in get_args(CoordinatorEvent) if kind is not RoleFailed]
    valid = st.one_of(*(st.from_type(kind) for kind in kinds))

    def sent(event: CoordinatorEvent) -> st.SearchStrategy[tuple[str, bytes]]:
        data = COORDINATOR_EVENT.dump_json(event)
        return st.tuples(st.just(event_sender(event)), st.one_of(st.just(data), _altered(data)))

    return valid.flatmap(sent)


def _signals() -> st.SearchStrategy[tuple[str, bytes]]:
    engine = st.sampled_from(["rollout-0.1", "stranger-0.1", "rollout-0.99"])
    valid = EngineSignal("rollout-0.1", "a", 0, 0, 0, 4, 0, 0, 0)
    data = ENGINE_SIGNAL.dump_json(valid)
    return st.tuples(engine.map(ENGINE_SIGNALS.__add__), st.one_of(_altered(data), st.binary(max_size=40)))


def messages() -> st.SearchStrategy[list[Sent]]:
    """Some messages, of any content, at any time."""
    senders = st.sampled_from(["rollout", "trainer", "reward", "nobody"])
    event = st.one_of(_events(), st.tuples(senders, st.binary(max_size=40)))
    after = st.floats(0.0, 3.0)
    sent = st.one_of(
        st.builds(lambda a, e: Sent(a, *e, signal=False), after, event),
        st.builds(lambda a, e: Sent(a, *e, signal=True), after, _signals()),
    )
    return st.lists(sent, min_size=1, max_size=12)
