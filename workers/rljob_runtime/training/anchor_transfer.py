"""Whether the weights of a job's model ever arrive at its sites: known before training starts, from their links.

A version of the weights is an *anchor* if it is whole. Engines at a site begin a step with weights that are at most
`maxStaleness` versions old, and older versions are deleted. So an anchor has to cross the link while so many steps, or
those until the next anchor, are trained. How long a step takes is not known before; how long an anchor takes is.
"""

from __future__ import annotations

from rljob_core.config import JobConfig
from rljob_core.errors import SpecError
from rljob_core.site_costs import LinkCosts
from rljob_runtime.locations import local_path
from rljob_runtime.model.settings import weight_files
from rljob_runtime.training.registry import find_backend

NEVER_SECONDS = 86_400.0
"""An anchor that takes longer never arrives, for all practical purposes."""
SLOW_SECONDS = 60.0
"""From which on it is said how long it takes."""


def anchor_bytes(config: JobConfig) -> int:
    """What the model's weights take; 0 if they do not change as a whole, or nobody knows."""
    if config.spec.model.lora is not None or not find_backend(config.spec.trainer.backend).trains_model:
        return 0
    folder = local_path(config.spec.model.uri, field="spec.model.uri")
    return sum(file.stat().st_size for file in weight_files(folder)) if folder.is_dir() else 0


def check_links(config: JobConfig) -> list[str]:
    """What there is to say of links that are slow for the model.

    Raises:
        SpecError: an anchor never arrives at a site.
    """
    spec, said = config.spec, []
    size = anchor_bytes(config) if config.links else 0
    for site, link in sorted(config.links.items()):
        seconds = LinkCosts.of(link).seconds(size) + link.latency_seconds
        if seconds < SLOW_SECONDS:
            continue
        rate = (link.bits_per_second or 0) / 1e6
        takes = (
            f"the link of Site {site} carries {rate:,.6g} Mbit/s: the {size / 1e9:,.3g} GB of the model's weights take "
            f"{seconds:,.0f} s"
        )
        remedy = "use a faster link, a smaller model or spec.model.lora, or leave the pool's site out"
        deadline = spec.active_deadline_seconds
        if deadline is not None and seconds >= deadline:
            raise _never(config, site, f"{takes}, and activeDeadlineSeconds is {deadline:,}: {remedy}")
        if seconds >= NEVER_SECONDS:
            raise _never(config, site, f"{takes}, more than a day: {remedy}")
        versions = spec.anchor_every or spec.pipeline.bound + 1
        until = "the next anchor" if spec.anchor_every else "they are too old"
        said.append(
            f"{takes}. There are {versions} steps until {until}, so its engines work only if a step takes at least "
            f"{seconds / versions:,.0f} s; else {remedy}"
            + ("" if spec.anchor_every else "; spec.weights.delta sends what changes only")
        )
    return said


def _never(config: JobConfig, site: str, message: str) -> SpecError:
    pools = config.spec.rollout.pools
    index = next(i for i, pool in enumerate(pools) if pool.site == site)
    return SpecError(f"spec.rollout.pools[{index}].site", message)
