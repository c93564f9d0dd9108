"""When engines took new weights, as lines of metrics and heartbeats say: both, so each swap may come several times."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any

from rljob_cli.page.documents.ledger_story import lane_of
from rljob_cli.page.documents.values import finite
from rljob_core.messages import WeightSwap

_SWAPS_KEPT = 10_000
"""Of a lane: what began first is dropped, of a run of any length."""
_LONGEST_KEPT = 3600.0
"""Seconds: a window is searched for swaps that began as long before it."""


class SeenSwaps:
    """The swaps of a run's engines, by lane, in order of time."""

    def __init__(self) -> None:
        self._lanes: dict[str, list[tuple[float, float, int]]] = {}  # start, end, version

    def add(self, engine: str, swaps: Iterable[WeightSwap]) -> None:
        """Add what an engine has said of its swaps; numbers that are none are left out."""
        for swap in swaps:
            began, seconds = finite(swap.began), finite(swap.seconds)
            if began is None or seconds is None:
                continue
            lane = self._lanes.setdefault(lane_of(engine), [])
            place = bisect_left(lane, (began,))
            if place < len(lane) and lane[place][0] == began:
                continue  # it was said before
            insort(lane, (began, began + min(max(seconds, 0.0), _LONGEST_KEPT), swap.version))
            del lane[:-_SWAPS_KEPT]

    def add_line(self, found: Any) -> None:
        """Add the field `swaps` of a line of `metrics.jsonl`; what is none of it is left out."""
        for engine, swaps in found.items() if isinstance(found, Mapping) else ():
            for swap in swaps if isinstance(swaps, list) else ():
                with suppress(KeyError, TypeError, ValueError, OverflowError):
                    began, seconds = finite(swap["began"]), finite(swap["seconds"])
                    if began is not None and seconds is not None:
                        self.add(str(engine), [WeightSwap(int(swap["version"]), began, seconds)])

    def window(self, lane: str, start: float, end: float, *, most: int) -> list[tuple[float, float, int]]:
        """Start, end and version of a lane's swaps in a window, the longest ones where there are more than `most`."""
        swaps = self._lanes.get(lane, [])
        first = bisect_left(swaps, (start - _LONGEST_KEPT,))
        found = [swap for swap in swaps[first : bisect_left(swaps, (end,))] if swap[1] >= start]
        if len(found) > most:
            found = sorted(sorted(found, key=lambda swap: swap[0] - swap[1])[:most])
        return found
