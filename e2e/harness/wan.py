"""A long link between the networks of two clusters, which carries packets: with a rate, a delay, losses and cuts.

    site's nodes ── site's switch ── wan ~~ this thread ~~ wan ── hub's switch ── hub's nodes

Each switch has a TUN device, over which it routes the other cluster's addresses, and this thread carries packets from
one to the other. What is cut is lost without a word, in either direction, as between datacenters; both ends of a
connection see what TCP makes of that. When the thread's process is gone, so are the devices.
"""

from __future__ import annotations

import fcntl
import os
import random
import select
import struct
import threading
import time
from collections import deque
from contextlib import suppress
from types import TracebackType
from typing import Self

from e2e.harness.errors import NotAvailableError
from e2e.harness.network import Network

_TUN = "/dev/net/tun"
_SET_NAME, _PACKETS_ONLY = 0x400454CA, 0x0001 | 0x1000  # linux/if_tun.h: TUNSETIFF, IFF_TUN | IFF_NO_PI
_LARGEST = 64 << 10
_QUEUE_SECONDS = 0.2
"""What may wait for its turn at the link's rate, before packets are dropped as a router's full buffer drops them."""
_AT_ONCE = 64
"""Packets that are taken from one side before the other gets its turn."""


class Wan:
    """A context manager that connects two networks, both started, as long as it lasts.

    Args:
        hub, site: the networks.
        bits_per_second: the limit in each direction.
        delay: seconds that a packet takes in one direction.
    """

    def __init__(
        self, hub: Network, site: Network, *, bits_per_second: float = 1e8, delay: float = 0.03
    ) -> None:
        self._hub, self._site = hub, site
        self._rate, self._delay = bits_per_second / 8, delay
        self._thread = threading.Thread(target=self._carry, daemon=True)
        self._stop, self._stopping = os.pipe()

    def __enter__(self) -> Self:
        if not os.access(_TUN, os.R_OK | os.W_OK):
            raise NotAvailableError(f"{_TUN} cannot be opened: a link between clusters needs TUN devices")
        hub, site = self._end(self._hub, self._site), self._end(self._site, self._hub)
        self.up = Direction(site, hub, self._rate, self._delay)
        self.down = Direction(hub, site, self._rate, self._delay)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._stopping)
        self._thread.join()
        for end in (self.up.source, self.down.source, self._stop):
            os.close(end)

    def cut(self, *, up: bool = True, down: bool = True) -> None:
        """Lose every packet to the hub (`up`) or from it (`down`)."""
        self.lose(1.0, up=up, down=down)

    def lose(self, share: float, *, up: bool = True, down: bool = True) -> None:
        """Lose this share of the packets to the hub (`up`) or from it (`down`), by chance."""
        for direction, wanted in ((self.up, up), (self.down, down)):
            if wanted:
                direction.loss = share

    def mend(self) -> None:
        """Let everything pass."""
        self.lose(0.0)

    def _end(self, network: Network, other: Network) -> int:
        """A new device, as one end of the link; its file descriptor."""
        device = os.open(_TUN, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        name = network.name_of_link
        fcntl.ioctl(device, _SET_NAME, struct.pack("16sH22x", name.encode(), _PACKETS_ONLY))
        network.connect(name, other)
        return device

    def _carry(self) -> None:
        directions = (self.up, self.down)
        while True:
            waiting = [each.due for each in directions if each.due is not None]
            timeout = max(0.0, min(waiting) - time.monotonic()) if waiting else None
            ready, _, _ = select.select([self._stop, *(each.source for each in directions)], [], [], timeout)
            if self._stop in ready:
                return
            for each in directions:
                if each.source in ready:
                    each.take()
                each.deliver()


class Direction:
    """One direction of a link.

    Args:
        source, sink: file descriptors of devices.
        rate: bytes per second.
        delay: seconds.

    Attributes:
        loss: share of packets that are lost.
    """

    def __init__(self, source: int, sink: int, rate: float, delay: float) -> None:
        self.source = source
        self._sink = sink
        self._rate = rate
        self._delay = delay
        self._packets: deque[tuple[float, bytes]] = deque()
        self._busy_until = 0.0
        self.loss = 0.0

    @property
    def due(self) -> float | None:
        """When the next packet arrives, by `time.monotonic`; None if there is none on its way."""
        return self._packets[0][0] if self._packets else None

    def take(self) -> None:
        """Take packets that have been sent."""
        for _ in range(_AT_ONCE):
            try:
                packet = os.read(self.source, _LARGEST)
            except OSError:  # there are no more, or the device has gone with its namespace
                return
            now = time.monotonic()
            begin = max(now, self._busy_until)
            if self._is_lost() or begin - now > _QUEUE_SECONDS:
                continue
            self._busy_until = begin + len(packet) / self._rate
            self._packets.append((self._busy_until + self._delay, packet))

    def deliver(self) -> None:
        """Let packets arrive of which it is time; those on their way when the link is cut are lost, too."""
        while self._packets and self._packets[0][0] <= time.monotonic():
            _, packet = self._packets.popleft()
            if self.loss < 1.0:
                with suppress(OSError):
                    os.write(self._sink, packet)

    def _is_lost(self) -> bool:
        return self.loss > 0.0 and random.random() < self.loss
