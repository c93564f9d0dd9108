"""Lines that say how far a download is."""

from __future__ import annotations

import time
from collections.abc import Callable


def progress_lines(uri: str, *, every: float, say: Callable[[str], None]) -> Callable[[int, int], None]:
    """A function that says how many bytes there are, of how many: at most once in `every` seconds, and not at the end.

    Args:
        uri: of what is downloaded.
        every: seconds.
        say: takes a line.
    """
    said = time.monotonic() - every

    def progress(done: int, size: int) -> None:
        nonlocal said
        if (now := time.monotonic()) - said >= every and done < size:
            said = now
            say(f"downloading {uri}: {done / 1e6:.1f} of {size / 1e6:.1f} MB")

    return progress
