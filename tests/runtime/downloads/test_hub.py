"""Models from a hub: the revision, the cache, connections that are cut, digests, and what is refused."""

from __future__ import annotations

import json
import os
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.hub import Hub, Repository, running_hub

from rljob_core.errors import ResourceMissing, RLJobError, SpecError, StorageRefused, StoreUnavailable
from rljob_core.remote_uri import RemoteSource
from rljob_runtime.downloads import fetch as fetching
from rljob_runtime.downloads.fetch import Fetched, cache_folder, fetch

WEIGHTS = os.urandom(1 << 20)
FILES = {
    "config.json": json.dumps({"architectures": ["LlamaForCausalLM"]}).encode(),
    "model.safetensors": WEIGHTS,
    "tokenizer.json": b"{}",
    "additional_chat_templates/tool_use.jinja": b"{{ tools }}",
}


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    monkeypatch.setattr(fetching, "_PAUSE_SECONDS", 0.0)
    monkeypatch.setattr("time.sleep", lambda _: None)  # the client's own, between tries
    monkeypatch.setattr("huggingface_hub.constants.DOWNLOAD_CHUNK_SIZE", 100_000)
    with running_hub() as hub:
        yield hub


def add(hub: Hub, files: dict[str, bytes] = FILES, name: str = "models/acme/tiny") -> Repository:
    repository = hub.repositories[name] = Repository()
    repository.commit(files)
    return repository


def get(uri: str, cache: Path, revision: str = "") -> Fetched:
    return fetch(RemoteSource("model", "spec.model.uri", uri), cache=cache, revision=revision)


def files_in(folder: Path) -> dict[str, bytes]:
    files = (file for file in folder.rglob("*") if file.is_file())
    return {str(file.relative_to(folder)): file.read_bytes() for file in files}


def refusal(uri: str, cache: Path, kind: type[RLJobError] = SpecError) -> str:
    with pytest.raises(kind) as caught:
        get(uri, cache)
    return str(caught.value)


def test_a_model_is_downloaded_once_at_the_commit_of_its_branch(hub: Hub, tmp_path: Path) -> None:
    repository = add(hub)
    first = get("hf://acme/tiny@main", tmp_path)
    assert files_in(first.path) == FILES
    assert first.revision == repository.branches["main"]
    assert get("hf://acme/tiny", tmp_path) == first
    assert len(hub.downloads()) == 1


def test_a_branch_that_moved_is_followed_by_new_jobs_alone(hub: Hub, tmp_path: Path) -> None:
    repository = add(hub)
    began = get("hf://acme/tiny@main", tmp_path).revision
    repository.commit({**FILES, "model.safetensors": WEIGHTS[::-1]})
    asked = len(hub.requests)
    assert get("hf://acme/tiny@main", tmp_path, began).revision == began
    assert len(hub.requests) == asked  # nothing has to be asked: the cache has it
    elsewhere = get("hf://acme/tiny@main", tmp_path / "another", began)
    assert (elsewhere.path / "model.safetensors").read_bytes() == WEIGHTS
    assert get("hf://acme/tiny@main", tmp_path).revision == repository.branches["main"] != began


def test_a_cut_is_continued_in_the_middle_of_the_file(hub: Hub, tmp_path: Path) -> None:
    add(hub).cuts = [300_000]
    found = get("hf://acme/tiny", tmp_path)
    assert (found.path / "model.safetensors").read_bytes() == WEIGHTS
    assert [one.range for one in hub.downloads()] == ["", "bytes=300000-"]


def test_a_later_process_continues_what_an_earlier_one_left(hub: Hub, tmp_path: Path) -> None:
    repository = add(hub)
    repository.cuts = [400_000] + [0] * 100
    assert "acme/tiny" in refusal("hf://acme/tiny", tmp_path, StoreUnavailable)
    repository.cuts, asked = [], len(hub.downloads())
    found = get("hf://acme/tiny", tmp_path)
    assert (found.path / "model.safetensors").read_bytes() == WEIGHTS
    assert [one.range for one in hub.downloads()[asked:]] == ["bytes=400000-"]


def test_damage_in_what_was_left_is_found_and_downloaded_again(hub: Hub, tmp_path: Path) -> None:
    repository = add(hub)
    repository.cuts = [400_000] + [0] * 100
    refusal("hf://acme/tiny", tmp_path, StoreUnavailable)
    repository.cuts = []
    (left,) = tmp_path.rglob(".incomplete-*")
    left.write_bytes(bytes(400_000))
    assert (get("hf://acme/tiny", tmp_path).path / "model.safetensors").read_bytes() == WEIGHTS


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json"])
def test_content_that_is_not_what_was_listed_is_never_used(hub: Hub, tmp_path: Path, name: str) -> None:
    add(hub).altered = {name}
    assert f"{name} of hf://acme/tiny is not what its digest says" in refusal(
        "hf://acme/tiny", tmp_path, StoreUnavailable
    )
    assert not list(tmp_path.rglob(name))


def test_processes_that_ask_at_once_download_it_once(hub: Hub, tmp_path: Path) -> None:
    add(hub)
    found: list[Fetched] = []
    threads = [
        threading.Thread(target=lambda: found.append(get("hf://acme/tiny", tmp_path))) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(found)) == 1
    assert len(found) == 4
    assert len(hub.downloads()) == 1


def test_a_token_opens_a_private_model_and_goes_to_the_hub_alone(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(hub).token = "secret"
    message = refusal("hf://acme/tiny", tmp_path)
    assert message.startswith(f"spec.model.uri: {hub.url} shows no model acme/tiny")
    assert "spec.model.credentialsSecret" in message
    assert "HF_TOKEN" in message
    monkeypatch.setenv("HF_TOKEN", "secret")
    hub.requests.clear()
    get("hf://acme/tiny", tmp_path)
    assert {one.authorization for one in hub.requests if one.host == "hub"} == {"Bearer secret"}
    assert {one.authorization for one in hub.requests if one.host == "files"} == {""}


def test_a_gated_model_says_where_its_terms_are(hub: Hub, tmp_path: Path) -> None:
    repository = add(hub)
    repository.token, repository.gated = "secret", True
    message = refusal("hf://acme/tiny", tmp_path)
    assert f"acme/tiny is gated: accept its terms at {hub.url}/acme/tiny" in message
    assert "spec.model.credentialsSecret" in message


def test_an_unknown_model_or_revision(hub: Hub, tmp_path: Path) -> None:
    add(hub)
    assert "shows no model acme/none: correct the name" in refusal("hf://acme/none", tmp_path)
    assert "acme/tiny has no revision v9: write a branch" in refusal("hf://acme/tiny@v9", tmp_path)


def test_a_commit_that_has_gone_is_waited_for_by_a_job_that_began_with_it(hub: Hub, tmp_path: Path) -> None:
    add(hub)
    began = get("hf://acme/tiny", tmp_path).revision
    add(hub, {**FILES, "more.json": b"{}"})
    with pytest.raises(
        ResourceMissing, match="which this job began with, is gone: acme/tiny has no revision"
    ):
        get("hf://acme/tiny", tmp_path / "another", began)


def test_a_hub_that_does_not_answer(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    assert "http://127.0.0.1:9 does not give acme/tiny@main" in refusal(
        "hf://acme/tiny", tmp_path, StoreUnavailable
    )


def test_a_hub_that_names_no_commit(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    repository = add(hub)
    repository.commits["v1-final"] = repository.commits[repository.branches["main"]]
    repository.branches["main"] = "v1-final"
    assert "names no commit of acme/tiny, but 'v1-final'" in refusal(
        "hf://acme/tiny", tmp_path, StoreUnavailable
    )


@pytest.mark.parametrize(
    "name", ["../escaped.json", "/etc/escaped.json", "a/../../escaped.json", "a\\b.json"]
)
def test_a_name_that_leaves_the_folder_is_refused(hub: Hub, tmp_path: Path, name: str) -> None:
    add(hub, {**FILES, name: b"{}"})
    assert "no path below its folder" in refusal("hf://acme/tiny", tmp_path / "cache")
    assert not list(tmp_path.rglob("escaped.json"))


def test_pickles_are_never_downloaded(hub: Hub, tmp_path: Path) -> None:
    add(hub, {**FILES, "pytorch_model.bin": WEIGHTS, "modeling_tiny.py": b"import os"})
    assert files_in(get("hf://acme/tiny", tmp_path).path).keys() == FILES.keys()
    add(hub, {"config.json": b"{}", "pytorch_model.bin": WEIGHTS}, "models/acme/pickle")
    message = refusal("hf://acme/pickle", tmp_path)
    assert "pytorch_model.bin, a pickle, which could run any code" in message
    assert "*.safetensors" in message


def test_a_full_disk_is_seen_before_anything_is_downloaded(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(hub)
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=1 << 20))
    message = refusal("hf://acme/tiny", tmp_path, StorageRefused)
    assert "65 MB are needed" in message or "64 MB are needed" in message
    assert "RLJOB_CACHE" in message
    assert not hub.downloads()


def test_the_cache_of_a_user(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("RLJOB_CACHE", str(tmp_path))
    assert cache_folder() == tmp_path
    monkeypatch.delenv("RLJOB_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/caches")
    assert cache_folder() == Path("/caches/rljob")
