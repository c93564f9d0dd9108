"""Where credentials of Google Cloud would come from: nobody waits for a metadata server that is not there."""

from __future__ import annotations

import socket
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

import pytest

from rljob_runtime.storage.objects import has_google_credentials


@pytest.fixture
def nowhere(tmp_path: Path) -> dict[str, str]:
    """The environment of a machine that has none: no file, and a port on which nothing listens."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    return {"HOME": str(tmp_path), "GCE_METADATA_HOST": f"127.0.0.1:{port}"}


def test_without_a_file_and_a_metadata_server_there_are_none(nowhere: dict[str, str]) -> None:
    assert not has_google_credentials(nowhere)


@pytest.mark.parametrize(("flavor", "expected"), [("Google", True), ("Other", False)])
def test_google_s_metadata_server_gives_them(nowhere: dict[str, str], flavor: str, *, expected: bool) -> None:
    class Metadata(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Metadata-Flavor", flavor)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Nothing is said."""

    with HTTPServer(("127.0.0.1", 0), Metadata) as server:
        Thread(target=server.handle_request, daemon=True).start()
        host = f"127.0.0.1:{server.server_port}"
        assert has_google_credentials({**nowhere, "GCE_METADATA_HOST": host}) is expected


def test_files_give_them(nowhere: dict[str, str], tmp_path: Path) -> None:
    assert has_google_credentials({**nowhere, "GOOGLE_APPLICATION_CREDENTIALS": "/key.json"})
    assert has_google_credentials({**nowhere, "STORAGE_EMULATOR_HOST": "http://127.0.0.1:9023"})
    settings = tmp_path / ".config" / "gcloud"
    settings.mkdir(parents=True)
    (settings / "application_default_credentials.json").write_text("{}")
    assert has_google_credentials(nowhere)
