"""Environments answer the model, turn by turn. This module is what authors of environments import.

An environment is a class of the port `Environment`. A manifest names it as `package.module:Class`, or by the name of an
entry point of the group `rljob.environments`. Names that this module does not export may change in any release. It
imports little, because each episode is played in a process that has been forked from one that has imported it.
"""

from __future__ import annotations

from rljob_core.ports.environment import (
    Environment,
    Episode,
    EpisodeStart,
    ModelTurn,
    ObservingEpisode,
    TurnObservation,
)

__all__ = [
    "Environment",
    "Episode",
    "EpisodeStart",
    "ModelTurn",
    "ObservingEpisode",
    "TurnObservation",
]
