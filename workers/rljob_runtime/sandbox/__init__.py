"""Sandboxes for code that a model wrote: `LocalSandbox` runs it on this machine (docs/sandbox.md).

For authors of rewards and environments.
"""

from rljob_core.ports.sandbox import (
    Sandbox,
    SandboxEnd,
    SandboxLimits,
    SandboxResult,
    SandboxUnavailable,
)
from rljob_runtime.sandbox.local import LocalSandbox

__all__ = [
    "LocalSandbox",
    "Sandbox",
    "SandboxEnd",
    "SandboxLimits",
    "SandboxResult",
    "SandboxUnavailable",
]
