"""Makes the fork server of `multiprocessing` end with the process that started it, whose first import this is.

Processes that it forks are the server's children, so they end with it. The server would not end by itself while one of
them lives.
"""

from __future__ import annotations

from rljob_runtime.process.lifeline import die_with_parent

die_with_parent()
