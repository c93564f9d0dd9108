"""When a job's tokens expire, and when they are renewed: time is cut into periods, which are the same for everyone.

Tokens of one period are all alike. So every process of the operator writes the same ones, whenever it looks, writes
nothing until the next period begins, and has to read nothing that it has written before.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from datetime import UTC, datetime


@dataclass(frozen=True, slots=True)
class TokenTimes:
    """Of the tokens that count now.

    Attributes:
        expires: second since 1970 from which servers refuse them.
        renewed_at: when the next ones are written; more than a third of the lifetime before that.
    """

    expires: int
    renewed_at: datetime


def token_times(uid: str, *, lifetime: int, now: datetime) -> TokenTimes:
    """The times of the tokens of the period that a moment is in.

    Periods of two jobs begin at different times, so that the operator need not renew all tokens at once.

    Args:
        uid: the job's.
        lifetime: seconds from the begin of a period to the moment at which its tokens expire.
        now: the moment.
    """
    period = max(2 * lifetime // 3, 1)
    shift = int.from_bytes(hashlib.sha256(uid.encode()).digest()[:8]) % period
    seconds = int(now.timestamp())
    begin = seconds - (seconds - shift) % period
    return TokenTimes(begin + lifetime, datetime.fromtimestamp(begin + period, UTC))
