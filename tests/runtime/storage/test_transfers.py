"""Transfers to and from a real S3 server through a proxy that cuts connections, refuses, or is away for a while."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from tests.buckets import forget_s3_clients, s3_bucket

from rljob_core.errors import ResourceMissing, StorageRefused
from rljob_runtime.storage.object_access import check_usable
from rljob_runtime.storage.objects import object_store, writing
from rljob_runtime.storage.trainer_log import TrainerLogCopy, TrainerLogObjects
from rljob_runtime.storage.transfers import at_once, download_file, patiently, upload_file


class Proxy:
    """Passes bytes to a server; while `away`, it takes no connection and has cut all.

    Attributes:
        cut_after: bytes of a connection's requests after which the first that sends so many is cut; None: never.
        cuts: how many were.
        reads_no_more: whether it stops to read from such a connection, which stays, instead of cutting it.
    """

    def __init__(self, host: str, port: int) -> None:
        self._server = (host, port)
        self.cut_after: int | None = None
        self.cuts = 0
        self.reads_no_more = False
        self._open: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.away = False
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                if self.away:
                    client.close()
                    continue
                server = socket.create_connection(self._server)
                self._open |= {client, server}
                for ends in ((client, server, True), (server, client, False)):
                    self._threads.append(threading.Thread(target=self._pass, args=ends, daemon=True))
                    self._threads[-1].start()

    def _pass(self, source: socket.socket, target: socket.socket, upwards: bool) -> None:
        passed = 0
        with suppress(OSError):
            while data := source.recv(1 << 16):
                passed += len(data)
                if upwards and self.cut_after is not None and passed > self.cut_after:
                    self.cuts += 1
                    self.cut_after = None
                    if self.reads_no_more:
                        return
                    break
                target.sendall(data)
        for one in (source, target):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)  # it wakes the other direction's thread
            one.close()

    def leave(self) -> None:
        """Cut all connections, and take no more."""
        self.away = True
        for one in list(self._open):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """End."""
        self.leave()
        self._listener.close()
        for thread in self._threads:  # each ends with its connection
            thread.join()
        for one in self._open:
            one.close()


@pytest.fixture(scope="module")
def place() -> Iterator[tuple[Proxy, str]]:
    """A bucket, and the proxy in front of its server."""
    with s3_bucket("transfers") as uri, pytest.MonkeyPatch.context() as environment:
        address = urlsplit(os.environ["AWS_ENDPOINT_URL"])
        proxy = Proxy(str(address.hostname), int(address.port or 0))
        environment.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{proxy.port}")
        forget_s3_clients()
        yield proxy, uri
        proxy.close()
        forget_s3_clients()


@pytest.fixture
def proxy(place: tuple[Proxy, str]) -> Iterator[Proxy]:
    """The proxy, which works."""
    found, _ = place
    yield found
    found.away, found.cut_after, found.reads_no_more, found.cuts = False, None, False, 0


@pytest.fixture
def store(place: tuple[Proxy, str]) -> tuple[Any, str]:
    """The file system and the bucket."""
    return object_store(place[1], field="f")


def test_an_upload_that_is_cut_in_the_middle_arrives_whole(
    proxy: Proxy, store: tuple[Any, str], tmp_path: Path
) -> None:
    files, bucket = store
    (tmp_path / "file").write_bytes(os.urandom(20 << 20))
    proxy.leave()  # so that connections that are open do not count
    proxy.away, proxy.cut_after = False, 5 << 20
    size, digest = patiently(partial(upload_file, files, tmp_path / "file", f"{bucket}/file"))
    assert proxy.cuts
    download_file(files, f"{bucket}/file", tmp_path / "copy", size=size, digest=digest)
    assert (tmp_path / "copy").read_bytes() == (tmp_path / "file").read_bytes()


def test_a_store_that_reads_no_more_is_asked_again(
    proxy: Proxy, store: tuple[Any, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It answers nothing, and takes nothing: no timeout of the libraries counts then."""
    monkeypatch.setattr("rljob_runtime.storage.s3_files.REQUEST_SECONDS", 3.0)
    files, bucket = store
    (tmp_path / "file").write_bytes(os.urandom(20 << 20))
    proxy.leave()
    proxy.away, proxy.cut_after, proxy.reads_no_more = False, 1 << 20, True
    size, digest = patiently(partial(upload_file, files, tmp_path / "file", f"{bucket}/unread"))
    assert proxy.cuts
    download_file(files, f"{bucket}/unread", tmp_path / "copy", size=size, digest=digest)


def test_a_store_that_is_away_for_a_while_is_waited_for(proxy: Proxy, place: tuple[Proxy, str]) -> None:
    log = TrainerLogObjects(f"{place[1]}/log")
    proxy.leave()
    done = threading.Event()

    def put() -> None:
        log.put(1, 1, b"line\n")
        done.set()

    threading.Thread(target=put, daemon=True).start()
    assert not done.wait(3), "it was put to nowhere"
    proxy.away = False
    assert done.wait(600)
    assert log.get(1, 1) == b"line\n"


def test_patience_ends() -> None:
    tries = []

    def fail() -> None:
        tries.append(1)
        raise StorageRefused("no route to host")

    with pytest.raises(StorageRefused, match="no route to host"):
        patiently(fail, seconds=1)
    assert len(tries) > 1


def test_what_is_refused_is_not_tried_again() -> None:
    tries = []

    def fail() -> None:
        tries.append(1)
        with writing("object"):
            raise PermissionError("access denied")

    with pytest.raises(StorageRefused, match="access denied"):
        patiently(fail)
    assert len(tries) == 1


def test_a_store_that_does_not_answer_is_named(proxy: Proxy, place: tuple[Proxy, str]) -> None:
    proxy.leave()
    with pytest.raises(ResourceMissing, match=r"^spec.weights.uri: s3://transfers.* does not answer"):
        check_usable(place[1], field="spec.weights.uri")


def test_a_bucket_that_does_not_exist_is_named(place: tuple[Proxy, str]) -> None:
    with pytest.raises(ResourceMissing, match=r"^spec.weights.uri: s3://.*-other: there is no such bucket"):
        check_usable(f"{place[1]}-other", field="spec.weights.uri")


def test_keys_that_are_refused_name_the_field(
    place: tuple[Proxy, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import requests

    server = os.environ["AWS_ENDPOINT_URL"]
    requests.post(f"{server}/moto-api/reset-auth", data="0", timeout=300).raise_for_status()
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "another")
    forget_s3_clients()
    try:
        with pytest.raises(
            ResourceMissing,
            match=r"^spec.trainer.checkpoint.uri: s3://.* may not be written to \(.*credentialsSecret",
        ):
            check_usable(place[1], field="spec.trainer.checkpoint.uri")
    finally:
        requests.post(f"{server}/moto-api/reset-auth", data="1000000", timeout=300)
        forget_s3_clients()


def test_what_can_be_used_is_left_as_it_was(place: tuple[Proxy, str], store: tuple[Any, str]) -> None:
    check_usable(f"{place[1]}/nothing", field="f")
    files, bucket = store
    files.invalidate_cache()
    assert not files.find(f"{bucket}/nothing")


def test_a_copy_of_a_log_grows_with_it(place: tuple[Proxy, str], tmp_path: Path) -> None:
    log = TrainerLogObjects(f"{place[1]}/growing")
    copy = TrainerLogCopy(log, tmp_path)
    copy.refresh()
    assert not list(tmp_path.iterdir())
    for number in range(1, 12):
        log.put(3, number, b"%d\n" % number)
    copy.refresh()
    log.put(3, 12, b"12\n")
    log.put(10, 1, b"other\n")
    copy.refresh()
    copy.refresh()
    assert (tmp_path / "attempt-3.jsonl").read_bytes() == b"".join(b"%d\n" % n for n in range(1, 13))
    assert (tmp_path / "attempt-10.jsonl").read_bytes() == b"other\n"
    assert list(log.numbers()) == [3, 10]


def test_the_first_error_of_several_is_raised() -> None:
    def fail() -> None:
        raise StorageRefused("full")

    with pytest.raises(StorageRefused, match="full"):
        at_once([fail, lambda: None])
