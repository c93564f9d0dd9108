"""The tracker's process: follows the metrics, dies at any moment, and never stores a point twice or not at all."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from e2e.harness.nats_server import EmbeddedServer
from installed import install
from sample_answers import answer, keep
from tests.waiting import until

from rljob_core.config import JobConfig
from rljob_core.failures import Failure, Reason, failure_in
from rljob_core.messages import STEP_METRICS, StepMetrics, StepStats
from rljob_core.ports import Channel
from rljob_core.spec import RLJobSpec
from rljob_runtime.messaging.connect import job_store

PATIENCE = 600.0  # seconds; of a busy machine
DIARY = """
import json, os, time

class Diary:
    def __init__(self, run, *, options):
        self.options, self.file = options, os.path.join(run.folder, "diary")
        os.makedirs(run.folder, exist_ok=True)
        assert "secret" not in json.dumps(run.spec)
        self.write({"opened": run.name, "revision": run.revision, "steps": run.spec["steps"]})

    def write(self, row):
        with open(self.file, "a") as file:
            file.write(json.dumps(row) + "\\n")

    def position(self):
        with open(self.file) as file:
            return max((row.get("sequence", 0) for row in map(json.loads, file)), default=0)

    def stream(self):
        with open(self.file) as file:
            return [0, *(row["stream"] for row in map(json.loads, file) if "stream" in row)][-1]

    def log(self, points):
        for point in points:
            if point.sequence == self.options.get("raisesAt"):
                raise OSError("https://me:secret@tracker.example refuses")
            if point.sequence == self.options.get("hangsAt"):
                time.sleep(3600)
            row = {"sequence": point.sequence, "kind": point.kind, "step": point.step, "values": dict(point.values)}
            self.write({"stream": point.stream, **row})

    def log_samples(self, table):
        if self.options.get("samplesRaise"):
            raise OSError("https://me:secret@tracker.example takes no tables")
        if self.options.get("samplesHang"):
            time.sleep(3600)
        self.write({"table": table.kind, "step": table.step, "rows": len(table.rows)})

    def close(self, outcome):
        self.write({"closed": outcome})
"""

TEMPLATE = {"spec": {"containers": [{"name": "rollout", "env": [{"name": "HEADERS", "value": "secret"}]}]}}


def commit(step: int, **fields: Any) -> StepMetrics:
    return StepMetrics(step, step, 1.0, reward_mean=0.5, stats=StepStats(loss=step / 8), engines=2, **fields)


class TrackerProcess:
    """The role in a process of its own, with the tracker `Diary`, on a stream of metrics of its own."""

    def __init__(self, folder: Path, server: EmbeddedServer, **tracker: Any) -> None:
        self.folder = folder
        self.url = server.url
        spec = {
            "steps": 4,
            "model": {"uri": "/m"},
            "data": {"dataset": "chain_sum"},
            "rollout": {"pools": [{"name": "a", "template": TEMPLATE}]},
            "nats": {"url": "nats://me:secret@nats:4222"},
            "trackers": [{"name": "Diary", **tracker}],
        }
        self.config = JobConfig(
            namespace="default",
            job="j",
            uid=uuid.uuid4().hex[:8],
            spec=RLJobSpec.model_validate(spec),
            weights_uri="w",
            checkpoint_uri="c",
            trainer_log_uri="t",
            samples_uri=str(folder / "samples"),
        )
        (folder / "config.json").write_text(self.config.model_dump_json(by_alias=True))
        install(folder / "path", "diary", DIARY, trackers="Diary = Diary")
        self.process: subprocess.Popen[bytes] | None = None

    def publish(self, *lines: StepMetrics) -> None:
        async def work() -> None:
            store = job_store(self.config, self.url)
            await store.open()
            for line in lines:
                await store.publish(Channel.METRICS, "steps", STEP_METRICS.dump_json(line))
            await store.close()

        asyncio.run(work())

    def lose_streams(self) -> None:
        """Have streams that are empty, as after `--resume --from-version` where the NATS server's folder is lost."""
        self.config = self.config.model_copy(update={"uid": uuid.uuid4().hex[:8]})
        (self.folder / "config.json").write_text(self.config.model_dump_json(by_alias=True))

    def start(self, **variables: str) -> None:
        path = os.pathsep.join([str(self.folder / "path"), *sys.path])
        environment = {
            **os.environ,
            "PYTHONPATH": path,
            "RLJOB_CONFIG": str(self.folder / "config.json"),
            "RLJOB_NATS_URL": self.url,
            "RLJOB_TRACKER": "Diary",
            "RLJOB_TRACKER_FOLDER": str(self.folder / "tracker"),
            "RLJOB_REVISION": "0123abc",
            "RLJOB_READY_FILE": str(self.folder / "ready"),
            "RLJOB_TERMINATION_LOG": str(self.folder / "termination"),
            **variables,
        }
        with (self.folder / "log").open("ab") as log:
            command = [sys.executable, "-m", "rljob_runtime.main", "tracker"]
            self.process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)

    def rows(self) -> list[dict[str, Any]]:
        with suppress(FileNotFoundError):
            return [json.loads(line) for line in (self.folder / "tracker/diary").read_text().splitlines()]
        return []

    def sequences(self) -> list[int]:
        return [row["sequence"] for row in self.rows() if "sequence" in row]

    def until(self, done: Callable[[], bool]) -> None:
        process = self.process
        assert process is not None
        until(
            done,
            "rows",
            seconds=PATIENCE,
            alive=lambda: process.poll() is None,
            shown=lambda: f"{self.rows()} {(self.folder / 'log').read_text()}",
        )

    def end(self, number: int = signal.SIGTERM) -> int:
        assert self.process is not None
        if number:
            self.process.send_signal(number)
        return self.process.wait(PATIENCE)


@pytest.fixture
def make(tmp_path: Path, nats_server: EmbeddedServer) -> Iterator[Callable[..., TrackerProcess]]:
    made: list[TrackerProcess] = []

    def make_one(**tracker: Any) -> TrackerProcess:
        made.append(TrackerProcess(tmp_path, nats_server, **tracker))
        return made[-1]

    yield make_one
    for tracker in made:
        if tracker.process is not None and tracker.process.poll() is None:
            tracker.process.kill()
            tracker.process.wait()


def test_a_tracker_that_dies_continues_without_doubled_points(make: Callable[..., TrackerProcess]) -> None:
    tracker = make()
    evaluation = StepMetrics(1, 1, 1.0, heldout_sampled=0.25)
    tracker.publish(StepMetrics(0, 0, 0.0), commit(1), commit(2), evaluation)
    tracker.start()
    tracker.until(lambda: tracker.sequences() == [2, 3, 4])
    assert (tracker.folder / "ready").exists()
    assert tracker.end(signal.SIGKILL) == -signal.SIGKILL
    # A coordinator that takes over publishes a commit again; the user goes back to version 1.
    tracker.publish(commit(2), commit(3), StepMetrics(1, 1, 1.0, gone_back=True), commit(2))
    tracker.start()
    tracker.until(lambda: tracker.sequences() == [2, 3, 4, 6, 7, 8])
    # What is published while nobody looks is stored before the process ends.
    tracker.publish(commit(3))
    assert tracker.end() == 0
    rows = tracker.rows()
    assert [row["sequence"] for row in rows if "sequence" in row] == [2, 3, 4, 6, 7, 8, 9]
    assert [row["kind"] for row in rows if row.get("sequence", 0) in {4, 7}] == ["evaluation", "rollback"]
    first = next(row for row in rows if row.get("sequence") == 2)
    assert first["step"] == 1
    assert (
        first["values"].items() >= {"train/loss": 0.125, "train/reward_mean": 0.5, "job/engines": 2.0}.items()
    )
    assert rows[0] == {"opened": "j", "revision": "0123abc", "steps": 4}
    assert rows[-1] == {"closed": ""}


def test_a_run_ends_with_the_job_and_continues_if_it_is_opened_again(
    make: Callable[..., TrackerProcess],
) -> None:
    tracker = make()
    tracker.publish(
        commit(1),
        StepMetrics(1, 1, 1.0, finished="Failed", failure=Failure(Reason.STREAM_TOO_SMALL, "no room")),
    )
    tracker.start()
    tracker.until(lambda: {"closed": "Failed"} in tracker.rows())
    tracker.publish(commit(2), StepMetrics(2, 2, 1.0, finished="Succeeded"))
    tracker.until(lambda: {"closed": "Succeeded"} in tracker.rows())
    assert tracker.end() == 0
    assert tracker.sequences() == [1, 2, 3, 4]
    assert [row for row in tracker.rows() if "closed" in row] == [
        {"closed": "Failed"},
        {"closed": "Succeeded"},
    ]


def test_samples_follow_their_evaluation_once_and_the_job_s_end_waits_for_the_last(
    make: Callable[..., TrackerProcess],
) -> None:
    def tables(kind: str) -> list[tuple[int, int]]:
        return [(row["step"], row["rows"]) for row in tracker.rows() if row.get("table") == kind]

    tracker = make(samples=1)
    samples, uid = tracker.folder / "samples", tracker.config.uid
    keep(samples, answer("e1-0.0"), answer("g0.0"), job=uid)
    tracker.publish(commit(1), StepMetrics(1, 1, 1.0, heldout_sampled=0.25))
    tracker.start()
    tracker.until(lambda: tables("evaluation") and tables("training"))
    assert tracker.end(signal.SIGKILL) == -signal.SIGKILL
    keep(samples, answer("e2-0.0"), writer="reward-0.2", job=uid)
    tracker.publish(StepMetrics(2, 2, 1.0, heldout_sampled=0.5))
    tracker.start()
    tracker.until(lambda: len(tables("evaluation")) == 2)
    keep(samples, answer("e3-0.0"), writer="reward-0.3", job=uid)
    tracker.publish(StepMetrics(3, 3, 1.0, heldout_sampled=0.5), StepMetrics(3, 3, 1.0, finished="Succeeded"))
    tracker.until(lambda: {"closed": "Succeeded"} in tracker.rows())
    assert tracker.end() == 0
    assert tables("evaluation") == [(1, 1), (2, 1), (3, 1)]
    assert tables("training") == [(1, 1)]
    assert tracker.rows()[-1] == {"closed": "Succeeded"}


def test_a_tracker_that_takes_no_samples_takes_all_metrics(make: Callable[..., TrackerProcess]) -> None:
    tracker = make(samples=4, options={"samplesRaise": True})
    keep(tracker.folder / "samples", answer("e1-0.0"), job=tracker.config.uid)
    tracker.publish(StepMetrics(1, 1, 1.0, heldout_sampled=0.25))
    tracker.start()
    log = tracker.folder / "log"
    tracker.until(lambda: "takes no tables" in log.read_text())
    tracker.publish(commit(2), StepMetrics(2, 2, 1.0, finished="Succeeded"))
    tracker.until(lambda: {"closed": "Succeeded"} in tracker.rows())
    assert tracker.end() == 0
    assert tracker.sequences() == [1, 2, 3]
    assert (
        "Diary gets no samples any more, but its metrics: OSError: https://tracker.example" in log.read_text()
    )


@pytest.mark.nightly
def test_a_tracker_that_does_not_return_from_samples_is_started_again(
    make: Callable[..., TrackerProcess],
) -> None:
    tracker = make(samples=4, options={"samplesHang": True}, timeoutSeconds=1)
    keep(tracker.folder / "samples", answer("e1-0.0"), job=tracker.config.uid)
    tracker.publish(StepMetrics(1, 1, 1.0, heldout_sampled=0.25))
    tracker.start()
    tracker.until(lambda: "did not take them within 1 s" in (tracker.folder / "log").read_text())
    tracker.publish(commit(2))
    assert tracker.end(0) != 0
    tracker.start()
    tracker.until(lambda: tracker.sequences() == [1, 2])
    assert tracker.end() == 0


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            {"raisesAt": 2},
            "the tracker Diary could not take the metrics: OSError: https://tracker.example refuses",
        ),
        ({"hangsAt": 2}, "the tracker Diary did not take the metrics within 5 s"),
    ],
)
def test_a_tracker_that_fails_ends_its_process_and_says_why(
    make: Callable[..., TrackerProcess], options: dict[str, int], words: str
) -> None:
    tracker = make(options=options, timeoutSeconds=5.0)
    tracker.publish(commit(1))
    tracker.start()
    tracker.until(lambda: tracker.sequences() == [1])
    tracker.publish(commit(2))
    assert tracker.end(0) == 4
    failure = failure_in((tracker.folder / "termination").read_text())
    assert failure == Failure(Reason.RESOURCE_MISSING, f"spec.trackers[0]: {words}")
    assert tracker.sequences() == [1]


def test_a_tracker_that_is_further_than_the_stream_says_what_to_do(
    make: Callable[..., TrackerProcess],
) -> None:
    tracker = make()
    tracker.publish(commit(1), commit(2), commit(3))
    tracker.start()
    tracker.until(lambda: tracker.sequences() == [1, 2, 3])
    assert tracker.end() == 0
    tracker.lose_streams()
    tracker.publish(commit(2))
    tracker.start()
    assert tracker.end(0) == 2
    failure = failure_in((tracker.folder / "termination").read_text())
    assert failure is not None
    assert failure.reason is Reason.INVALID_SPEC
    said = failure.detail
    assert said.startswith(
        "spec.trackers[0]: the tracker Diary has the metrics up to line 3, but the job's stream ends at "
        "line 1: "
    )
    assert "name another directory, project or experiment" in said
    assert tracker.sequences() == [1, 2, 3]


def test_a_stream_that_has_outgrown_what_the_tracker_has_of_another_one_is_refused(
    make: Callable[..., TrackerProcess],
) -> None:
    tracker = make()
    tracker.publish(commit(1), commit(2))
    tracker.start()
    tracker.until(lambda: tracker.sequences() == [1, 2])
    assert tracker.end() == 0
    tracker.start()  # the same stream goes on
    tracker.publish(commit(3))
    tracker.until(lambda: tracker.sequences() == [1, 2, 3])
    assert tracker.end() == 0
    tracker.lose_streams()
    tracker.publish(*(commit(step) for step in range(2, 8)))
    tracker.start()
    assert tracker.end(0) == 2
    said = (tracker.folder / "termination").read_text()
    assert "has the metrics up to line 3, but these are of another stream than the job has now" in said
    assert tracker.sequences() == [1, 2, 3]


def test_a_process_outlasts_the_one_that_it_replaces_unless_nothing_was_stored_or_it_is_to_end(
    make: Callable[..., TrackerProcess],
) -> None:
    tracker = make()
    tracker.start(RLJOB_TRACKER_HANDOVER_SECONDS="3600")  # no metrics yet: there was none before it
    tracker.until((tracker.folder / "ready").exists)
    tracker.publish(commit(1))
    tracker.until(lambda: tracker.sequences() == [1])
    assert tracker.end(signal.SIGKILL) == -signal.SIGKILL
    (tracker.folder / "ready").unlink()
    tracker.publish(commit(2))
    tracker.start(RLJOB_TRACKER_HANDOVER_SECONDS="3600")
    tracker.until(lambda: "waiting for 3600 s" in (tracker.folder / "log").read_text())
    time.sleep(0.5)
    assert tracker.sequences() == [1]
    assert not (tracker.folder / "ready").exists()
    assert tracker.end() == 0  # the job has ended: what is left is sent now
    assert tracker.sequences() == [1, 2]
    tracker.publish(commit(3))
    tracker.start(RLJOB_TRACKER_HANDOVER_SECONDS="0.1")
    tracker.until(lambda: tracker.sequences() == [1, 2, 3])
    assert tracker.end() == 0
