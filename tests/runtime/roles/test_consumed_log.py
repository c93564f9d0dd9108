"""The trainer's own log after a crash of the machine, which may have cut its last line and the attempts' numbers."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.buckets import s3_bucket

from rljob_contract.samples import random_samples
from rljob_core.messages import MicroBatch
from rljob_core.records import FED
from rljob_runtime.roles.trainer.consumed_log import FolderConsumedLog, open_consumed_log
from rljob_runtime.storage.trainer_log import TrainerLogObjects
from rljob_runtime.training.trainer_log_folder import trainer_log_folder


def micro_batch(number: int) -> MicroBatch:
    return MicroBatch(
        attempt=1, epoch=1, resume=1, step=3, micro_batch=number, last=False, max_staleness=1, items=()
    )


@pytest.mark.parametrize("torn", [b"", b'{"step": 3, "micro_b', bytes(300)])
def test_an_attempt_of_the_same_number_continues_after_whole_lines(tmp_path: Path, torn: bytes) -> None:
    samples, folder = random_samples(2), tmp_path / "run" / "trainer"
    FolderConsumedLog(folder, attempt=1).append(micro_batch(0), samples)
    file = folder / "attempt-1.jsonl"
    with file.open("ab") as left:
        left.write(torn)
    again = FolderConsumedLog(folder, attempt=1)
    again.append(micro_batch(1), samples)
    again.sync()
    lines = [FED.validate_json(line) for line in file.read_bytes().splitlines()]
    assert [line.micro_batch for line in lines] == [0, 1]
    assert [item.trajectory for item in lines[1].items] == [s.trajectory.id for s in samples]


def test_in_an_object_store_a_step_is_one_object_that_is_never_written_again() -> None:
    samples = random_samples(2)
    with s3_bucket("log") as uri:
        place = f"{uri}/trainer-log"
        log = open_consumed_log(place, attempt=1)
        log.append(micro_batch(0), samples)
        log.append(micro_batch(1), samples)
        objects = TrainerLogObjects(place)
        assert objects.numbers() == {}, "what is not proposed yet needs no witness"
        log.sync()
        log.sync()
        assert objects.numbers() == {1: [1]}
        again = open_consumed_log(place, attempt=1)
        again.append(micro_batch(2), samples)
        again.sync()
        with trainer_log_folder(place) as folder:
            lines = (folder / "attempt-1.jsonl").read_bytes().splitlines()
    assert [FED.validate_json(line).micro_batch for line in lines] == [0, 1, 2]
