"""A process that is like a long link: what passes through it to a server on this machine has a rate and a delay.

`python -m rljob_runtime.messaging.nats.emulated_link --listen 7422 --to 7423 --bits-per-second 1e8 --delay 0.03`

`rljob run` starts one for each site whose link its job's file describes.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import math

PIECE = 64 << 10
_BUFFERED_PIECES = 64
_HOST = "127.0.0.1"


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


async def serve(*, listen: int, to: int, bits_per_second: float, delay: float) -> None:
    """Connect whoever connects with the server, until cancelled."""
    up, down = (Direction(bits_per_second / 8, delay) for _ in range(2))
    joined: set[asyncio.Task[None]] = set()

    def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(join(reader, writer, host=_HOST, port=to, up=up, down=down))
        joined.add(task)
        task.add_done_callback(joined.discard)

    server = await asyncio.start_server(connected, _HOST, listen)
    await server.serve_forever()


def main() -> None:
    """Be the link."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--listen", type=int, required=True)
    parser.add_argument("--to", type=int, required=True)
    parser.add_argument("--bits-per-second", type=float, default=math.inf)
    parser.add_argument("--delay", type=float, default=0.0)
    asyncio.run(serve(**vars(parser.parse_args())))


if __name__ == "__main__":
    main()
