"""A model of an engine: which sequences run in a decode step, how long it takes, how long responses become.

The engine `Emulated` sleeps by it, and the simulator counts by it. It knows no clock and no tokens.

    batch    which sequences run, wait and are preempted, how many tokens these hold, how long the next steps take
    lengths  how long responses become
    devices  step times of devices
"""

from rljob_core.emulation.batch import EngineBatch, EngineSequence
from rljob_core.emulation.devices import DEVICES, DeviceName
from rljob_core.emulation.lengths import ResponseLengths

__all__ = [
    "DEVICES",
    "DeviceName",
    "EngineBatch",
    "EngineSequence",
    "ResponseLengths",
]
