"""Makes a fork server end with the process that started it; it is the server's first import, its only hook.

Processes that it forks are the server's children, so they end with it. The server would not end by itself while one of
them lives.
"""

from __future__ import annotations

from rljob_runtime.process.lifeline import die_with_parent

die_with_parent()
