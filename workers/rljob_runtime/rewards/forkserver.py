"""Makes the reward pool's fork server end with the reward role; it is the server's first import, its only hook.

Processes of the pool are the server's children, so they end with it. The server would not end by itself while one of
them lives.
"""

from __future__ import annotations

from rljob_runtime.process.lifeline import die_with_parent

die_with_parent()
