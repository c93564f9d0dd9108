"""Weights from a trainer to an engine: every transport, deltas over a slow link, and how much changes in a real step.

*Transports.* Float32 weights of random bits are published and swapped in as an engine does it: read, every digest
verified, then copied over the engine's weights. For comparison, the file that the transport `Files` makes is copied
twice, which is what a program does that publishes and reads without verification.

*Link.* The reader is behind a proxy that limits nats-server to 100 Mbit/s. A version in which a few per cent of the
elements changed is published and read as an anchor, and as a delta. A changed float32 element has random lower bits; a
changed bfloat16 element is a neighbour of its old value.

*Changes.* The example job trains for real, at its own learning rate and at one as used for large models; successive
versions are compared as they are (float32) and rounded to bfloat16, as an engine would use them.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from e2e.harness.link import Link
from e2e.harness.nats_server import EmbeddedServer
from tests.memory.weights import MemoryTransport

from bench.jobs import EXAMPLE, run_job
from rljob_core.ports import WeightManifest
from rljob_runtime.messaging.nats.store import NatsStore
from rljob_runtime.model.tensor_bytes import bytes_of
from rljob_runtime.weights.create import open_store
from rljob_runtime.weights.delta import VersionBytes, delta_entries, whole_entries
from rljob_runtime.weights.store import StoredWeights

Tensors = Mapping[str, torch.Tensor]
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is measured.

    Attributes:
        tensors, elements: of the version that each transport carries; elements are of one tensor.
        rounds: of each transport; figures are medians.
        link_elements: of the version behind the link.
        bits_per_second: of the link.
        fraction: of the elements that change.
        steps: that the example job trains.
        learning_rates: at which it does so.
    """

    tensors: int = 200
    elements: int = 1_250_000
    rounds: int = 5
    link_elements: int = 25_000_000
    bits_per_second: float = 100e6
    fraction: float = 0.03
    steps: int = 16
    learning_rates: tuple[str, ...] = ("3e-4", "1e-6")


FULL = Sizes()
SMOKE = Sizes(
    tensors=4, elements=100_000, rounds=1, link_elements=200_000, bits_per_second=20e6, learning_rates=()
)
SIZES = {"full": FULL, "quick": FULL, "smoke": SMOKE}


def publish(store: StoredWeights, version: int, tensors: Tensors, parent: str = "") -> WeightManifest:
    """Write a version."""
    return store.write(
        version=version, parent=parent, proposal=None, key=f"v{version:08d}-b", tensors=tensors.items()
    )


def fetch(store: StoredWeights, key: str, engine: Tensors) -> None:
    """Swap a version in, as an engine does: all of it is verified before the first tensor is used."""
    for name, tensor in dict(store.read(store.manifest(key))).items():
        engine[name].copy_(tensor)


def timed(work: Callable[[], Result]) -> tuple[float, Result]:
    """Seconds that the work takes, and its result."""
    os.sync()  # dirty pages of other work are not charged to this
    begun = time.perf_counter()
    result = work()
    return time.perf_counter() - begun, result


def random_bits(shape: tuple[int, ...], seed: int) -> torch.Tensor:
    """A float32 tensor of random bits, which no compressor makes shorter."""
    bits = np.random.default_rng(seed).integers(0, 1 << 32, shape, np.uint32)
    return torch.from_numpy(bits.view(np.float32))


# ---------------------------------------------------------------------------------------------- transports


def measure_transports(sizes: Sizes, folder: Path, url: str) -> list[dict[str, Any]]:
    """Seconds to publish and to read one version, for each transport in turn, round by round."""
    tensors = {f"layer.{i}": random_bits((sizes.elements,), i) for i in range(sizes.tensors)}
    engine = {name: tensor.clone() for name, tensor in tensors.items()}
    size = 4 * sizes.tensors * sizes.elements
    connect = partial(NatsStore, url, subject="rljob.bench", stream_prefix="RLJOB_bench")
    kinds: dict[str, Callable[[], StoredWeights]] = {
        "Files": partial(open_store, "Files", uri=str(folder / "weights")),
        "Nats": partial(open_store, "Nats", connect=connect),
        "memory": partial(StoredWeights, MemoryTransport()),
    }
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in ("copied twice", *kinds)}
    stores = {name: (make(), make()) for name, make in kinds.items()}
    for version in range(sizes.rounds):
        for name, (writer, reader) in stores.items():
            put, manifest = timed(partial(publish, writer, version, tensors))
            key = manifest.key
            times[name].append((put, timed(partial(fetch, reader, key, engine))[0]))
            if name == "Files":
                file = folder / "weights" / key / "weights.safetensors"
                copies = [folder / "first", folder / "second"]
                one, two = (timed(partial(shutil.copyfile, *pair))[0] for pair in pairwise([file, *copies]))
                times["copied twice"].append((one, two))
                for copy in copies:
                    copy.unlink()
            writer.delete(key)
    for writer, reader in stores.values():
        writer.close()
        reader.close()
    rows = []
    for name, pairs in times.items():
        seconds = statistics.median(map(sum, pairs))
        puts, gets = zip(*pairs, strict=True)
        rows.append(
            {
                "transport": name,
                "publish_seconds": statistics.median(puts),
                "read_seconds": statistics.median(gets),
                "seconds": seconds,
                "megabytes_per_second": size / 1e6 / seconds,
                "of_copying": seconds / statistics.median(map(sum, times["copied twice"])),
            }
        )
    return rows


# ---------------------------------------------------------------------------------------------- link


def changed(tensor: torch.Tensor, fraction: float, seed: int) -> torch.Tensor:
    """The next version of a tensor, in which this fraction of the elements changed."""
    random = np.random.default_rng(seed)
    bits = bytes_of(tensor).view(np.uint32 if tensor.dtype is torch.float32 else np.uint16).copy()
    where = random.random(len(bits)) < fraction
    count = int(where.sum())
    if tensor.dtype is torch.float32:
        bits[where] ^= random.integers(1, 1 << 20, count, np.uint32)
    else:
        bits[where] += random.choice(np.array([1, (1 << 16) - 1], np.uint16), count)
    return torch.from_numpy(bits.view(np.uint8)).view(tensor.dtype).reshape(tensor.shape)


def measure_link(sizes: Sizes, url: str, kind: torch.dtype) -> dict[str, Any]:
    """Publish an anchor and a delta on the server's side of the link, and read them on the other side."""
    name = str(kind).removeprefix("torch.")
    start = torch.randn(sizes.link_elements, generator=torch.Generator().manual_seed(0)).to(kind)
    versions = [{"weights": start}, {"weights": changed(start, sizes.fraction, 1)}]

    def connect(at: str) -> NatsStore:
        # A response is slow over a link that is full.
        return NatsStore(at, subject=f"rljob.{name}", stream_prefix=f"RLJOB_{name}", attempt=30.0)

    row: dict[str, Any] = {"dtype": name, "megabytes": start.nbytes / 1e6}
    with Link(url, bits_per_second=sizes.bits_per_second) as link:
        writer = open_store("Nats", connect=partial(connect, url), anchor_every=10)
        reader = open_store("Nats", connect=partial(connect, link.url), anchor_every=10)
        with closing(writer), closing(reader):
            reader.manifests()  # it is connected
            parent, found = "", {"weights": torch.empty_like(start)}
            for version, kind_of in enumerate(("anchor", "delta")):
                before = link.carried
                put, manifest = timed(partial(publish, writer, version, versions[version], parent))
                got, _ = timed(partial(fetch, reader, manifest.key, found))
                parent = manifest.digest
                if not np.array_equal(*(bytes_of(v["weights"]) for v in (found, versions[version]))):
                    raise RuntimeError("the weights are not what was published")
                if (manifest.base is not None) != (kind_of == "delta"):
                    raise RuntimeError(f"version {version} is not a {kind_of}")
                row |= {
                    f"{kind_of}_publish_seconds": put,
                    f"{kind_of}_read_seconds": got,
                    f"{kind_of}_bytes": link.carried - before,
                }
    seconds = {k: row[f"{k}_publish_seconds"] + row[f"{k}_read_seconds"] for k in ("anchor", "delta")}
    row["faster"] = seconds["anchor"] / seconds["delta"]
    row["fewer_bytes"] = row["anchor_bytes"] / row["delta_bytes"]
    return row


# ---------------------------------------------------------------------------------------------- changes


def compare(versions: Sequence[Tensors]) -> dict[str, float]:
    """Of successive versions, the mean fraction of elements that differ, and how much shorter their deltas are."""
    different = elements = whole = stored = 0
    for old, new in pairwise(versions):
        held = whole_entries(old.items(), copied=True)
        manifest = WeightManifest("", 0, "", tuple(entry.info for entry in held), None, "")
        base = VersionBytes(manifest, {entry.info.name: entry.whole for entry in held})
        for entry in delta_entries(new.items(), base):
            whole += len(entry.whole)
            stored += len(entry.stored)
        for name, tensor in new.items():
            bits = torch.int32 if tensor.dtype is torch.float32 else torch.int16
            different += int((tensor.contiguous().view(bits) != old[name].contiguous().view(bits)).sum())
            elements += tensor.numel()
    return {"fraction": different / elements, "gain": whole / stored}


def measure_changes(sizes: Sizes, folder: Path, learning_rate: str) -> list[dict[str, Any]]:
    """Train the example job and compare its successive versions."""
    settings = {
        "steps": sizes.steps, "algorithm.learningRate": learning_rate, "weights.keepVersions": sizes.steps,
    }  # fmt: skip
    output = folder / f"run-{learning_rate}"
    run_job(EXAMPLE, output, [f"spec.{path}={value}" for path, value in settings.items()], audit=False)
    store = open_store("Files", uri=str(output / "weights"))
    exact = [dict(store.read(manifest)) for manifest in store.manifests()]
    rounded = [{name: t.to(torch.bfloat16) for name, t in version.items()} for version in exact]
    return [
        {"learning_rate": learning_rate, "dtype": name, "steps": len(exact) - 1, **compare(versions)}
        for name, versions in (("float32", exact), ("bfloat16", rounded))
    ]


# ---------------------------------------------------------------------------------------------- all


def table(rows: Iterable[Mapping[str, Any]]) -> None:
    """Print rows under the names of their columns."""
    rows = list(rows)
    for line, row in enumerate(rows):
        if not line:
            print("  ".join(f"{name.replace('_', ' '):>15}" for name in row))
        values = (
            f"{v:,.3g}" if isinstance(v, float) and v < 1000 else f"{v:,.0f}" if not isinstance(v, str) else v
            for v in row.values()
        )
        print("  ".join(f"{v:>{max(15, len(n))}}" for v, n in zip(values, row, strict=True)), flush=True)


def main(sizes: Sizes = FULL) -> dict[str, Any]:
    """Run all and print them as tables.

    Returns:
        `transports`, `link` and `changes`: a list of rows each.
    """
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        server = EmbeddedServer(folder / "nats")
        asyncio.run(server.start())
        try:
            print(
                f"{4e-6 * sizes.tensors * sizes.elements:,.0f} MB in {sizes.tensors} tensors, published and read"
            )
            transports = measure_transports(sizes, folder, server.url)
            table(transports)
            print(f"\n{sizes.fraction:.0%} changed, read over {sizes.bits_per_second / 1e6:,.0f} Mbit/s")
            link = [measure_link(sizes, server.url, kind) for kind in (torch.float32, torch.bfloat16)]
            table(link)
        finally:
            asyncio.run(server.kill())
        print("\nelements that change in a step of the example job, and how much shorter a delta is")
        changes = [row for rate in sizes.learning_rates for row in measure_changes(sizes, folder, rate)]
        table(changes)
    return {"transports": transports, "link": link, "changes": changes}
