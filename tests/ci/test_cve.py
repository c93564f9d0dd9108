"""The scan for known vulnerabilities, and the look-up that fills its database, each as a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
LOCK = """
aiohttp==3.9.0 \\
    --hash=sha256:00
tokenizers==0.22.0 ; sys_platform == 'linux' \\
    --hash=sha256:01
    # via transformers
Ruamel_Yaml==0.18.1
"""
KNOWN = {"id": "PYSEC-2099-1", "aliases": ["CVE-2099-1"], "fixed_in": ["3.9.9"]}
ALLOWED = '[[allowed]]\nid = "{id}"\npackage = "{package}"\nreason = "not reachable"\nexpires = {expires}\n'


class Repository:
    """Requirement files, a database and a list of what is accepted, in a folder of the test's own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.database = folder / "cve-database.json"
        self.allowed = folder / "cve-allowed.toml"
        self.allowed.write_text("")
        (folder / "requirements").mkdir()
        (folder / "requirements" / "worker.txt").write_text(LOCK)

    def know(self, looked_up: str = "2099-03-01", **vulnerabilities: list[dict[str, Any]]) -> None:
        pins = {"aiohttp": "3.9.0", "tokenizers": "0.22.0", "ruamel-yaml": "0.18.1"}
        self.database.write_text(
            json.dumps(
                {
                    f"{name}=={version}": {
                        "looked_up": looked_up,
                        "vulnerabilities": vulnerabilities.get(name, []),
                    }
                    for name, version in pins.items()
                }
            )
        )

    def allow(
        self, *, advisory: str = "CVE-2099-1", package: str = "aiohttp", expires: str = "2099-04-01"
    ) -> None:
        self.allowed.write_text(ALLOWED.format(id=advisory, package=package, expires=expires))

    def waive(self, *, expires: str = "2099-04-01") -> None:
        self.allowed.write_text(f'[empty-database]\nreason = "no advisories here"\nexpires = {expires}\n')

    def scan(self, *arguments: str, today: str = "2099-03-11") -> tuple[int, str]:
        files = [f"--requirements={self.folder / 'requirements'}", f"--allowed={self.allowed}"]
        return self._run("cve_scan.py", *files, f"--today={today}", *arguments)

    def look_up(self, osv_url: str, *arguments: str) -> tuple[int, str]:
        files = [f"--requirements={self.folder / 'requirements'}"]
        return self._run("cve_snapshot.py", *files, f"--osv-url={osv_url}", *arguments)

    def _run(self, script: str, *arguments: str) -> tuple[int, str]:
        command = [sys.executable, str(ROOT / ".ci" / script), f"--database={self.database}", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
        return done.returncode, done.stdout + done.stderr


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    return Repository(tmp_path)


# ---------------------------------------------------------------------------------------------- the scan


def test_a_known_vulnerability_fails_and_the_message_says_where_and_what_to_do(
    repository: Repository,
) -> None:
    repository.know(aiohttp=[KNOWN])
    code, output = repository.scan()
    assert code == 1
    assert "aiohttp==3.9.0 (worker.txt) has PYSEC-2099-1, CVE-2099-1" in output
    assert "fixed in 3.9.9: run `make lock UPGRADE='-P aiohttp'`" in output


def test_nothing_known_passes_and_says_how_old_that_is(repository: Repository) -> None:
    repository.know()
    code, output = repository.scan()
    assert (code, output) == (
        0,
        "cve-scan: 3 of 3 locked releases were looked up, the oldest of them 10 days ago (2099-03-01)\n",
    )


@pytest.mark.parametrize("name", ["CVE-2099-1", "PYSEC-2099-1"])
def test_what_is_accepted_passes_until_the_day(repository: Repository, name: str) -> None:
    repository.know(aiohttp=[KNOWN])
    repository.allow(advisory=name)
    assert repository.scan(today="2099-04-01")[0] == 0
    code, output = repository.scan(today="2099-04-02")
    assert code == 1
    assert "(accepted until 2099-04-01)" in output


def test_one_package_accepted_does_not_cover_another(repository: Repository) -> None:
    repository.know(aiohttp=[KNOWN], tokenizers=[{**KNOWN, "fixed_in": []}])
    repository.allow()
    code, output = repository.scan()
    assert code == 1
    assert "aiohttp" not in output
    assert "tokenizers==0.22.0 (worker.txt) has PYSEC-2099-1" in output
    assert "no release fixes it" in output


def test_an_allowance_that_accepts_nothing_has_to_go(repository: Repository) -> None:
    repository.know()
    repository.allow()
    code, output = repository.scan()
    assert code == 1
    assert "accepts CVE-2099-1 of aiohttp, which no locked release is known to have: remove it" in output


def test_what_was_not_looked_up_is_said_and_fails_where_all_is_asked_for(repository: Repository) -> None:
    repository.waive()
    code, output = repository.scan()
    assert code == 0
    assert "0 of 3 locked releases were looked up; nothing is known of the others" in output
    code, output = repository.scan("--complete")
    assert code == 1
    assert "ruamel-yaml==0.18.1: not looked up within 30 days" in output
    repository.allowed.write_text("")
    repository.know()
    assert repository.scan("--complete", today="2099-03-31")[0] == 0
    assert repository.scan("--complete", today="2099-04-01")[0] == 1
    assert "what became known since then is not found" in repository.scan(today="2099-04-01")[1]


@pytest.mark.parametrize("content", [None, "{}\n"], ids=["no file", "empty"])
def test_a_database_that_knows_nothing_is_no_pass(repository: Repository, content: str | None) -> None:
    if content is not None:
        repository.database.write_text(content)
    code, output = repository.scan()
    assert code == 1
    assert "no locked release was looked up, so nothing would be found: run `make cve-snapshot`" in output
    repository.waive()
    code, output = repository.scan(today="2099-04-01")
    assert code == 0
    assert "nothing was looked up, which is accepted until 2099-04-01: no advisories here" in output
    code, output = repository.scan(today="2099-04-02")
    assert code == 1
    assert "(accepted until 2099-04-01)" in output


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[[allowed]]\nid = "CVE-1"\npackage = "a"\nexpires = 2099-01-01\n', "entry 1: `reason`"),
        (ALLOWED.format(id="CVE-1", package="a", expires='"soon"'), "entry 1: `expires`"),
        ("[[allowed]", "cve-scan: "),
        ("[empty-database]\nexpires = 2099-01-01\n", "empty-database: `reason`"),
        ('[empty-database]\nreason = "r"\nexpires = "soon"\n', "empty-database: `expires`"),
    ],
    ids=["no reason", "no date", "no TOML", "waiver without reason", "waiver without date"],
)
def test_a_list_that_cannot_be_read_is_no_pass(repository: Repository, text: str, message: str) -> None:
    repository.allowed.write_text(text)
    code, output = repository.scan()
    assert code == 2
    assert message in output


def test_the_repositorys_own_files_can_be_read() -> None:
    """Whether they pass depends on the day: `make check` asks that."""
    done = subprocess.run(
        [sys.executable, str(ROOT / ".ci" / "cve_scan.py")], capture_output=True, text=True, check=False
    )
    assert done.returncode in (0, 1)
    assert "locked releases were looked up" in done.stdout
    assert ".ci/cve_scan.py" in (ROOT / "Makefile").read_text().split("\ncheck:")[1].split("\n\n")[0]


# ---------------------------------------------------------------------------------------------- the look-up


@contextmanager
def osv_server(vulnerable: dict[tuple[str, str], list[dict[str, Any]]]) -> Iterator[tuple[str, list[str]]]:
    """A server of OSV's interface on the loopback interface: its URL, and the packages that it was asked for."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            query = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            asked.append(query["package"]["name"])
            found = vulnerable.get((query["package"]["name"], query["version"]), [])
            body = json.dumps({"vulns": found} if found else {}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/v1/query", asked
        finally:
            server.shutdown()
            thread.join()


def test_what_is_looked_up_is_what_the_scan_finds(repository: Repository) -> None:
    advisory = {
        "id": "PYSEC-2099-1",
        "modified": "2099-01-01T00:00:00Z",
        "published": "2099-01-01T00:00:00Z",
        "aliases": ["CVE-2099-1"],
        "details": "an example",
        "affected": [
            {
                "package": {"name": "aiohttp", "ecosystem": "PyPI"},
                "ranges": [{"type": "ECOSYSTEM", "events": [{"introduced": "0"}, {"fixed": "3.9.9"}]}],
            }
        ],
    }
    (repository.folder / "requirements" / "dev.txt").write_text("aiohttp==3.9.9\nidna==3.0\n")
    with osv_server({("aiohttp", "3.9.0"): [advisory]}) as (url, asked):
        code, output = repository.look_up(url)
        assert code == 0, output
        assert sorted(asked) == ["aiohttp", "aiohttp", "idna", "ruamel-yaml", "tokenizers"]
        records = json.loads(repository.database.read_text())
        assert records["aiohttp==3.9.0"]["vulnerabilities"] == [KNOWN]
        assert records["aiohttp==3.9.9"]["vulnerabilities"] == []
        code, output = repository.scan(today=records["aiohttp==3.9.0"]["looked_up"])
        assert code == 1
        assert "aiohttp==3.9.0 (worker.txt) has PYSEC-2099-1" in output
        # After an upgrade only what is new is asked for, and what is no longer locked is forgotten.
        asked.clear()
        (repository.folder / "requirements" / "dev.txt").write_text("aiohttp==3.9.9\nidna==3.7\n")
        assert repository.look_up(url, "--missing")[0] == 0
        assert asked == ["idna"]
        assert {"idna==3.0", "idna==3.7"} & json.loads(repository.database.read_text()).keys() == {
            "idna==3.7"
        }


def test_a_server_that_does_not_answer_fails_and_keeps_what_was_known(repository: Repository) -> None:
    repository.know(aiohttp=[KNOWN])
    before = repository.database.read_text()
    with osv_server({}) as (url, _):
        pass
    code, output = repository.look_up(url)
    assert code == 1
    assert "pip-audit failed" in output
    assert repository.database.read_text() == before
