"""`rljob backup` and `rljob restore` on real files and a real nats-server: what is copied, refused and verified."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from evidence_builder import job
from evidence_files import streams, write_whole_run
from invocation import Ended, children, rljob, snapshot
from pydantic import ValidationError
from tests.buckets import s3_bucket

from rljob_cli.backup import take
from rljob_cli.backup.copied import Copied
from rljob_cli.backup.files import JobFiles, Seen, Vanished, copy_files, copy_newest, look
from rljob_cli.backup.index import Index
from rljob_cli.backup.place import FolderPlace, StoredFile
from rljob_cli.backup.sources import back_up_run
from rljob_cli.run_folder.embedded_nats import streams_at_rest
from rljob_cli.run_folder.folder import RunFolder
from rljob_core.errors import StopRequested, StorageRefused
from rljob_core.job_state.versioned import VersionedState
from rljob_core.ports import MESSAGE_ID, Channel
from rljob_core.records import FED, FedMicroBatch, Generated, RecordBatch
from rljob_runtime.training.checkpoints import CheckpointStore
from rljob_runtime.weights.create import open_transport


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A `run` of three steps that is over, of which versions 2 and 3 have tensors, and its `backup`."""
    made = tmp_path_factory.mktemp("made")
    write(RunFolder(made / "run"))
    assert rljob("backup", made / "run", made / "backup").code == 0
    return made


@pytest.fixture
def folder(made: Path, tmp_path: Path) -> RunFolder:
    shutil.copytree(made / "run", tmp_path / "run", symlinks=True)
    return RunFolder(tmp_path / "run")


@pytest.fixture
def target(made: Path, tmp_path: Path) -> Path:
    shutil.copytree(made / "backup", tmp_path / "backup")
    return tmp_path / "backup"


def write(folder: RunFolder, *, lost: int = 0) -> None:
    evidence_builder = job()
    if lost:
        evidence_builder.lose(lost)
        known = {record.trajectory for record in evidence_builder.records() if isinstance(record, Generated)}
        evidence_builder.payloads = [one for one in evidence_builder.payloads if one.trajectory in known]
        evidence_builder.rewards = [one for one in evidence_builder.rewards if one.trajectory in known]
    write_whole_run(evidence_builder, folder)


def state_of(folder: RunFolder) -> VersionedState:
    state = VersionedState()
    state.replay(RecordBatch(e.writer, e.records) for e in job().ledger if e.records)
    return state


def index_of(target: Path) -> dict[str, Any]:
    return json.loads((target / "index.json").read_text())


def audit(path: Path) -> tuple[int, dict[str, Any]]:
    ended = rljob("audit", path, "--json")
    return ended.code, json.loads(ended.out)


def refusal(ended: Ended, code: int = 2) -> str:
    assert ended.code == code, ended
    (line,) = ended.errors
    return line.removeprefix("error: ")


async def messages_of(folder: RunFolder) -> dict[str, list[tuple[int, str, str, bytes]]]:
    """Sequence, suffix, id and data of all that the streams hold, the sequence after the newest, and their limits."""
    found: dict[str, list[tuple[int, str, str, bytes]]] = {}
    async with streams_at_rest(folder.nats, None, {}) as url, streams(url) as store:
        for channel in (Channel.LEDGER, Channel.TRAJECTORIES, Channel.REWARDS):
            last = await store.last_sequence(channel)
            stored = await store.get(channel, range(1, last + 1))
            found[channel] = [
                (m.sequence, m.suffix, m.headers[MESSAGE_ID], m.data) for m in stored if m is not None
            ]
            found[channel].append((last + 1, "", "", b""))
            found[channel].append((await store.limit(channel), "", "", b""))
    return found


def test_a_restored_job_is_the_one_that_was_backed_up(folder: RunFolder, tmp_path: Path) -> None:
    async def enlarge() -> None:
        async with streams_at_rest(folder.nats, None, {}) as url, streams(url) as store:
            await store.grow(Channel.TRAJECTORIES, 6 << 30)

    asyncio.run(enlarge())
    folder.engines.write_text('[{"engine": "pod-0/0", "profile": {"base": 0.01}}]\n')
    before = children()
    assert rljob("backup", folder.path, tmp_path / "backup").code == 0
    restored = RunFolder(tmp_path / "restored")
    assert rljob("restore", tmp_path / "backup", restored.path).code == 0
    assert not children() - before
    assert audit(restored.path) == audit(folder.path)
    assert audit(restored.path)[0] == 0
    assert asyncio.run(messages_of(restored)) == asyncio.run(messages_of(folder))
    for part in ("weights", "trainer"):
        here, there = snapshot(folder.path / part), snapshot(restored.path / part)
        assert {path.removeprefix(str(folder.path)): data for path, data in here.items()} == {
            path.removeprefix(str(restored.path)): data for path, data in there.items()
        }
    identity = folder.identity()
    assert identity is not None
    assert restored.identity() == replace(identity, given=identity.manifest)
    assert json.loads(restored.engines.read_text()) == json.loads(folder.engines.read_text())


@pytest.mark.parametrize("content", [None, "[{", "{}"], ids=["none", "damaged", "no list"])
def test_heartbeats_that_cannot_be_read_do_not_keep_a_job_from_its_backup(
    folder: RunFolder, tmp_path: Path, content: str | None
) -> None:
    if content is not None:
        folder.engines.write_text(content)
    assert rljob("backup", folder.path, tmp_path / "backup").code == 0
    restored = RunFolder(tmp_path / "restored")
    assert rljob("restore", tmp_path / "backup", restored.path).code == 0
    assert not restored.engines.exists()


def test_a_bucket_is_a_place_like_a_folder(folder: RunFolder, tmp_path: Path) -> None:
    with s3_bucket("backups") as bucket:
        target = f"{bucket}/team/sums"
        for number in (1, 2):
            ended = rljob("backup", folder.path, target)
            assert ended.out.startswith(f"backup {number} of example: version 3, "), ended
        assert rljob("restore", target, tmp_path / "restored").code == 0
    assert audit(tmp_path / "restored") == audit(folder.path)


def test_a_job_whose_ledger_has_lost_its_end_is_copied_with_the_proofs_of_it(tmp_path: Path) -> None:
    folder, restored = RunFolder(tmp_path / "run"), tmp_path / "restored"
    write(folder, lost=23)
    verdict = audit(folder.path)
    assert verdict[1]["verdict"] == "unfinished"
    assert rljob("backup", folder.path, tmp_path / "backup").code == 0
    assert rljob("restore", tmp_path / "backup", restored).code == 0
    assert audit(restored) == verdict


# ------------------------------------------------------------------------------------ which files belong to a ledger


class Copy:
    """The files of a run, as a backup copies them."""

    def __init__(self, folder: RunFolder, target: Path) -> None:
        self.folder, self.target = folder, target

    def __call__(self, seen: Seen | None = None) -> tuple[Copied, Seen]:
        copied = Copied(FolderPlace(self.target), {})
        with closing(open_transport("Files", uri=str(self.folder.weights))) as weights:
            checkpoints = CheckpointStore(str(self.folder.checkpoints), model_path=Path())
            files = JobFiles(weights, checkpoints, self.folder.trainer)
            noted = look(files)
            copy_newest(files, seen or noted, state_of(self.folder), copied)
            copy_files(files, seen or noted, state_of(self.folder), copied)
        return copied, noted


@pytest.fixture
def copy(folder: RunFolder, tmp_path: Path) -> Copy:
    return Copy(folder, tmp_path / "backup")


def feed(folder: RunFolder, step: int) -> int:
    """A line of the trainer's log; how long the log is then."""
    log = folder.trainer / "attempt-1.jsonl"
    with log.open("ab") as file:
        file.write(FED.dump_json(FedMicroBatch(step, 0, 1, 1, ())) + b"\n")
    return log.stat().st_size


def log_bytes(copied: Copied) -> int:
    (size,) = (stored.size for path, stored in copied.files.items() if path.startswith("trainer/"))
    return size


def test_what_the_job_does_after_the_ledger_was_read_is_not_copied(folder: RunFolder, copy: Copy) -> None:
    before, seen = copy()
    (folder.weights / "v4-a1").mkdir()
    (folder.weights / "v4-a1" / "manifest.json").write_text("{}")
    feed(folder, 3)
    feed(folder, 4)
    after, _ = copy(seen)
    assert after.files == before.files
    assert after.weights == before.weights == {"v1-a1": False, "v2-a1": True, "v3-a1": True}


def test_what_the_ledger_refers_to_is_copied_though_it_came_after_the_first_look(copy: Copy) -> None:
    everything, _ = copy()
    since, _ = copy(Seen(frozenset(), (), {}))
    assert since.files == everything.files
    assert since.weights == everything.weights


def test_proofs_of_what_a_ledger_has_lost_were_there_before_it_was_read(
    folder: RunFolder, copy: Copy
) -> None:
    (folder.weights / "v4-a1").mkdir()
    (folder.weights / "v4-a1" / "manifest.json").write_text("{}")
    size = feed(folder, 3)
    copied, _ = copy()
    assert copied.weights["v4-a1"] is False
    assert log_bytes(copied) == size


def test_a_line_that_is_being_written_is_not_copied(folder: RunFolder, copy: Copy) -> None:
    size = feed(folder, 2)
    with (folder.trainer / "attempt-1.jsonl").open("ab") as log:
        log.write(b'{"step": 2, "micro')
    copied, _ = copy()
    assert log_bytes(copied) == size


def test_a_newest_version_that_vanishes_is_not_passed_over_and_an_older_one_is(
    folder: RunFolder, copy: Copy
) -> None:
    (folder.weights / "v2-a1" / "weights.safetensors").unlink()
    assert copy()[0].weights == {"v1-a1": False, "v2-a1": False, "v3-a1": True}
    (folder.weights / "v3-a1" / "weights.safetensors").unlink()
    with pytest.raises(Vanished, match="v3-a1"):
        copy()


def test_links_in_a_checkpoint_lead_nowhere(folder: RunFolder, copy: Copy, tmp_path: Path) -> None:
    checkpoint = folder.checkpoints / "step-000002"
    (checkpoint / "optimizer").mkdir(parents=True)
    (checkpoint / "checkpoint.json").write_text('{"version": 2, "attempt": 1, "model": ""}')
    (checkpoint / "optimizer" / "rank-0.pt").write_bytes(b"state")
    (tmp_path / "secret").write_text("of this machine")
    (checkpoint / "model.safetensors").symlink_to(tmp_path / "secret")
    names = {path.split("/", 3)[3] for path in copy()[0].files if path.startswith("checkpoints/")}
    assert names == {"checkpoint.json", "optimizer/rank-0.pt"}


def test_a_job_whose_newest_version_is_gone_is_not_backed_up(folder: RunFolder, tmp_path: Path) -> None:
    (folder.weights / "v3-a1" / "weights.safetensors").unlink()
    said = refusal(rljob("backup", folder.path, tmp_path / "backup"), code=1)
    assert said.startswith(f"what the ledger refers to was gone {take.ROUNDS} times before it was copied")
    assert "spec.weights.keepVersions" in said
    assert not (tmp_path / "backup" / "index.json").exists()


# ------------------------------------------------------------------------------------ the place of the backup


class FailingPlace(FolderPlace):
    """Takes so many files, and no more."""

    def __init__(self, root: Path, files: int) -> None:
        super().__init__(root)
        self.left = files

    def write(self, path: str, chunks: Iterable[bytes | memoryview]) -> StoredFile:
        self.left -= 1
        if self.left < 0:
            raise StorageRefused("full")
        return super().write(path, chunks)


def test_a_backup_that_breaks_off_leaves_the_one_before_it(folder: RunFolder, tmp_path: Path) -> None:
    target = tmp_path / "backup"
    asyncio.run(back_up_run(folder, FolderPlace(target)))
    index = index_of(target)
    files = 0
    while True:
        try:
            asyncio.run(back_up_run(folder, FailingPlace(target, files)))
        except StorageRefused:
            assert index_of(target) == index
            assert {path for path in index["files"] if not (target / path).is_file()} == set()
            files += 1
        else:
            break
    assert files > 3
    assert index_of(target)["number"] == 2
    left = {path.relative_to(target).as_posix() for path in target.rglob("*") if path.is_file()}
    assert left == {*index_of(target)["files"], "index.json"}


def test_a_first_backup_that_breaks_off_is_none_and_is_continued(folder: RunFolder, tmp_path: Path) -> None:
    target = tmp_path / "backup"
    with pytest.raises(StorageRefused):
        asyncio.run(back_up_run(folder, FailingPlace(target, 4)))
    assert "holds no backup" in refusal(rljob("restore", target, tmp_path / "restored"))
    assert rljob("backup", folder.path, target).code == 0
    assert rljob("restore", target, tmp_path / "restored").code == 0


def test_only_an_empty_place_or_one_of_this_job_is_written_to(folder: RunFolder, tmp_path: Path) -> None:
    target = tmp_path / "weights-of-mine"
    (target / "weights").mkdir(parents=True)
    (target / "weights" / "mine").write_text("precious")
    before = snapshot(target)
    assert "holds other files (weights/mine)" in refusal(rljob("backup", folder.path, target))
    assert snapshot(target) == before
    assert rljob("backup", folder.path, tmp_path / "backup").code == 0
    identity = folder.identity()
    assert identity is not None
    folder.write(replace(identity, uid="other"))
    assert "holds a backup of another job (uid 0123)" in refusal(
        rljob("backup", folder.path, tmp_path / "backup")
    )


def test_one_backup_at_a_time(folder: RunFolder, target: Path) -> None:
    before = snapshot(target)
    with FolderPlace(target).locked():
        assert refusal(rljob("backup", folder.path, target)).startswith(
            "TARGET: another backup is being written"
        )
    assert snapshot(target) == before


def test_an_interrupted_copy_ends_soon(target: Path) -> None:
    copied = Copied(FolderPlace(target), {})

    def endless() -> Iterator[bytes]:
        while True:
            yield b"tensor"
            copied.stopped.set()

    with pytest.raises(StopRequested):
        copied.add("weights/v9/weights.safetensors", endless())
    assert not list(target.rglob("*v9*/*"))


def test_a_ledger_that_has_lost_its_end_does_not_replace_its_backup(target: Path, tmp_path: Path) -> None:
    cut, before = RunFolder(tmp_path / "cut"), index_of(target)
    write(cut, lost=2)
    said = refusal(rljob("backup", cut.path, target))
    assert said.startswith("TARGET: the job's ledger does not continue that of the backup there")
    assert index_of(target) == before
    assert rljob("restore", target, tmp_path / "restored").code == 0


# ------------------------------------------------------------------------------------ restoring


def test_a_link_in_place_of_the_hidden_folder_is_not_followed(target: Path, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "file").write_text("before")
    (tmp_path / ".restored.restoring").symlink_to(tmp_path / "mine")
    assert "is a link: remove it" in refusal(rljob("restore", target, tmp_path / "restored"))
    assert (tmp_path / "mine" / "file").read_text() == "before"


def test_nothing_is_overwritten(folder: RunFolder, target: Path, tmp_path: Path) -> None:
    before = snapshot(folder.path)
    assert "choose an empty or a new folder" in refusal(rljob("restore", target, folder.path))
    assert snapshot(folder.path) == before
    elsewhere = tmp_path / "weights"
    (elsewhere / "v1-a1").mkdir(parents=True)
    (elsewhere / "v1-a1" / "manifest.json").write_text("{}")
    said = refusal(rljob("restore", target, tmp_path / "restored", "--set", f"spec.weights.uri={elsewhere}"))
    assert said.startswith("spec.weights.uri: ")
    assert not (tmp_path / "restored").exists()


@pytest.mark.parametrize("part", ["streams/ledger/*", "weights/v3-a1/weights.safetensors", "trainer/*/*"])
@pytest.mark.parametrize("damage", ["altered", "cut", "gone"])
def test_damage_is_noticed_and_nothing_is_restored(
    target: Path, tmp_path: Path, part: str, damage: str
) -> None:
    (file,) = target.glob(part)
    content = file.read_bytes()
    match damage:
        case "altered":
            file.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
        case "cut":
            file.write_bytes(content[:-1])
        case _:
            file.unlink()
    said = refusal(rljob("restore", target, tmp_path / "restored"), code=1)
    assert file.relative_to(target).as_posix() in said
    assert said.endswith("use another backup")
    assert [path.name for path in tmp_path.iterdir()] == ["backup"]


@pytest.mark.parametrize(
    ("part", "name"),
    [
        ("files", "../../evil"),
        ("files", "/etc/evil"),
        ("files", "trainer//attempt-1.jsonl"),
        ("files", "trainer/5/.."),
        ("files", "trainer/5/evil.pth"),
        ("files", "weights/v1-a1/evil.pth"),
        ("files", "weights/site.packages/manifest.json"),
        ("files", "streams/work/000001-0001.jsonl.gz"),
        ("files", "checkpoints/evil"),
        ("files", "checkpoints/site-packages/0123456789abcdef/evil.pth"),
        ("files", "checkpoints/step-000001/0123456789abcdef/../evil.pth"),
        ("files", "checkpoints/step-000001/0123456789abcdef/alone"),
        ("files", "checkpoints/step-\u0663\u0663\u0663\u0663\u0663\u0663/0123456789abcdef/checkpoint.json"),
        ("weights", "../v1-a1"),
        ("streams", "work"),
    ],
)
def test_an_index_names_nothing_but_the_files_of_a_backup(made: Path, part: str, name: str) -> None:
    index = index_of(made / "backup")
    entry = {"files": {"size": 0, "sha256": 64 * "0"}, "weights": True, "streams": index["streams"]["ledger"]}
    index[part][name] = entry[part]
    with pytest.raises(ValidationError):
        Index.model_validate_json(json.dumps(index))


@pytest.mark.parametrize("field", ["spec.weights.uri", "spec.trainer.checkpoint.uri", "spec.nats.url"])
def test_a_backup_alone_names_no_place_that_is_written_to(target: Path, tmp_path: Path, field: str) -> None:
    index, elsewhere = index_of(target), tmp_path / "elsewhere"
    value = "nats://127.0.0.1:1" if field == "spec.nats.url" else str(elsewhere)
    place = index["identity"]["manifest"]
    *parents, last = field.split(".")
    for name in parents:
        place = place.setdefault(name, {})
    place[last] = value
    index["identity"] |= {"origin": str(elsewhere), "viewer": str(elsewhere), "patches": ["spec.steps=9"]}
    (target / "index.json").write_text(json.dumps(index))
    said = refusal(rljob("restore", target, tmp_path / "restored"))
    assert said.startswith(f"{field}: ")
    assert f"--set {field}={value}" in said
    assert not elsewhere.exists()
    restored = RunFolder(tmp_path / "restored")
    ended = rljob("restore", target, restored.path, "--set", f"{field}=null")
    assert ended.code == 0
    assert f"--resume --set {field}=null --set spec.steps=9" in ended.out
    identity = restored.identity()
    assert identity is not None
    assert (identity.origin, identity.viewer, identity.patches) == ("", "", [])
    assert not elsewhere.exists()


def test_an_index_of_a_later_format_is_refused(target: Path, tmp_path: Path) -> None:
    index = index_of(target)
    (target / "index.json").write_text(json.dumps({**index, "format": index["format"] + 1}))
    said = refusal(rljob("restore", target, tmp_path / "restored"), code=1)
    assert "(format: " in said
    assert "use the release of rljob that wrote it" in said


def test_the_index_is_what_its_model_says(target: Path) -> None:
    content = (target / "index.json").read_bytes()
    assert Index.model_validate_json(content).model_dump(mode="json") == json.loads(content)


def test_an_unreadable_place_is_named(folder: RunFolder, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    ended = rljob("backup", folder.path, file / "backup")
    assert ended.code == 1
    assert str(file) in ended.errors[0]
