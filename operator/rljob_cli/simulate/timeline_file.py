"""Writes timelines in the Trace Event Format, which ui.perfetto.dev, chrome://tracing and speedscope draw.

Each job is a process, each lane a thread of it, each phase a complete event, and what an engine runs is a counter.
Times are microseconds since the job's start.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rljob_operator.cluster.local.replace_text import replace_text
from rljob_sim import Timeline

_MICROSECONDS = 1e6


def write_timeline(path: Path, jobs: Mapping[str, Timeline]) -> None:
    """Write the timelines of jobs, by their names, into one file."""
    events = [
        event for number, name in enumerate(jobs, start=1) for event in _events(number, name, jobs[name])
    ]
    replace_text(path, json.dumps({"displayTimeUnit": "ms", "traceEvents": events}) + "\n")


def _events(process: int, name: str, timeline: Timeline) -> Iterator[dict[str, Any]]:
    yield {"ph": "M", "pid": process, "tid": 0, "name": "process_name", "args": {"name": name}}
    threads = {lane: number for number, lane in enumerate(timeline.lanes, start=1)}
    for lane, thread in threads.items():
        yield {"ph": "M", "pid": process, "tid": thread, "name": "thread_name", "args": {"name": lane}}
        order = {"sort_index": thread}
        yield {"ph": "M", "pid": process, "tid": thread, "name": "thread_sort_index", "args": order}
    for phase in timeline.phases:
        yield {
            "ph": "X",
            "pid": process,
            "tid": threads[phase.lane],
            "name": phase.what,
            "ts": phase.start * _MICROSECONDS,
            "dur": phase.seconds * _MICROSECONDS,
            "args": phase.detail,
        }
    for count in timeline.occupancy:
        yield {
            "ph": "C",
            "pid": process,
            "tid": threads[count.lane],
            "name": f"{count.lane} sequences",
            "ts": count.time * _MICROSECONDS,
            "args": {"running": count.running},
        }
    for version, time in timeline.commits.items():
        yield {
            "ph": "i",
            "s": "p",
            "pid": process,
            "tid": 0,
            "name": f"version {version}",
            "ts": time * _MICROSECONDS,
        }
