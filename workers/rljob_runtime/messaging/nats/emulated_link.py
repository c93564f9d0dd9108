"""A process that is like a long link: what passes through it to a server on this machine has a rate and a delay.

`python -m rljob_runtime.messaging.nats.emulated_link --listen 7422 --to 7423 --bits-per-second 1e8 --delay 0.03`

`rljob run` starts one for each site of a job: between the site's server, which connects, and the hub's. *Up* is from
the site to the hub.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

PIECE = 64 << 10
_BUFFERED_PIECES = 64
_HOST = "127.0.0.1"
_LOOK_SECONDS = 0.05
"""Between two looks at whether the link is cut."""
_REPORT_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Cut:
    """A time in which nothing passes, in either direction; neither end is told.

    Attributes:
        seconds: how long.
        at: when it begins, in seconds since the link was there.
        every: seconds from each beginning to the next; 0: it comes once.
    """

    seconds: float
    at: float
    every: float = 0.0

    def cuts(self, elapsed: float) -> bool:
        """Whether the link is cut that many seconds after it was there."""
        since = elapsed - self.at
        return 0 <= (since % self.every if self.every and since > 0 else since) < self.seconds


@dataclass(frozen=True, slots=True)
class Traffic:
    """What has passed a link.

    Attributes:
        up, down: bytes from the site to the hub, and from the hub to the site.
        cut: whether nothing passes now.
    """

    up: int = 0
    down: int = 0
    cut: bool = False


def read_traffic(report: Path) -> Traffic:
    """What the process of a link has written last; nothing if it has not yet."""
    try:
        return Traffic(**json.loads(report.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return Traffic()


class Bucket:
    """A token bucket of `rate` tokens per second. Unused tokens expire after the time that one piece takes."""

    def __init__(self, rate: float) -> None:
        self._rate = rate
        self._until = 0.0

    def take(self, tokens: int, *, now: float) -> float:
        """Seconds to wait before they may be used."""
        self._until = max(self._until, now - PIECE / self._rate) + tokens / self._rate
        return max(0.0, self._until - now)


class Direction:
    """What all connections share in one direction.

    Args:
        rate: bytes per second.
        delay: seconds that each byte takes.

    Attributes:
        whole: set while anything passes.
        carried: bytes that have passed.
    """

    def __init__(self, rate: float, delay: float) -> None:
        self._bucket = Bucket(rate)
        self._delay = delay
        self.whole = asyncio.Event()
        self.whole.set()
        self.carried = 0

    async def carry(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        """Carry everything from the source to the sink, then the end of the connection."""
        pieces: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(_BUFFERED_PIECES)
        taking = asyncio.create_task(self._take(source, pieces))
        clock = asyncio.get_running_loop()
        try:
            with contextlib.suppress(OSError):
                while True:
                    due, data = await pieces.get()
                    await asyncio.sleep(due - clock.time())
                    await self.whole.wait()
                    if not data:
                        break
                    # Before it is written: whoever gets it may look at once, in another thread.
                    self.carried += len(data)
                    sink.write(data)
                    await sink.drain()
        finally:
            taking.cancel()
            sink.close()

    async def _take(self, source: asyncio.StreamReader, pieces: asyncio.Queue[tuple[float, bytes]]) -> None:
        clock = asyncio.get_running_loop()
        data = b"?"
        while data:
            try:
                data = await source.read(PIECE)
            except OSError:  # reset by its other end
                data = b""
            await asyncio.sleep(self._bucket.take(len(data), now=clock.time()))
            await pieces.put((clock.time() + self._delay, data))


async def join(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    *,
    host: str,
    port: int,
    up: Direction,
    down: Direction,
) -> None:
    """Connect a client with the server at an address, until one of them ends the connection."""
    ends = [writer]
    try:
        for direction in (up, down):  # a handshake takes both
            await direction.whole.wait()
        there, back = await asyncio.open_connection(host, port)
        ends.append(back)
        await asyncio.gather(up.carry(reader, back), down.carry(there, writer))
    except OSError:
        writer.close()  # the server is away
    except asyncio.CancelledError:
        for end in ends:
            end.transport.abort()
        raise


async def serve(
    *,
    listen: int,
    to: int,
    bits_per_second: float,
    delay: float,
    cuts: Sequence[Cut] = (),
    since: float = 0.0,
    report: Path | None = None,
) -> None:
    """Connect each client with the server, until cancelled.

    Args:
        listen, to: ports of this machine: that clients connect to, and the server's.
        bits_per_second: in each direction, over all connections together.
        delay: seconds that each byte takes in one direction.
        cuts: when nothing passes.
        since: when the link was there, in seconds since 1970: another process may have been it before.
        report: file that says what has passed, replaced once a second; what it says already counts, too.
    """
    up, down = (Direction(bits_per_second / 8, delay) for _ in range(2))
    if report is not None:
        before = read_traffic(report)
        up.carried, down.carried = before.up, before.down
    joined: set[asyncio.Task[None]] = set()

    def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(join(reader, writer, host=_HOST, port=to, up=up, down=down))
        joined.add(task)
        task.add_done_callback(joined.discard)

    server = await asyncio.start_server(connected, _HOST, listen)
    async with asyncio.TaskGroup() as beside:
        if cuts:
            beside.create_task(_cut(cuts, since, (up, down)))
        if report is not None:
            beside.create_task(_report(report, up, down))
        await server.serve_forever()


async def _cut(cuts: Sequence[Cut], since: float, directions: Sequence[Direction]) -> None:
    while True:
        elapsed = time.time() - since
        is_cut = any(cut.cuts(elapsed) for cut in cuts)
        for direction in directions:
            (direction.whole.clear if is_cut else direction.whole.set)()
        await asyncio.sleep(_LOOK_SECONDS)


async def _report(file: Path, up: Direction, down: Direction) -> None:
    aside = file.with_name(f".{file.name}.new")
    while True:
        said = {"up": up.carried, "down": down.carried, "cut": not up.whole.is_set()}
        with contextlib.suppress(OSError):  # a full disk ends no link
            aside.write_text(json.dumps(said), encoding="utf-8")
            aside.replace(file)
        await asyncio.sleep(_REPORT_SECONDS)


def main() -> None:
    """Be the link."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--listen", type=int, required=True)
    parser.add_argument("--to", type=int, required=True)
    parser.add_argument("--bits-per-second", type=float, default=math.inf)
    parser.add_argument("--delay", type=float, default=0.0)
    parser.add_argument(
        "--cut", type=float, nargs=3, action="append", default=[], metavar=("S", "AT", "EVERY")
    )
    parser.add_argument("--since", type=float, default=0.0)
    parser.add_argument("--report", type=Path)
    given = vars(parser.parse_args())
    cuts = [Cut(*cut) for cut in given.pop("cut")]
    asyncio.run(serve(**given, cuts=cuts))


if __name__ == "__main__":
    main()
