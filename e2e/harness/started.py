"""What is started at the beginning of a `with` block and stopped at its end, also if it only starts in part."""

from __future__ import annotations

from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self


class Started(ABC):
    """A context manager of `start` and `stop`."""

    @abstractmethod
    def start(self) -> None:
        """Start; what has begun when this raises, `stop` ends."""

    @abstractmethod
    def stop(self) -> None:
        """End what runs, if anything does."""

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
