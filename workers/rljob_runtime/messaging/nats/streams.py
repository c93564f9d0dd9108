"""A job's streams as this process creates them."""

from __future__ import annotations

from dataclasses import dataclass

from rljob_core.stream_definitions import DUPLICATE_WINDOW, Definition, stream_definitions
from rljob_core.stream_names import StreamNames

#: Default limit of the trajectory stream.
TRAJECTORY_BYTES = 4 << 30


@dataclass(frozen=True, slots=True)
class ConfiguredStreams(StreamNames):
    """Names and definitions of one job's streams.

    Args:
        subject: first tokens of all subjects.
        prefix: first part of all stream and bucket names.
        trajectory_bytes: limit of the trajectory stream; when it is reached, new payloads are refused.
        replicas: of each stream, on a cluster of servers.
        duplicate_window: seconds within which a repeated message id is stored once.
    """

    trajectory_bytes: int = TRAJECTORY_BYTES
    replicas: int = 1
    duplicate_window: float = DUPLICATE_WINDOW

    def definitions(self) -> list[Definition]:
        """All streams to create."""
        return stream_definitions(
            self,
            trajectory_bytes=self.trajectory_bytes,
            replicas=self.replicas,
            duplicate_window=self.duplicate_window,
        )
