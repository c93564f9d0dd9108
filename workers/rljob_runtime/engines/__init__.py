"""Engines generate responses token by token. This module is what authors of engines import.

An engine of one's own is a `SteppedEngine`, which computes the logits of the next tokens; a `StreamedEngine`, in front
of something that streams tokens by itself, such as a server; or implements the protocol `Engine`. `create_engine` makes
one by the name that a manifest uses. Names that this module does not export may change in any release. Importing it
loads neither torch nor vLLM.
"""

from rljob_core.errors import GenerationFailed, SpecError, WeightsRejected
from rljob_core.messages import EngineProfile
from rljob_core.ports import Completed, Engine, EngineEvent, EngineLoad, Progress, Request, Stopped
from rljob_core.trajectory import FinishReason
from rljob_runtime.engines.events import nothing_to_generate
from rljob_runtime.engines.registry import create_engine
from rljob_runtime.engines.stepped import SteppedEngine
from rljob_runtime.engines.stops import Decode
from rljob_runtime.engines.streamed.engine import StreamedEngine
from rljob_runtime.engines.streamed.request import Chunk, EngineEnded, StreamedRequest
from rljob_runtime.model.arrays import Arrays, checked_copies
from rljob_runtime.model.settings import ModelSettings, model_settings

__all__ = [
    "Arrays",
    "Chunk",
    "Completed",
    "Decode",
    "Engine",
    "EngineEnded",
    "EngineEvent",
    "EngineLoad",
    "EngineProfile",
    "FinishReason",
    "GenerationFailed",
    "ModelSettings",
    "Progress",
    "Request",
    "SpecError",
    "SteppedEngine",
    "Stopped",
    "StreamedEngine",
    "StreamedRequest",
    "WeightsRejected",
    "checked_copies",
    "create_engine",
    "model_settings",
    "nothing_to_generate",
]
