"""The contract of the port `Engine`.

Requests here have no stop tokens, so that a response is as long as it may be; an engine that ends responses by itself
must be given options under which it does not.
"""

from __future__ import annotations

from rljob_contract.check import Contract
from rljob_contract.engine_generation import GENERATION
from rljob_contract.engine_handover import HANDOVER
from rljob_contract.engine_subject import EngineSubject
from rljob_contract.engine_swaps import SWAPS

ENGINE = Contract[EngineSubject](*GENERATION, *SWAPS, *HANDOVER)
