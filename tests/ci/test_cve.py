"""The scan for known vulnerabilities, and the look-up that fills its database, each as a process of its own."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.ci.vulnerable_releases import ALLOWED, KNOWN, ROOT, Repository, osv_server


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
        "cve-scan: 3 of 3 Python packages were looked up (the oldest answer is of 2099-03-01)\n",
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
    assert "accepts CVE-2099-1 of aiohttp, which no pinned release is known to have: remove it" in output


def test_what_was_not_looked_up_is_said_and_fails_where_all_is_asked_for(repository: Repository) -> None:
    repository.waive()
    code, output = repository.scan()
    assert code == 0
    assert "0 of 3 Python packages were looked up; nothing is known of the others" in output
    code, output = repository.scan("--complete")
    assert code == 1
    assert "ruamel-yaml==0.18.1: not looked up within 30 days" in output
    repository.allowed.write_text("")
    repository.know()
    assert repository.scan("--complete", today="2099-03-31")[0] == 0
    assert repository.scan("--complete", today="2099-04-01")[0] == 1


def test_a_pass_that_rests_on_old_answers_is_a_warning(repository: Repository) -> None:
    repository.know()
    code, output = repository.scan(today="2099-03-31")
    assert (code, "warning" in output) == (0, False)
    code, output = repository.scan(today="2099-04-01")
    assert code == 0
    assert (
        "cve-scan: warning: the answers about 3 Python packages are older than 30 days, up to 31 days"
        in output
    )
    assert "what became known since then is not found: run `make cve-snapshot`" in output


@pytest.mark.parametrize("content", [None, "{}\n"], ids=["no file", "empty"])
def test_a_database_that_knows_nothing_is_no_pass(repository: Repository, content: str | None) -> None:
    if content is not None:
        repository.database.write_text(content)
    code, output = repository.scan()
    assert code == 1
    assert "no Python package was looked up, so known vulnerabilities would not be found: run" in output
    repository.waive()
    code, output = repository.scan(today="2099-04-01")
    assert code == 0
    assert "no Python package was looked up, which is accepted until 2099-04-01: no advisories here" in output
    code, output = repository.scan(today="2099-04-02")
    assert code == 1
    assert "(accepted until 2099-04-01)" in output


def test_answers_of_long_ago_are_no_pass(repository: Repository) -> None:
    repository.know()
    records = repository.records()
    records["aiohttp==3.9.0"]["looked_up"] = "2098-10-02"
    repository.database.write_text(json.dumps(records))
    code, output = repository.scan(today="2099-03-31")
    assert code == 0, "180 days after the oldest answer"
    assert "older than 30 days" in output
    code, output = repository.scan(today="2099-04-01")
    assert code == 1
    lack = "1 of 3 Python packages were last looked up more than 180 days ago"
    assert f"{lack}, so known vulnerabilities would not be found: run `make cve-snapshot`" in output
    repository.waive()
    code, output = repository.scan(today="2099-04-01")
    assert code == 0
    assert f"{lack}, which is accepted until 2099-04-01: no advisories here" in output
    assert "older than 30 days" in output
    code, output = repository.scan(today="2099-04-02")
    assert code == 1
    assert "(accepted until 2099-04-01)" in output


def test_a_waiver_of_old_answers_accepts_no_vulnerability(repository: Repository) -> None:
    repository.know("2098-01-01", aiohttp=[KNOWN])
    repository.waive()
    code, output = repository.scan()
    assert code == 1
    assert "aiohttp==3.9.0 (worker.txt) has PYSEC-2099-1" in output


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[[allowed]]\nid = "CVE-1"\npackage = "a"\nexpires = 2099-01-01\n', "entry 1: `reason`"),
        (ALLOWED.format(id="CVE-1", package="a", expires='"soon"'), "entry 1: `expires`"),
        ("[[allowed]", "cve-scan: "),
        ("[stale-database]\nexpires = 2099-01-01\n", "stale-database: `reason`"),
        ('[stale-database]\nreason = "r"\nexpires = "soon"\n', "stale-database: `expires`"),
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
    assert re.search(
        r"[1-9]\d* of \d+ Python packages were looked up .*, [1-9] of \d+ Go modules", done.stdout
    )
    assert ".ci/cve_scan.py" in (ROOT / "Makefile").read_text().split("\ncheck:")[1].split("\n\n")[0]


# ---------------------------------------------------------------------------------------------- the look-up


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
