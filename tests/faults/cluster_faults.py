"""What may happen to the servers of a cluster of three.

A fault is given the stream of a job's ledger and the number of the server that leads it. It happens, lasts for longer
than an election takes, and is over when its function returns: all servers run again then, and all links are mended.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

from nats_cluster import SIZE, NatsCluster
from tests.waiting import within

from rljob_runtime.messaging.nats.server import binary

Fault = Callable[[NatsCluster, str, int], Awaitable[None]]

#: Seconds: longer than servers need to elect another leader (4 to 9 s), and than a client waits for an answer.
HELD = 12.0


def follower(leader: int) -> int:
    return (leader + 1) % SIZE


async def replaced(cluster: NatsCluster, stream: str, leader: int) -> None:
    """Wait until the others have another leader, and for some work under it."""
    async with within():
        while await cluster.led_by(follower(leader), stream) in {leader, None}:  # noqa: ASYNC110
            await asyncio.sleep(0.1)
    await asyncio.sleep(3)


async def leader_killed(cluster: NatsCluster, stream: str, leader: int) -> None:
    cluster.kill(leader)
    await replaced(cluster, stream, leader)
    cluster.start(leader)


async def leader_killed_for_a_moment(cluster: NatsCluster, stream: str, leader: int) -> None:
    cluster.kill(leader)
    cluster.start(leader)


async def follower_killed(cluster: NatsCluster, stream: str, leader: int) -> None:
    cluster.kill(follower(leader))
    await asyncio.sleep(1)
    cluster.start(follower(leader))


async def leader_shut_down(cluster: NatsCluster, stream: str, leader: int) -> None:
    await asyncio.to_thread(cluster.shut_down, leader)
    await asyncio.sleep(2)
    cluster.start(leader)


async def leader_frozen(cluster: NatsCluster, stream: str, leader: int) -> None:
    cluster.stop(leader)
    await replaced(cluster, stream, leader)
    cluster.continue_(leader)


async def follower_frozen(cluster: NatsCluster, stream: str, leader: int) -> None:
    cluster.stop(follower(leader))
    await asyncio.sleep(HELD)
    cluster.continue_(follower(leader))


async def leader_wiped(cluster: NatsCluster, stream: str, leader: int) -> None:
    """Its disk is replaced by a new one."""
    cluster.kill(leader)
    cluster.wipe(leader)
    cluster.start(leader)
    await asyncio.sleep(HELD)


async def follower_wiped(cluster: NatsCluster, stream: str, leader: int) -> None:
    await leader_wiped(cluster, stream, follower(leader))


async def leader_set_back(cluster: NatsCluster, stream: str, leader: int) -> None:
    """It comes back with an older disk."""
    await asyncio.to_thread(cluster.save, leader)
    await asyncio.sleep(2)  # of work
    cluster.kill(leader)
    cluster.put_back(leader)
    cluster.start(leader)
    await asyncio.sleep(HELD)


async def leader_parted(cluster: NatsCluster, stream: str, leader: int) -> None:
    """Alone on its side, with the clients that are connected to it."""
    cluster.part([leader])
    await replaced(cluster, stream, leader)
    cluster.mend()


async def follower_parted(cluster: NatsCluster, stream: str, leader: int) -> None:
    cluster.part([follower(leader)])
    await asyncio.sleep(HELD)
    cluster.mend()


async def no_majority(cluster: NatsCluster, stream: str, leader: int) -> None:
    """Two are frozen: everybody waits."""
    others = [number for number in range(SIZE) if number != leader]
    for number in others:
        cluster.stop(number)
    await asyncio.sleep(HELD)
    for number in others:
        cluster.continue_(number)


async def two_killed(cluster: NatsCluster, stream: str, leader: int) -> None:
    """The leader and another one: everybody waits."""
    for number in (leader, follower(leader)):
        cluster.kill(number)
    await asyncio.sleep(HELD / 2)
    for number in (leader, follower(leader)):
        cluster.start(number)


async def all_killed(cluster: NatsCluster, stream: str, leader: int) -> None:
    for number in range(SIZE):
        cluster.kill(number)
    await asyncio.sleep(1)
    for number in range(SIZE):
        cluster.start(number)


async def all_apart(cluster: NatsCluster, stream: str, leader: int) -> None:
    """Nobody reaches another one, and each has clients."""
    for number in range(SIZE):
        cluster.part([number])
    await asyncio.sleep(HELD)
    cluster.mend()


async def restarted_in_turn(cluster: NatsCluster, stream: str, leader: int) -> None:
    """As a StatefulSet's rolling update does it: each once the one before has caught up."""
    for number in reversed(range(SIZE)):
        await asyncio.to_thread(cluster.shut_down, number)
        cluster.start(number)
        await cluster.leader(stream)


async def upgraded_in_turn(cluster: NatsCluster, stream: str, leader: int) -> None:
    """From the older release that all of them run to the installed one, with the files that they have."""
    before = await cluster.releases()
    cluster.program = binary()
    for number in reversed(range(SIZE)):
        await asyncio.to_thread(cluster.retire, number)
        cluster.start(number)
        await cluster.leader(stream)
    assert not before & await cluster.releases()


async def leaders_disk_full(cluster: NatsCluster, stream: str, leader: int) -> None:
    """No byte more can be written to its disk (which `Disk` mounted); then there is room, and it is restarted."""
    filler = cluster.files(leader) / "filler"
    await asyncio.to_thread(_fill, filler)
    await asyncio.sleep(HELD)
    filler.unlink()
    await asyncio.to_thread(cluster.shut_down, leader)
    cluster.start(leader)


def _fill(file: Path) -> None:
    """Take all that is free on the file system, also what only root may use."""
    with file.open("wb", buffering=0) as filler:
        for size in (1 << 20, 1 << 12):
            with suppress(OSError):
                while filler.write(bytes(size)) == size:
                    pass


FAULTS: list[Fault] = [
    leader_killed,
    leader_killed_for_a_moment,
    leader_shut_down,
    leader_frozen,
    leader_wiped,
    leader_set_back,
    leader_parted,
    follower_killed,
    follower_frozen,
    follower_wiped,
    follower_parted,
    no_majority,
    two_killed,
    all_killed,
    all_apart,
    restarted_in_turn,
]
"""All that need neither a disk of the servers' own nor another release of nats-server."""
