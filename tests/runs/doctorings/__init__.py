"""What was done to each copy of a finished run, and what the audit must say of it; a module for each thing altered.

The run has 6 steps of 4 groups of 2, maxStaleness 2, and evaluations of versions 0, 3 and 6. `troubled` has
another one.
"""

# Each module registers its own; the order is that of the table in docs/audit.md.
from doctorings import harmless, ledger_end, fates, aborts, gone, spec, prompts, reports, metrics  # noqa: F401  # isort: skip
from doctorings.aborts import ABORTS
from doctorings.fates import FATES
from doctorings.harmless import NOTHING
from doctorings.prompts import PROMPTS
from doctorings.registry import DAMAGED, DOCTORINGS, HOLDS, UNFINISHED, VIOLATED
from doctorings.troubled import TROUBLED_DOCTORINGS

__all__ = [
    "ABORTS",
    "DAMAGED",
    "DOCTORINGS",
    "FATES",
    "HOLDS",
    "NOTHING",
    "PROMPTS",
    "TROUBLED_DOCTORINGS",
    "UNFINISHED",
    "VIOLATED",
]
