"""Checkpoints in an object store: a real S3 server, writers that are killed, and a store that refuses or is away."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.buckets import s3_bucket

from rljob_core.errors import JobFailed, SpecError, StorageRefused
from rljob_runtime.storage.objects import object_store
from rljob_runtime.training.checkpoint_base import INFO
from rljob_runtime.training.checkpoint_objects import ObjectCheckpoints, upload_part
from rljob_runtime.training.checkpoints import open_checkpoints
from rljob_runtime.training.object_state import ObjectStateBackend


@pytest.fixture(scope="module")
def bucket() -> Iterator[str]:
    """A bucket on an S3 server."""
    with s3_bucket("checkpoints") as uri:
        yield uri


@pytest.fixture
def root(bucket: str, request: pytest.FixtureRequest) -> str:
    """A prefix of its own for each test."""
    return f"{bucket}/{request.node.name.replace('[', '-').replace(']', '')}"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A model's folder: what checkpoints take over from it."""
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text('{"model_type": "tiny"}')
    (folder / "tokenizer.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(b"weights of the initial model")
    return folder


@pytest.fixture
def store(root: str, model: Path) -> ObjectCheckpoints:
    """The store that is tested."""
    found = open_checkpoints(root, model_path=model)
    assert isinstance(found, ObjectCheckpoints)
    return found


class Rank:
    """A backend of which only the state counts: a text."""

    def __init__(self, rank: int, text: str = "") -> None:
        self.rank, self.text, self.shared = rank, text, ""

    def save(self, folder: str) -> None:
        """Write this rank's file, and rank 0 the model's settings."""
        (Path(folder) / f"optimizer-{self.rank:05d}").write_text(self.text)
        if not self.rank:
            (Path(folder) / "config.json").write_text('{"trained": true}')

    def load_state(self, folder: str | None) -> None:
        """Take the texts of all ranks."""
        assert folder is not None
        self.shared = folder
        self.text = "".join(path.read_text() for path in sorted(Path(folder).glob("optimizer-*")))


def saved_by(*texts: str) -> Any:
    """What writes a checkpoint of so many ranks."""
    ranks = [ObjectStateBackend(Rank(number, text), rank=number) for number, text in enumerate(texts)]

    def save(place: str) -> None:
        for rank in ranks:
            rank.save(place)

    return save


def write(store: ObjectCheckpoints, version: int, *, attempt: int = 1, text: str = "state") -> str:
    return store.write(version=version, manifest=f"m{version}", attempt=attempt, save=saved_by(text))


def names(root: str) -> set[str]:
    """Names of all objects below a prefix."""
    files, folder = object_store(root, field="")
    files.invalidate_cache()
    return {name.removeprefix(f"{folder}/") for name in files.find(folder)}


def test_a_checkpoint_of_two_ranks_is_loaded_by_any_number(store: ObjectCheckpoints, root: str) -> None:
    key = store.write(version=2, manifest="m", attempt=1, save=saved_by("first ", "second"))
    assert store.keys() == [key] == ["step-000002"]
    assert store.newest(7) == (2, key)
    assert store.info(key).manifest == "m"
    store.verify_model(key)
    assert names(f"{root}/{key}") == {
        "checkpoint.json", "config.json", "tokenizer.json", "optimizer-00000", "optimizer-00001",
        "ranks/00000.json", "ranks/00001.json",
    }  # fmt: skip
    one = Rank(0)
    ObjectStateBackend(one, rank=0).load_state(store.state(key))
    assert one.text == "first second"
    assert not Path(one.shared).exists()
    with store.local(key) as folder:
        assert (folder / "config.json").read_text() == '{"trained": true}'
        assert (folder / "tokenizer.json").read_text() == "{}"
    assert not folder.exists()


def test_the_newest_two_versions_are_kept(store: ObjectCheckpoints, root: str) -> None:
    for version in (2, 4, 6):
        write(store, version)
    assert store.keys() == ["step-000004", "step-000006"]
    assert not any(name.startswith("step-000002") for name in names(root))


def test_revoked_checkpoints_are_forgotten(store: ObjectCheckpoints) -> None:
    for version in (2, 4):
        write(store, version)
    store.forget(after=2)
    assert store.keys() == ["step-000002"]
    store.forget(after=0)
    assert not store.is_used()


def test_a_key_is_never_written_twice(store: ObjectCheckpoints) -> None:
    assert [write(store, 3), write(store, 3), write(store, 3, attempt=2)] == [
        "step-000003", "step-000003-1000001", "step-000003-2",
    ]  # fmt: skip
    assert len(store.keys()) == 3


def test_what_another_attempt_has_begun_is_neither_met_nor_kept(store: ObjectCheckpoints, root: str) -> None:
    old = f"{root}/step-000004"
    files, folder = object_store(old, field="")
    files.pipe_file(f"{folder}/optimizer-00000", b"half")
    files.pipe_file(f"{folder.removesuffix('-000004')}-000004-3/optimizer-00000", b"of a newer attempt")
    assert store.keys() == []
    assert write(store, 4, attempt=2) == "step-000004-2"
    assert store.keys() == ["step-000004-2"]
    left = {name.partition("/")[0] for name in names(root)}
    assert left == {"step-000004-2", "step-000004-3"}  # the newer attempt may still be writing


def test_a_rank_without_its_files_makes_no_checkpoint(store: ObjectCheckpoints, root: str) -> None:
    files, folder = object_store(root, field="")
    save = saved_by("first", "second")

    def losing(place: str) -> None:
        save(place)
        files.rm_file(f"{folder}/step-000002/optimizer-00001")

    with pytest.raises(StorageRefused, match="optimizer-00001 were removed while they were written"):
        store.write(version=2, manifest="m", attempt=1, save=losing)
    assert store.keys() == []


def test_two_ranks_of_one_file_have_to_agree(store: ObjectCheckpoints, tmp_path: Path) -> None:
    def of_two(first: str, second: str) -> Any:
        def save(place: str) -> None:
            for rank, text in enumerate((first, second)):
                folder = tmp_path / f"{rank}{text}"
                folder.mkdir(exist_ok=True)
                (folder / "state").write_text(text)
                upload_part(place, folder, rank=rank)

        return save

    store.write(version=2, manifest="m", attempt=1, save=of_two("same", "same"))
    with pytest.raises(StorageRefused, match="two ranks have written different files state"):
        store.write(version=4, manifest="m", attempt=1, save=of_two("one", "two"))
    assert store.keys() == ["step-000002"]


def test_an_object_that_was_altered_is_not_loaded(store: ObjectCheckpoints, root: str) -> None:
    key = write(store, 2, text="state")
    files, folder = object_store(root, field="")
    files.pipe_file(f"{folder}/{key}/optimizer-00000", b"stale")
    with pytest.raises(JobFailed, match="optimizer-00000 is not what was written"):
        ObjectStateBackend(Rank(0), rank=0).load_state(store.state(key))


def test_a_checkpoint_that_was_deleted_does_not_load(store: ObjectCheckpoints) -> None:
    with pytest.raises(JobFailed, match=r"step-000009 does not load: it was deleted"):
        ObjectStateBackend(Rank(0), rank=0).load_state(store.state("step-000009"))
    with pytest.raises(SpecError, match=r"step-000009 is not a checkpoint"):
        store.info("step-000009")


def test_what_was_restored_is_a_checkpoint(store: ObjectCheckpoints, model: Path, tmp_path: Path) -> None:
    from rljob_runtime.training.checkpoints import CheckpointStore

    folder = CheckpointStore(str(tmp_path / "folder"), model_path=model)
    key = folder.write(version=2, manifest="m", attempt=1, save=lambda place: Rank(0, "state").save(place))

    def fill(target: Path) -> None:
        for path in folder.folder(key).iterdir():
            (target / path.name).write_bytes(path.read_bytes())

    store.put(key, fill)
    rank = Rank(0)
    ObjectStateBackend(rank, rank=0).load_state(store.state(key))
    assert (store.keys(), rank.text, store.info(key).manifest) == ([key], "state", "m")


KILLED = """
import os, signal, sys
from pathlib import Path
from rljob_runtime.training import checkpoint_objects
from rljob_runtime.training.checkpoint_objects import ObjectCheckpoints, upload_part

class Killed(ObjectCheckpoints):
    def _commit(self, *arguments, **options):  # between the upload and what makes it a checkpoint
        if sys.argv[3] == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        super()._commit(*arguments, **options)
        os.kill(os.getpid(), signal.SIGKILL)

def save(place):
    folder = Path(sys.argv[4])
    folder.mkdir()
    (folder / "optimizer-00000").write_text("state")
    upload_part(place, folder, rank=0)

Killed(sys.argv[1], model_path=Path(sys.argv[2])).write(version=2, manifest="m", attempt=1, save=save)
"""


@pytest.mark.parametrize(("moment", "whole"), [("before", []), ("after", ["step-000002"])])
def test_a_writer_that_is_killed_around_the_commit(
    store: ObjectCheckpoints, root: str, model: Path, moment: str, whole: list[str]
) -> None:
    arguments = [root, str(model), moment, str(model.parent / "part")]
    killed = subprocess.run([sys.executable, "-c", KILLED, *arguments], check=False, env=os.environ)
    assert killed.returncode == -signal.SIGKILL
    assert ("step-000002/optimizer-00000" in names(root), f"step-000002/{INFO}" in names(root)) == (
        True,
        bool(whole),
    )
    assert store.keys() == whole
    assert write(store, 2, attempt=2) == "step-000002-2"
    assert store.newest(2) == (2, "step-000002-2")
    assert store.keys() == [*whole, "step-000002-2"]


def test_a_missing_bucket_is_not_waited_for(model: Path, bucket: str) -> None:
    store = open_checkpoints(f"{bucket}-other/run", model_path=model)
    with pytest.raises(
        StorageRefused, match=r"cannot write the checkpoint of version 1 to s3://.*-other/run"
    ):
        store.write(version=1, manifest="m", attempt=1, save=saved_by("state"))
