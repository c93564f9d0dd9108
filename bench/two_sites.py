"""What engines at another site bring, and cost: throughput, and tokens per dollar, with real processes and servers.

Each job runs by `rljob run`, on real NATS and by the real protocol; engines and trainer sleep as long as their profiles
say, times `scale`, and a link is emulated, as much faster. The same manifest is simulated on virtual time.

| case | compared with | asked |
|---|---|---|
| 2 H100 here and 2 over 60 ms and 100 Mbit/s, η = 2 | 4 H100 here | ≥ 0.95 of the tokens per second |
| 12 H20 over that link, the trainer here (StreamRL's case) | 8 H100 here | ≥ 1.5 of the tokens per dollar |

An H100 costs 2.85 times as much as an H20, the trainer as much as two H100, and 10^9 bytes over the link 0.05 H20
hours. Answers are as long as StreamRL measured them. Weights are files, which do not cross the emulated link; the
table of docs/dispatch.md says what their lag costs.
"""

from __future__ import annotations

import json
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bench.jobs import MODEL, run_job, steps_of
from bench.simulator import simulated

H100, H20, TRAINER, GIGABYTE = 2.85, 1.0, 2 * 2.85, 0.05
LONGEST = 16_384
_BYTES_PER_TOKEN = 12
_NEAR, _FAR = "", "west"


@dataclass(frozen=True, slots=True)
class Fleet:
    """Engines that are compared.

    Attributes:
        name: for people.
        pools: by name, the device, how many there are, and their site.
        prompts: of a step.
        hourly: what engines and trainer cost.
    """

    name: str
    pools: dict[str, tuple[str, int, str]]
    prompts: int
    hourly: float

    def pool_specs(self) -> list[dict[str, Any]]:
        """The pools of the job."""
        return [
            {
                "name": name,
                "replicas": count,
                "engine": {"options": {"device": device}},
                **({"site": site} if site else {}),
            }
            for name, (device, count, site) in self.pools.items()
        ]


def fleet(name: str, prompts: int, *pools: tuple[str, str, int, str]) -> Fleet:
    """A fleet of pools: each with its name, device, engines and site."""
    prices = {"H100": H100, "H20": H20}
    hourly = TRAINER + sum(count * prices[device] for _, device, count, _ in pools)
    return Fleet(name, {pool: (device, count, site) for pool, device, count, site in pools}, prompts, hourly)


PAIRS = (
    (
        fleet("4 H100", 24, ("near", "H100", 4, _NEAR)),
        fleet("2 H100 + 2 H100 far", 24, ("near", "H100", 2, _NEAR), ("far", "H100", 2, _FAR)),
        "tokens_per_second",
    ),
    (
        fleet("8 H100", 24, ("near", "H100", 8, _NEAR)),
        fleet("12 H20 far", 24, ("far", "H20", 12, _FAR)),
        "tokens_per_price",
    ),
)


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is measured.

    Attributes:
        pairs: of fleets that are compared, and by which figure.
        steps: of each job.
        skip: of these, the first that are left out.
        scale: of a device's time.
    """

    pairs: tuple[tuple[Fleet, Fleet, str], ...] = PAIRS
    steps: int = 18
    skip: int = 6
    scale: float = 0.1


FULL = Sizes()
SMOKE = Sizes(
    ((replace(PAIRS[0][0], prompts=2), replace(PAIRS[0][1], prompts=2), PAIRS[0][2]),),
    steps=3,
    skip=1,
    scale=0.002,
)
SIZES = {"full": FULL, "quick": Sizes(PAIRS[:1], steps=10, skip=4, scale=0.05), "smoke": SMOKE}


def manifest(fleet: Fleet, sizes: Sizes) -> str:
    """The job and its Site."""
    lengths = {"median": 1160, "sigma": 0.99, "promptSigma": 0.855, "min": 16, "max": LONGEST}
    scale = sizes.scale
    job = {
        "apiVersion": "rljob.dev/v1alpha1",
        "kind": "RLJob",
        "metadata": {"name": "two-sites"},
        "spec": {
            "steps": sizes.steps,
            "model": {"uri": str(MODEL)},
            "data": {
                "dataset": "chain_sum",
                "options": {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 2},
                "promptTemplate": "{{ metadata.expression | replace(' ', '') }}=",
                "promptsPerStep": fleet.prompts,
                "groupSize": 8,
            },
            "pipeline": {"mode": "BoundedAsync", "maxStaleness": 2},
            "rollout": {
                "engine": {
                    "name": "Emulated",
                    "options": {"slots": 16, "device": "H100", "timeScale": scale, "lengths": lengths},
                },
                "sampling": {"maxTokens": LONGEST},
                "pools": fleet.pool_specs(),
            },
            "trainer": {
                "backend": "Emulated",
                "microBatchTokens": LONGEST + 3616,
                "checkpoint": {"everySteps": 1000},
                "options": {"secondsPerToken": scale * 8e-6},
            },
        },
    }
    site = {
        "apiVersion": "rljob.dev/v1alpha1",
        "kind": "Site",
        "metadata": {"name": _FAR},
        "spec": {"link": {"bitsPerSecond": round(1e8 / scale), "latencySeconds": 0.06 * scale}},
    }
    return f"{json.dumps(job)}\n---\n{json.dumps(site)}\n"


def measure(fleet: Fleet, sizes: Sizes) -> dict[str, Any]:
    """Tokens per second and per price of one job, at the devices' own time; and its step beside the simulated one."""
    with tempfile.TemporaryDirectory() as temporary:
        file, folder = Path(temporary) / "job.yaml", Path(temporary) / "run"
        file.write_text(manifest(fleet, sizes))
        foretold = simulated(file, steps=sizes.steps, skip=sizes.skip)
        run_job(file, folder)
        lines = steps_of(folder)
    counted = lines[sizes.skip :]
    seconds = lines[-1]["seconds"] - lines[sizes.skip - 1]["seconds"]
    per_second = sizes.scale * sum(line["stats"]["tokens"] for line in counted) / seconds
    far = sum(count for _, count, site in fleet.pools.values() if site)
    share = far / sum(count for _, count, _ in fleet.pools.values())
    carried = share * per_second * 3600 * _BYTES_PER_TOKEN / 1e9 * GIGABYTE
    return {
        "fleet": fleet.name,
        "seconds_per_step": seconds / len(counted),
        "simulated": foretold,
        "ratio": foretold / (seconds / len(counted)),
        "tokens_per_second": per_second,
        "tokens_per_price": per_second * 3600 / (fleet.hourly + carried),
        "staleness_max": max(line["stats"]["staleness_max"] for line in counted),
    }


def main(sizes: Sizes = FULL) -> dict[str, Any]:
    """Print the table; figures of each fleet, and of the second of each pair over the first."""
    rows = []
    print(f"{'engines':<24} {'s/step':>7} {'simulated':>9} {'ratio':>6} {'tokens/s':>9} {'per price':>10}")
    for one, other, figure in sizes.pairs:
        pair = [measure(one, sizes), measure(other, sizes)]
        pair[1]["over"] = pair[1][figure] / pair[0][figure]
        pair[1]["figure"] = figure
        rows += pair
        for row in pair:
            over = f"  {row['over']:.2f}x {figure.replace('_', ' ')}" if "over" in row else ""
            print(
                f"{row['fleet']:<24} {row['seconds_per_step']:>7.2f} {row['simulated']:>9.2f} {row['ratio']:>6.2f} "
                f"{row['tokens_per_second']:>9.0f} {row['tokens_per_price']:>10.0f}{over}",
                flush=True,
            )
    return {"rows": rows}
