"""Weights are staged for an engine as complete sets, and the files of killed processes are removed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from rljob_core.errors import WeightsRejected
from rljob_runtime.engines.staging import Staging

SHAPES = {"a": (2, 3), "lm_head.weight": (4, 3)}
OWNER = """
import sys, torch
from rljob_runtime.engines.staging import Staging
staging = Staging({"a": (2, 3)}, optional=frozenset(), root=None)
print(staging.write([("a", torch.zeros(2, 3))]), flush=True)
sys.stdin.readline()
"""


def new() -> Staging:
    return Staging(SHAPES, optional=frozenset({"lm_head.weight"}), root=None)


def owner() -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", OWNER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def test_what_a_killed_process_left_is_removed_and_what_a_living_one_has_is_kept() -> None:
    processes = [owner(), owner()]
    try:
        left, kept = (Path(process.stdout.readline().strip()) for process in processes if process.stdout)
        assert left.is_dir()
        processes[0].kill()
        processes[0].wait()
        staging = new()
        mine = staging.write([("a", torch.zeros(2, 3))])
        assert not left.parent.exists()
        assert kept.is_dir()
        staging.close()
        assert not mine.parent.exists()
    finally:
        for process in processes:
            process.kill()
            process.communicate()


def test_sets_are_whole_or_refused(tmp_path: Path) -> None:
    staging = Staging(SHAPES, optional=frozenset({"lm_head.weight"}), root=tmp_path)
    good = staging.write([("a", torch.zeros(2, 3))])
    for wrong, message in [
        ([("a", torch.zeros(3, 2))], "shape"),
        ([("b", torch.zeros(1))], "none of that name"),
        ([("lm_head.weight", torch.zeros(4, 3))], "missing"),
    ]:
        with pytest.raises(WeightsRejected, match=message):
            staging.write(wrong)
    assert list(good.parent.iterdir()) == [good]
    staging.drop(good)
    assert not good.exists()
    staging.close()
    assert list(tmp_path.iterdir()) == []
