"""What can go wrong in the harness; every message says what to do or where to look.

HarnessError
├── NotAvailableError   something is not installed or built here; tests skip for it
└── ClusterError        a cluster did not start, or does not do what it was asked
    └── ProgramLostError   a program of the cluster ended, or did not become ready in time
"""

from __future__ import annotations


class HarnessError(Exception):
    """Any error of the harness."""


class NotAvailableError(HarnessError):
    """This machine lacks something; the message names it and the command that brings it."""


class ClusterError(HarnessError):
    """A process or the API server failed; the message ends with what it said last."""


class ProgramLostError(ClusterError):
    """A program of the cluster ended by itself, or did not become ready in time: no fault of what is tested on it."""
