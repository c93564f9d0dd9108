"""What the logs of a run's decisions (`rljob run --record`) tell beyond its ledger: when everything happened."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pydantic_core
from pydantic import ValidationError

from rljob_core.messages import ENGINE_SIGNAL, EngineSignal
from rljob_sim import Timeline
from rljob_sim.timeline import GENERATING, PUBLISHING, TRAINER, TRAINING, WAITING

LogValue = dict[str, Any]
_Work = tuple[str, int]
"""A trajectory and its attempt."""


@dataclass(slots=True)
class RecordedDecisions:
    """What was read.

    Attributes:
        engines: by pod, the newest heartbeat of its engine that has a profile.
        reward_seconds: from an answer's end until the coordinator has read its score, of each trained answer.
        timeline: what engines and trainer did, as far as the coordinator could see it. What an engine does follows from
            the work that it has; when it swapped its weights is not seen.
    """

    engines: dict[str, EngineSignal] = field(default_factory=dict)
    reward_seconds: list[float] = field(default_factory=list)
    timeline: Timeline = field(default_factory=Timeline)


def read_decisions(folder: Path) -> RecordedDecisions | None:
    """Read all logs of a run, in the order in which their coordinators began; None if there are none.

    A last line that is cut off is left out.
    """
    logs = sorted((begun, path) for path in folder.glob("*.jsonl") if (begun := _begun(path)) is not None)
    if not logs:
        return None
    reader = _DecisionReader(logs[0][0])
    for _, path in logs:
        for content in _lines(path):
            reader.read(content)
    reader.found.timeline.end(reader.now)
    return reader.found


def _begun(path: Path) -> float | None:
    first = next(_lines(path), {})
    return first.get("now")


def _lines(path: Path) -> Iterator[LogValue]:
    with path.open("rb") as file:
        for line in file:
            try:
                content = pydantic_core.from_json(line)
            except ValueError:
                return  # cut off
            if isinstance(content, dict):
                yield content


class _DecisionReader:
    """Follows the work of engines and trainer through the lines of the logs.

    Args:
        start: the time of the first line, on the coordinators' clock.
    """

    def __init__(self, start: float) -> None:
        self.found = RecordedDecisions()
        self.now = 0.0
        self._start = start
        self._work: dict[
            str, dict[_Work, int]
        ] = {}  # by engine, with the oldest version that may generate it
        self._versions: dict[str, int] = {}
        self._slots: dict[str, int] = {}
        self._generated: dict[_Work, float] = {}
        self._readers: dict[str, Callable[[LogValue], None]] = {
            "SignalSeen": self._signal,
            "PayloadSeen": self._payload,
            "RewardsSeen": self._rewards,
            "GenerationEnded": self._ended,
            "EngineGone": self._gone,
            "EngineDied": self._gone,
            "StepProposed": self._proposed,
            "StepCommitted": self._committed,
            "SendToEngine": self._sent,
        }

    def read(self, content: LogValue) -> None:
        """Read one line: its observations, then what was decided."""
        self.now = content.get("now", 0.0) - self._start
        for part in ("observations", "records", "actions"):
            for item in content.get(part, ()):
                if (reader := self._readers.get(item["type"])) is not None:
                    reader(item["value"])

    def _signal(self, value: LogValue) -> None:
        engine = value["engine"]
        if value["signal"] is None:
            self._gone(value)
            return
        try:
            signal = ENGINE_SIGNAL.validate_python(value["signal"])
        except ValidationError:
            return  # damaged
        if signal.profile is not None:
            self.found.engines[engine.rpartition(".")[0]] = signal
        self._versions[engine], self._slots[engine] = signal.version, signal.slots
        self._follow(engine)

    def _sent(self, value: LogValue) -> None:
        engine = value["engine"]
        work = self._work.setdefault(engine, {})
        for item in value["items"]:
            if item["kind"] == "generate":
                work[item["trajectory"], item["attempt"]] = item["min_version"]
            elif item["kind"] == "cancel":
                self._remove(list(zip(item["trajectories"], item["attempts"], strict=True)), [engine])
        self._follow(engine)

    def _payload(self, value: LogValue) -> None:
        ended = [(summary["trajectory"], summary["attempt"]) for summary in value["summaries"]]
        self._remove(ended, list(self._work))
        self._generated |= {work: self.now for work in ended if work[0].startswith("g")}

    def _rewards(self, value: LogValue) -> None:
        for result in value["results"]:
            generated = self._generated.pop((result["trajectory"], result["attempt"]), None)
            if generated is not None:
                self.found.reward_seconds.append(self.now - generated)

    def _ended(self, value: LogValue) -> None:
        self._remove([(value["trajectory"], value["attempt"])], list(self._work))

    def _gone(self, value: LogValue) -> None:
        engine = value["engine"]
        if self._work.pop(engine, None) is not None:
            self._follow(engine)

    def _remove(self, ended: Sequence[_Work], engines: Sequence[str]) -> None:
        for engine in engines:
            held = [work for work in ended if self._work[engine].pop(work, None) is not None]
            if held:
                self._follow(engine)

    def _follow(self, engine: str) -> None:
        """Write what the engine does from now on."""
        work, version = self._work.get(engine, {}), self._versions.get(engine, -1)
        running = sum(wanted <= version for wanted in work.values())
        what = GENERATING if running else WAITING if work else ""
        timeline = self.found.timeline
        timeline.enter(engine, self.now, what, version=version)
        timeline.count(engine, self.now, min(running, self._slots.get(engine, running)))

    def _proposed(self, value: LogValue) -> None:
        stats, step = value["stats"], value["proposal"]["version"] - 1
        published, trained = stats["seconds_publishing"], stats["seconds_training"]
        began = self.now - published - trained
        # The coordinator hears of a step when it is done. Between its micro-batches the trainer may have waited.
        self.found.timeline.add(TRAINER, TRAINING, began, trained, step=step)
        self.found.timeline.add(TRAINER, PUBLISHING, self.now - published, published, step=step)

    def _committed(self, value: LogValue) -> None:
        self.found.timeline.commits[value["version"]] = self.now
