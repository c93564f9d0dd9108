"""When what was cached of a job is read again because the job does not come to rest: ever more rarely."""

from __future__ import annotations

from rljob_operator.cluster.kube.cache import JobKey

_FIRST_SECONDS, _LONGEST_SECONDS = 20.0, 300.0


class Rechecks:
    """The times of the next rechecks."""

    def __init__(self) -> None:
        self._next: dict[JobKey, tuple[float, float]] = {}
        """By job: the time, and the seconds since the time before it."""

    def due(self, key: JobKey, *, at_rest: bool, now: float) -> bool:
        """Whether a recheck of a job is due.

        Args:
            key: of the job.
            at_rest: whether the job is as it should be, which ends its rechecks.
            now: seconds on a clock that only goes forward.
        """
        if at_rest:
            self.forget(key)
            return False
        due, pause = self._next.setdefault(key, (now + _FIRST_SECONDS, _FIRST_SECONDS))
        if now < due:
            return False
        # Back off, because this may last long: a pod that fits on no node, for example.
        self._next[key] = now + 2 * pause, min(2 * pause, _LONGEST_SECONDS)
        return True

    def forget(self, key: JobKey) -> None:
        """Forget a job."""
        self._next.pop(key, None)
