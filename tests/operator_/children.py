"""What a test must not leave behind."""

from __future__ import annotations

import psutil


def running_children() -> set[psutil.Process]:
    """Descendants of this process that run; a session's nats-server is one of them."""
    return {child for child in psutil.Process().children(recursive=True) if child.is_running()}
