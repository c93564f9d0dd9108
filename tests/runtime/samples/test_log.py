"""The writer of samples: what it stores, and that nothing it meets costs more than samples."""

from __future__ import annotations

import logging
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from sample_answers import answer, keep, sample_log
from tests.buckets import s3_bucket
from tests.runtime.full_disk import files_of_at_most
from tests.waiting import until

from rljob_core.errors import StorageRefused
from rljob_core.failures import Failure, Reason
from rljob_runtime.messaging.wire import decode, encode
from rljob_runtime.samples import log as log_module
from rljob_runtime.samples.places import SampleFolder, open_samples
from rljob_runtime.samples.read import SampleFilter, SampleReader


def read(folder: Path) -> SampleReader:
    return SampleReader(SampleFolder(folder))


def test_an_answer_is_read_as_it_was_kept(tmp_path: Path) -> None:
    kept = answer("g7.2", prompt="3+4=", response="77", versions=[4, 5], reward=0.5, at=10.0)
    keep(tmp_path, kept)
    page = read(tmp_path).page()
    (group,) = page.groups
    assert (group.group, group.prompt, group.prompt_index, group.evaluated) == ("g7", "3+4=", 7, None)
    (found,) = group.answers
    assert (found.trajectory, found.attempt, found.response) == ("g7.2", 1, "77")
    assert (found.reward, found.parts, found.error) == (0.5, {"exact_match": 0.5}, "")
    assert (found.tokens, found.texts) == ([ord("7")] * 2, ["7", "7"])
    assert (found.logprobs, found.versions) == ([-0.5, -0.5], [4, 5])
    assert (found.version_min, found.version_max, found.engine, found.worker) == (
        4,
        5,
        "engine-0",
        "reward-0",
    )
    assert found.received.timestamp() == kept.received
    assert found.scored.timestamp() == kept.scored
    assert page.problems == ()


def test_training_and_evaluations_are_in_files_of_their_own(tmp_path: Path) -> None:
    keep(tmp_path, answer("g0.0"), answer("e3-0.0"), answer("e3-0.1"))
    assert sorted(path.name.partition("-")[0] for path in tmp_path.iterdir()) == ["evaluation", "training"]


def test_only_the_share_of_training_is_kept(tmp_path: Path) -> None:
    log = sample_log(tmp_path, share=0.0)
    log.offer(answer("g0.0"))
    log.offer(answer("e0-0.0"))
    log.close(60.0)
    assert log.counts.offered == log.counts.stored == 1
    assert [group.group for group in read(tmp_path).page().groups] == ["e0-0"]


def test_a_file_grows_while_answers_come_and_is_never_seen_half(tmp_path: Path) -> None:
    log = sample_log(tmp_path)
    log.offer(answer("g0.0"))
    until(lambda: log.counts.stored == 1, "first file")
    reader = read(tmp_path)
    log.offer(answer("g1.0"))
    until(lambda: log.counts.stored == 2, "second answer")
    assert reader.refresh()
    assert reader.page().total == 2
    assert len(list(tmp_path.iterdir())) == 1
    log.close(60.0)


def test_two_writers_keep_one_group_together(tmp_path: Path) -> None:
    keep(tmp_path, answer("g0.0", reward=1.0), writer="reward-0.a")
    keep(tmp_path, answer("g0.1", reward=0.0), answer("g1.0"), writer="reward-1.b")
    # A worker died before it acknowledged: its answers are scored again.
    keep(tmp_path, answer("g0.0", reward=1.0, at=5.0), writer="reward-1.c")
    page = read(tmp_path).page(order="worst")
    assert [(g.group, g.reward, len(g.answers)) for g in page.groups] == [("g0", 0.5, 2), ("g1", 1.0, 1)]


def test_the_oldest_are_deleted_when_there_are_too_many(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_module, "pause_after", lambda seconds: 0.0)
    keep(tmp_path, answer("e0-0.0"))  # of another writer, and older
    log = sample_log(tmp_path, "reward-1.b", keep_bytes=400 << 10)
    text = "".join(map(chr, range(0x4E00, 0x5600)))
    for number in range(200):
        log.offer(answer(f"g{number}.0", response=text[number:] + text[:number], at=float(number)))
        if number % 10 == 0:
            until(lambda number=number: log.counts.stored > number, "room")
    log.close(120.0)
    assert log.counts.stored == 200
    size = sum(path.stat().st_size for path in tmp_path.iterdir())
    groups = [group.group for group in read(tmp_path).page(limit=1000).groups]
    training = [group for group in groups if group != "e0-0"]
    assert groups[0] == "g199"
    assert "e0-0" in groups
    assert training == [f"g{number}" for number in range(199, 199 - len(training), -1)]
    assert len(training) < 150
    assert size <= 500 << 10


class Refusing(SampleFolder):
    """A store that takes nothing for a while."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.full = True
        self.writes = 0

    def write(self, name: str, content: memoryview) -> None:
        self.writes += 1
        if self.full:
            raise StorageRefused("no space left on device")
        super().write(name, content)


def test_a_full_store_is_complained_about_once_and_samples_come_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_module, "_AGAIN", 0.05)
    place = Refusing(tmp_path)
    log = sample_log(place)
    with caplog.at_level(logging.INFO):
        for number in range(5):
            log.offer(answer(f"g{number}.0"))
            until(lambda number=number: place.writes > number, "attempt")
        assert "no space left" in log.counts.problem
        place.full = False
        until(lambda: log.counts.stored == 5, "all of them")  # also without another answer
    log.close(60.0)
    warnings = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(warnings) == 1
    assert "training continues" in warnings[0].getMessage()
    assert log.counts.problem == ""
    assert read(tmp_path).page().total == 5


def test_a_disk_that_takes_no_more_leaves_whole_files(tmp_path: Path) -> None:
    log = sample_log(tmp_path)
    log.offer(answer("g0.0"))
    until(lambda: log.counts.stored == 1, "first file")
    with files_of_at_most(1000):
        log.offer(answer("g1.0", response="".join(map(chr, range(0x4E00, 0x5E00)))))
        until(lambda: log.counts.problem != "", "refusal")
    page = read(tmp_path).page()
    assert (page.total, page.problems) == (1, ())
    log.close(60.0)
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []
    assert read(tmp_path).page().total == 2


def test_a_full_store_does_not_keep_more_than_is_wanted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_module, "_AGAIN", 0.05)
    keep(tmp_path, answer("g0.0"), writer="reward-0.1")
    keep(tmp_path, answer("g1.0", at=1.0), writer="reward-0.2")
    place = Refusing(tmp_path)
    log = sample_log(place, "reward-0.3", keep_bytes=1)  # lowered
    until(lambda: len(place.sizes()) == 1, "deletion at the start")
    place.full = False
    place.write("training-1600000000000-reward-0.0-0001.parquet", memoryview(b"of another writer"))
    place.full = True
    log.offer(answer("g2.0", at=2.0))
    until(lambda: place.writes > 1 and len(place.sizes()) == 1, "deletion after a refusal")
    log.close(60.0)
    assert [group.group for group in read(tmp_path).page().groups] == ["g1"]


def test_samples_yield_to_checkpoints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nearly_full = shutil.disk_usage(tmp_path)._replace(total=100 << 30, free=1 << 30)
    with monkeypatch.context() as patched:
        patched.setattr(shutil, "disk_usage", lambda path: nearly_full)
        log = sample_log(tmp_path)
        log.offer(answer("g0.0"))
        until(lambda: log.counts.problem != "", "refusal")
    assert "1024 MB are free, of which samples leave 1024 MB to checkpoints" in log.counts.problem
    assert list(tmp_path.iterdir()) == []
    log.close(60.0)
    assert log.counts.stored == 1


class Hanging(SampleFolder):
    """A network file system whose server is gone."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.back = threading.Event()

    def write(self, name: str, content: memoryview) -> None:
        self.back.wait()
        super().write(name, content)


def test_a_store_that_hangs_costs_samples_and_neither_time_nor_memory(tmp_path: Path) -> None:
    place = Hanging(tmp_path)
    log = sample_log(place, waiting_bytes=20_000)
    for number in range(100):
        log.offer(answer(f"g{number}.0"))  # returns
    assert log.counts.lost > 50
    log.close(0.1)  # returns, too
    place.back.set()
    until(lambda: not log._thread.is_alive(), "the end of its thread")


def test_what_waits_does_not_keep_the_message_that_it_came_with(tmp_path: Path) -> None:
    data = encode([answer(f"g{number}.0", response="2" * 500).trajectory for number in range(50)])
    message, received = np.frombuffer(data, np.uint8), decode(data)[0]
    assert np.shares_memory(received.segments[1].logprobs, message)
    place = Hanging(tmp_path)
    log = sample_log(place)
    log.offer(answer("g0.0"))  # whose write hangs
    until(lambda: log._size == 0, "the write")
    log.offer(replace(answer("g0.0"), trajectory=received))
    (waiting,) = log._waiting
    for kept, came in zip(waiting.trajectory.segments, received.segments, strict=True):
        for name in ("tokens", "loss_mask", "logprobs", "versions"):
            assert np.array_equal(getattr(kept, name), getattr(came, name))
            assert not np.shares_memory(getattr(kept, name), message)
    place.back.set()
    log.close(60.0)


def test_an_answer_that_cannot_be_kept_costs_itself(tmp_path: Path) -> None:
    odd = answer("g1.0", response="x")
    odd.trajectory.segments[1].tokens[0] = -5
    broken = answer("g2.0", failure=Failure(Reason.REWARD_RAISED, "\ud800"))
    log = sample_log(tmp_path)
    for one in (answer("g0.0"), odd, broken):
        log.offer(one)
    log.close(60.0)
    found = {group.group: group for group in read(tmp_path).page().groups}
    assert sorted(found) == ["g0", "g2"]
    assert (log.counts.stored, log.counts.lost) == (2, 1)
    assert found["g2"].answers[0].error == "RewardRaised: ?"
    assert found["g2"].reward is None


_WRITES_WITHOUT_END = """
import itertools, sys
from pathlib import Path
from sample_answers import answer, sample_log
import rljob_runtime.samples.log as module

module.pause_after = lambda seconds: 0.0  # so that it is nearly always at a write
log = sample_log(Path(sys.argv[1]), sys.argv[2])
said = False
for number in itertools.count():
    log.offer(answer(f"g{number}.0", response="answer " * 50))
    while log.counts.offered - log.counts.stored > 200:
        pass
    if log.counts.stored >= 100 and not said:
        said = True
        print("begun", flush=True)
"""


def test_kill_9_in_the_middle_of_a_write_leaves_whole_files(tmp_path: Path) -> None:
    places = os.pathsep.join([str(Path(__file__).parents[1]), *sys.path])
    for turn in range(3):
        process = subprocess.Popen(
            [sys.executable, "-c", _WRITES_WITHOUT_END, str(tmp_path), f"reward-0.{turn}"],
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": places},
        )
        assert process.stdout is not None
        assert process.stdout.readline() == b"begun\n"
        time.sleep(0.05 * turn)
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdout.close()
    reader = read(tmp_path)
    page = reader.page()
    assert page.problems == ()
    assert page.total >= 100


def test_what_a_killed_writer_left_is_swept_an_hour_later(tmp_path: Path) -> None:
    left, young = tmp_path / ".training-1.parquet.writing", tmp_path / ".training-2.parquet.writing"
    for path in (left, young):
        path.write_bytes(b"PAR1")
    os.utime(left, (time.time() - 4000,) * 2)
    keep(tmp_path, answer("g0.0"))
    assert not left.exists()
    assert young.exists()
    assert read(tmp_path).page().total == 1


def test_samples_are_kept_in_a_bucket_too() -> None:
    with s3_bucket("runs") as uri:
        place = open_samples(f"{uri}/job/samples")
        assert SampleReader(place).page().total == 0
        keep(place, answer("g0.0", prompt="Wie viel?"), answer("e0-0.0"))
        reader = SampleReader(open_samples(f"{uri}/job/samples"))
        assert reader.page(SampleFilter(prompt="wie")).groups[0].answers[0].response == "2"
        assert reader.page().total == 2
        for name in place.sizes():
            place.delete(name)
            place.delete(name)
        reader.refresh()
        assert reader.page().total == 0
