"""What may cross the border between the hub and a site, and what the hub believes of what has crossed it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rljob_core.messages import ENGINE_SIGNALS, SITE_SIGNALS
from rljob_core.spec import HUB
from rljob_core.stream_names import StreamNames

SOURCE = "Nats-Stream-Source"
"""Header of a message that a stream has from another one: its stream, sequence, filters, transforms and subject there.
"""
_ORIGINAL_SUBJECT = 4


@dataclass(frozen=True, slots=True)
class LeafPermissions:
    """Subjects that may cross the border between the hub and one site; all others stay on their side.

    Attributes:
        publish: what the site may send to the hub.
        subscribe: what the hub may send to the site.
    """

    publish: tuple[str, ...]
    subscribe: tuple[str, ...]


def leaf_permissions(site: str, *, domain: str = "", isolated: bool = False) -> LeafPermissions:
    """What the user of a site's leafnode may do.

    Args:
        site: its name.
        domain: the JetStream domain of its server; empty if it is the site's name.
        isolated: whether the leafnode is between accounts without streams, where other subjects are for answers.

    Both sides have streams of the same subjects. A message that crossed the border by itself would be stored twice.
    Flow control is answered by the name of the consumer: those at the hub have the site's name, so that a site answers
    for no other one. Names of the site's consumers begin with the hub's, which no wildcard can say.
    """
    replies = "_R_.>" if isolated else "$JSC.R.>"
    return LeafPermissions(
        publish=(
            f"to.{HUB}.{site}.>",
            replies,
            f"$JS.FC.*.{site}.*",
            f"$JS.{HUB}.API.CONSUMER.RESET.*.{site}",
        ),
        subscribe=(f"$JS.{domain or site}.API.CONSUMER.RESET.>", replies, "$JS.FC.*.*.*", f"to.{site}.>"),
    )


def is_forged_signal(names: StreamNames, key: str, headers: Mapping[str, str]) -> bool:
    """Whether a site has set a key of the hub's bucket of signals that no site sets.

    A stream takes whatever the other server says that its source has, under any subject. What it has taken has a header
    that the server of this stream writes, with the subject that the message had before.

    Args:
        names: of the job's streams.
        key: of the signal.
        headers: of the message.
    """
    before = _original_subject(headers)
    if before is None or key.startswith(ENGINE_SIGNALS):
        return False
    site = key.removeprefix(SITE_SIGNALS)
    return not key.startswith(SITE_SIGNALS) or before != names.beat_subject(site)


def is_forged_mark(site: str, headers: Mapping[str, str]) -> bool:
    """Whether a mark has not come by way of its site: what anybody else says of it counts for nothing.

    A site's server can store marks under the name that they have at the hub. Those that the coordinator sends have
    another one there, which only the source of their own site translates. One that comes from no other stream was
    stored by a role at the hub.

    Args:
        site: whose mark it is.
        headers: of the message.
    """
    before = _original_subject(headers)
    return before is None or not before.startswith(f"to.{site}.")


def _original_subject(headers: Mapping[str, str]) -> str | None:
    """The subject of a message where a stream has it from; None if it is from no other stream."""
    origin = headers.get(SOURCE)
    return None if origin is None else "".join(origin.split(" ")[_ORIGINAL_SUBJECT:][:1])
