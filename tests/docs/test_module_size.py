"""No module of the product has more lines than CONTRIBUTING.md says, except those that are listed with a reason."""

from __future__ import annotations

import re
from pathlib import Path

CHECKOUT = Path(__file__).parents[2]
LONGER = {
    "operator/rljob_operator/cluster/local/cluster.py": "a cluster of one machine: one class with the port's methods",
    "workers/rljob_core/actions.py": "the table of all observations and actions, most of it docstrings",
    "workers/rljob_core/job_state/state.py": "one field, with its docstring, for each thing that the ledger tells",
    "workers/rljob_core/planner/dispatch.py": "one decision, of which the parts share its intermediate results",
    "workers/rljob_core/staleness.py": "the protocol that docs/design/staleness.md proves, in one place",
    "workers/rljob_runtime/messaging/ledger.py": "one protocol: reading, claiming and appending share its position",
    "workers/rljob_runtime/messaging/memory/store.py": "one class with the methods of the port MessageStore",
    "workers/rljob_runtime/messaging/nats/connection.py": "one connection with its reconnects and requests",
    "workers/rljob_runtime/messaging/nats/store.py": "one class with the methods of the port MessageStore",
    "workers/rljob_runtime/messaging/wire.py": "one format: packing and unpacking are read side by side",
}
"""Why a module may be longer, though by a third at most. A module that has become shorter leaves the list."""


def test_modules_have_at_most_the_lines_that_the_house_rules_allow() -> None:
    rules = (CHECKOUT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    (most,) = map(int, re.findall(r"A module has one responsibility, .* and 50 to (\d+) lines", rules))
    lines = {
        str(file.relative_to(CHECKOUT)): len(file.read_text(encoding="utf-8").splitlines())
        for folder in ("operator", "workers")
        for file in (CHECKOUT / folder).rglob("*.py")
    }
    assert sorted(name for name, count in lines.items() if count > most) == sorted(LONGER)
    assert max(lines[name] for name in LONGER) < most * 4 / 3
