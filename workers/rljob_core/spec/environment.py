"""`spec.rollout.environment`: what plays episodes of several turns, and where it runs."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from rljob_core.spec.base import ApiModel, Identifier, Image, Options

MOST_TURNS = 500
"""Responses of an episode that a job may allow at most: a trajectory of so many has 1,000 segments, of 1,024."""
CHANGEABLE_OF_ENVIRONMENT = ("replicas", "image", "template", "episodesPerSlot")
"""Fields of an environment that say where and how many of its episodes run, and nothing of what it does."""
AGENT = "agent"
"""The environment that is a program of the user's, which speaks OpenAI's chat completions."""


class EnvironmentSpec(ApiModel):
    """A multi-turn environment."""

    name: Identifier
    """`package.module:Class`, what an installed distribution offers, or `agent`: a program of your own."""
    options: Options = Field(default={})
    """The environment's own options."""
    max_turns: Annotated[int, Field(ge=1, le=MOST_TURNS)] = 10
    """Responses of the model in one episode at most."""
    timeout_seconds: Annotated[float, Field(gt=0, le=3600)] = 30.0
    """Seconds that one call of the environment may take; then its process is ended, and the attempt has failed."""
    episode_seconds: Annotated[int, Field(ge=1, le=86_400)] = 600
    """Seconds from an episode's first response to its end, later responses included; then the attempt has failed."""
    episodes_per_slot: Annotated[float, Field(ge=1, le=64)] = 2.0
    """Episodes that an engine may have open for each of its slots. Those beyond 1 use the slots of others that wait for
    their environment; with 1, an episode keeps its slot to its end."""
    network: bool = False
    """Whether the environment may open network connections."""
    replicas: Annotated[int, Field(ge=0, le=1024)] = 1
    """Pods that play episodes, on a cluster; while there is none, episodes wait. Under `rljob run` each engine has a
    server of its own."""
    image: Image | None = None
    """Image of the environment's pods, with the workers' package and the environment; absent: the job's."""
    template: Options | None = None
    """Patch of the environment pods' template; episodes run in its container `environment`."""

    @property
    def own_loopback(self) -> bool:
        """Whether each episode has a network of its own, in which its processes speak to each other and to nobody."""
        return self.name == AGENT and not self.network
