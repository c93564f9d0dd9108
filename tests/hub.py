"""A server that speaks the part of a Hugging Face hub's HTTP API by which repositories are read.

Repositories have commits, branches and files; large files are redirected to another host, as a hub's are. What goes
wrong is set per repository: who may read it, connections that are cut, content that is not what was listed.
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote, urlsplit

import pytest

_LARGE = 1 << 16
"""Bytes from which on a file is stored with Git LFS, and served from the other host."""


@dataclass
class Repository:
    """A repository and what is wrong with it.

    Attributes:
        commits: files by name, by commit.
        branches: commits by name.
        token: that may read it; empty: anybody may.
        gated: whether its terms have to be accepted first.
        cuts: bytes of a large file after which the connection is cut, one for each time that it is asked for.
        altered: names of files whose content is not what was listed.
    """

    commits: dict[str, dict[str, bytes]] = field(default_factory=dict)
    branches: dict[str, str] = field(default_factory=dict)
    token: str = ""
    gated: bool = False
    cuts: list[int] = field(default_factory=list)
    altered: set[str] = field(default_factory=set)

    def commit(self, files: dict[str, bytes], *, branch: str = "main") -> str:
        """Add a commit at the end of a branch; returns its id."""
        content = f"{sorted(files)}{len(self.commits)}{branch}"
        commit = hashlib.sha1(content.encode(), usedforsecurity=False).hexdigest()
        self.commits[commit] = files
        self.branches[branch] = commit
        return commit


@dataclass(frozen=True)
class HubRequest:
    """A request that came.

    Attributes:
        host: `hub` or `files`.
    """

    host: str
    path: str
    authorization: str
    range: str


class Hub:
    """The repositories of a hub, by `models/org/name` or `datasets/org/name`, and what was asked of it."""

    def __init__(self) -> None:
        self.repositories: dict[str, Repository] = {}
        self.requests: list[HubRequest] = []
        self.url = self.files_url = ""

    def model(self, name: str, folder: Path, **changes: Any) -> Repository:
        """Add a model with the files of a folder, at `main`."""
        repository = self.repositories[f"models/{name}"] = Repository(**changes)
        repository.commit({path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()})
        return repository

    def data(self, name: str, files: dict[str, bytes], **changes: Any) -> Repository:
        """Add a data set, at `main`."""
        repository = self.repositories[f"datasets/{name}"] = Repository(**changes)
        repository.commit(files)
        return repository

    def downloads(self, ending: str = ".safetensors") -> list[HubRequest]:
        """The requests for content of files whose name ends so."""
        return [one for one in self.requests if one.host == "files" and one.path.endswith(ending)]


class _Handler(BaseHTTPRequestHandler):
    hub: Hub
    host: str
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002  its name there
        """Say nothing."""

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = unquote(urlsplit(self.path).path)
        asked = HubRequest(
            self.host, path, self.headers.get("Authorization", ""), self.headers.get("Range", "")
        )
        self.hub.requests.append(asked)
        if self.host == "files":
            return self._file_of(path.removeprefix("/"))
        if found := re.fullmatch(r"/api/((?:models|datasets)/[^/]+/[^/]+)(?:/revision/(.+))?", path):
            return self._info(found[1], found[2] or "main")
        if found := re.fullmatch(r"/(datasets/)?([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path):
            return self._resolve(f"{found[1] or 'models/'}{found[2]}", found[3], found[4])
        return self._error(404, "EntryNotFound")

    def _readable(self, name: str, revision: str) -> tuple[Repository, str] | None:
        repository = self.hub.repositories.get(name)
        may_read = repository is not None and (
            not repository.token or self.headers.get("Authorization") == f"Bearer {repository.token}"
        )
        if repository is None or not (may_read or repository.gated):
            self._error(401, "RepoNotFound")
        elif not may_read:
            self._error(403, "GatedRepo")
        elif (commit := repository.branches.get(revision, revision)) not in repository.commits:
            self._error(404, "RevisionNotFound")
        else:
            return repository, commit
        return None

    def _info(self, name: str, revision: str) -> None:
        if (found := self._readable(name, revision)) is None:
            return
        repository, commit = found
        siblings = [_sibling(path, content) for path, content in repository.commits[commit].items()]
        body = {"_id": "0", "id": name.partition("/")[2], "sha": commit, "siblings": siblings, "tags": []}
        body |= {"private": bool(repository.token), "downloads": 0, "likes": 0}
        self._answer(200, json.dumps(body).encode(), {"Content-Type": "application/json"})

    def _resolve(self, name: str, revision: str, path: str) -> None:
        if (found := self._readable(name, revision)) is None:
            return None
        repository, commit = found
        content = repository.commits[commit].get(path)
        if content is None:
            return self._error(404, "EntryNotFound")
        headers = {"X-Repo-Commit": commit, "ETag": f'"{hashlib.sha256(content).hexdigest()}"'}
        if len(content) < _LARGE:
            return self._ranged(_sent(repository, path), headers)
        location = f"{self.hub.files_url}/{quote(f'{name}/{commit}/{path}')}"
        headers |= {"Location": location, "X-Linked-Size": str(len(content))}
        return self._answer(302, b"", headers)

    def _file_of(self, path: str) -> None:
        kind, organisation, name, commit, file = path.split("/", 4)
        repository = self.hub.repositories[f"{kind}/{organisation}/{name}"]
        self._ranged(_sent(repository, file, commit), {}, repository.cuts)

    def _ranged(self, content: bytes, headers: dict[str, str], cuts: list[int] | None = None) -> None:
        status = 200
        if found := re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", "")):
            status, start = 206, int(found[1])
            headers["Content-Range"] = f"bytes {start}-{len(content) - 1}/{len(content)}"
            content = content[start:]
        self._answer(status, content, headers, cut=cuts.pop(0) if cuts else None)

    def _error(self, status: int, code: str) -> None:
        self._answer(status, b"{}", {"X-Error-Code": code, "X-Error-Message": code})

    def _answer(self, status: int, body: bytes, headers: dict[str, str], cut: int | None = None) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body if cut is None else body[:cut])
        if cut is not None:
            self.close_connection = True


def _sibling(path: str, content: bytes) -> dict[str, Any]:
    sibling: dict[str, Any] = {"rfilename": path, "size": len(content)}
    blob = hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False)
    sibling["blobId"] = blob.hexdigest()
    if len(content) >= _LARGE:
        sha256 = hashlib.sha256(content).hexdigest()
        sibling["lfs"] = {"sha256": sha256, "size": len(content), "pointerSize": 134}
    return sibling


def _sent(repository: Repository, path: str, commit: str = "") -> bytes:
    content = repository.commits[commit or next(reversed(repository.commits))][path]
    return content if path not in repository.altered else bytes([content[0] ^ 1]) + content[1:]


@contextmanager
def running_hub() -> Iterator[Hub]:
    """Start a hub, which this process's environment leads to, with nobody logged in."""
    hub = Hub()
    servers = []
    for host, address in (("hub", "127.0.0.1"), ("files", "127.0.0.2")):
        handler = type("_HubHandler", (_Handler,), {"hub": hub, "host": host})
        server = ThreadingHTTPServer((address, 0), handler)
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        servers.append(server)
        setattr(hub, "url" if host == "hub" else "files_url", f"http://{address}:{server.server_port}")
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("HF_ENDPOINT", hub.url)
        environment.delenv("HF_HUB_OFFLINE", raising=False)
        environment.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)  # read when it was imported
        for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"):
            environment.delenv(name, raising=False)
        environment.setenv("HF_TOKEN_PATH", "/nonexistent")
        try:
            yield hub
        finally:
            for server in servers:
                server.shutdown()
                server.server_close()
