"""First import of the reward pool's fork server, which has no other hook: the server ends with the reward role.

Processes of the pool are its children, so they end with it. It would not end by itself while one of them lives.
"""

from __future__ import annotations

from rljob_runtime.process.lifeline import die_with_parent

die_with_parent()
