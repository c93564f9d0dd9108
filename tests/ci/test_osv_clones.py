"""Look-ups of pinned releases in a local git clone of an OSV database."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.ci.vulnerable_releases import KNOWN, PYSEC, RECORD, AdvisoryClone, Repository, advisory, osv_server


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    return Repository(tmp_path)


@pytest.fixture
def clone(tmp_path: Path) -> AdvisoryClone:
    return AdvisoryClone(tmp_path / "advisories")


def test_a_clone_is_read_as_of_its_last_commit(
    repository: Repository, clone: AdvisoryClone, tmp_path: Path
) -> None:
    clone.write(PYSEC, RECORD)
    clone.write("README.md", "affected ecosystem")
    clone.write("vulns/aiohttp/notes.yaml", RECORD.replace("AioHTTP", "tokenizers"))
    clone.commit("2099-02-01")
    clone.write("triage/notes.json", '{"affected": "no ecosystem"}')
    clone.commit("2099-03-01")
    clone.write(
        "vulns/tokenizers/PYSEC-2099-2.yaml", RECORD.replace("AioHTTP", "tokenizers")
    )  # not committed
    for folder in (clone.folder, clone.bare(tmp_path / "bare.git")):
        repository.database.unlink(missing_ok=True)
        code, output = repository.look_into(folder)
        assert code == 0, output
        records = repository.records()
        assert records.keys() == {"aiohttp==3.9.0", "tokenizers==0.22.0", "ruamel-yaml==0.18.1"}
        assert {record["looked_up"] for record in records.values()} == {"2099-03-01"}
        assert records["aiohttp==3.9.0"]["vulnerabilities"] == [{**KNOWN, "fixed_in": ["3.9.9", "3.10"]}]
        assert records["tokenizers==0.22.0"]["vulnerabilities"] == []
    code, output = repository.scan()
    assert code == 1
    assert "aiohttp==3.9.0 (worker.txt) has PYSEC-2099-1" in output


@pytest.mark.parametrize(
    ("record", "found"),
    [
        (advisory("aiohttp", events=[{"introduced": "0"}]), True),
        (advisory("aiohttp", events=[{"introduced": "3.9"}, {"fixed": "3.9.1"}]), True),
        (advisory("aiohttp", events=[{"introduced": "0"}, {"fixed": "3.9"}]), False),
        (advisory("aiohttp", events=[{"introduced": "3.10"}]), False),
        (advisory("aiohttp", events=[{"introduced": "3.9.0rc1"}, {"fixed": "3.9.0rc2"}]), False),
        (advisory("aiohttp", events=[{"introduced": "0"}, {"last_affected": "3.9.0"}]), True),
        (advisory("aiohttp", events=[{"introduced": "0"}, {"last_affected": "3.8.9"}]), False),
        (
            advisory(
                "aiohttp",
                events=[{"fixed": "3.10.1"}, {"introduced": "3.8"}, {"fixed": "2.1"}, {"introduced": "0"}],
            ),
            True,
        ),
        (
            advisory(
                "aiohttp",
                events=[{"introduced": "0"}, {"fixed": "3.8.7"}, {"introduced": "3.9.1"}, {"fixed": "3.9.2"}],
            ),
            False,
        ),
        (advisory("aiohttp", events=[{"introduced": "0"}], withdrawn="2099-01-02T00:00:00Z"), False),
        (advisory("aio", events=[{"introduced": "0"}]), False),
        (
            {
                "id": "PYSEC-2099-1",
                "affected": [
                    {
                        "package": {"name": "aiohttp", "ecosystem": "PyPI"},
                        "versions": ["3.8", "3.9"],
                        "ranges": [{"type": "GIT", "repo": "r", "events": [{"introduced": "0"}]}],
                    }
                ],
            },
            True,
        ),
        (
            {
                "id": "PYSEC-2099-1",
                "affected": [
                    {
                        "package": {"name": "aiohttp", "ecosystem": "PyPI"},
                        "versions": ["3.9.0.1"],
                        "ranges": [{"type": "GIT", "repo": "r", "events": [{"introduced": "0"}]}],
                    }
                ],
            },
            False,
        ),
    ],
    ids=[
        *(
            "every version",
            "within",
            "fixed before",
            "introduced later",
            "a pre-release only",
            "the last affected",
        ),
        *(
            "after the last affected",
            "events in no order",
            "between two ranges",
            "withdrawn",
            "another package",
        ),
        *("listed", "not listed, and a range of commits"),
    ],
)
def test_which_versions_an_advisory_affects(
    repository: Repository, clone: AdvisoryClone, record: dict[str, Any], found: bool
) -> None:
    clone.write(PYSEC, record)
    clone.commit("2099-03-01")
    assert repository.look_into(clone.folder, "aiohttp")[0] == 0
    (one,) = repository.records().values()
    assert [each["id"] for each in one["vulnerabilities"]] == ["PYSEC-2099-1"] * found


def test_go_modules_are_looked_up_by_semantic_version(repository: Repository, clone: AdvisoryClone) -> None:
    repository.pin_programs()
    repository.know()
    events = [{"introduced": "0"}, {"fixed": "3.5.9"}, {"introduced": "3.6.0-rc.0"}, {"fixed": "3.6.14"}]
    events += [{"introduced": "3.7.0-alpha.0"}, {"fixed": "3.7.1"}]
    etcd = advisory("example.com/etcd/server/v3", events=events, ecosystem="Go", id="GO-2099-1")
    client = advisory("example.com/etcd/client/v3", events=events, ecosystem="Go", id="GO-2099-2")
    nats = advisory(
        "github.com/nats-io/nats-server/v2",
        events=[{"introduced": "2.15.0-preview.2"}, {"fixed": "2.15.0"}],
        ecosystem="Go",
        id="GO-2099-3",
    )
    for record in (etcd, client, nats):
        clone.write(f"data/osv/{record['id']}.json", record)
    clone.commit("2099-03-05")
    code, output = repository.look_into(clone.folder)
    assert code == 0, output
    records = repository.records()
    assert records["aiohttp==3.9.0"]["looked_up"] == "2099-03-01"  # the clone says nothing about Python
    assert {name for name in records if "@" in name} == {
        "example.com/coredns@v1.14.7",
        "example.com/etcd/server/v3@v3.6.5",
        "github.com/nats-io/nats-server/v2@v2.15.0",
        "stdlib@v1.26.6",
        "toolchain@v1.26.6",
    }
    assert records["github.com/nats-io/nats-server/v2@v2.15.0"]["vulnerabilities"] == []
    (found,) = records["example.com/etcd/server/v3@v3.6.5"]["vulnerabilities"]
    assert (found["id"], found["fixed_in"]) == ("GO-2099-1", ["3.6.14", "3.7.1"])
    code, output = repository.scan()
    assert code == 1
    assert "5 of 5 Go modules were looked up (the oldest answer is of 2099-03-05)" in output
    assert "example.com/etcd/server/v3@v3.6.5 (e2e/go/kubernetes/go.mod) has GO-2099-1" in output
    repository.allow(advisory="GO-2099-1", package="example.com/etcd/server/v3")
    assert repository.scan()[0] == 0
    # An upgrade makes the old answer void.
    repository.pin_programs(nats_server="2.15.1")
    code, output = repository.scan()
    assert code == 0
    assert "4 of 5 Go modules were looked up" in output
    assert repository.scan("--complete")[0] == 1


def test_of_two_answers_the_newer_counts(repository: Repository, clone: AdvisoryClone) -> None:
    clone.write(PYSEC, advisory("aiohttp", events=[{"introduced": "0"}, {"fixed": "3.9.9"}]))
    clone.commit("2024-10-10")
    assert repository.look_into(clone.folder)[0] == 0
    assert repository.records()["aiohttp==3.9.0"] == {"looked_up": "2024-10-10", "vulnerabilities": [KNOWN]}
    with osv_server({}) as (url, _):
        assert repository.look_up(url)[0] == 0
    online = repository.records()
    assert online["aiohttp==3.9.0"]["vulnerabilities"] == []
    assert online["aiohttp==3.9.0"]["looked_up"] > "2024-10-10"
    assert repository.look_into(clone.folder)[0] == 0
    assert repository.records() == online


def test_a_folder_without_advisories_is_refused(
    repository: Repository, clone: AdvisoryClone, tmp_path: Path
) -> None:
    repository.know()
    before = repository.database.read_text()
    clone.write(PYSEC, {"id": "A-1", "affected": [{"versions": ["1"], "ecosystem": "none"}]})
    clone.commit("2099-03-01")
    for folder, message in (
        (clone.folder, "holds no OSV record that names a package"),
        (tmp_path / "nowhere", "cannot be read as a git clone"),
    ):
        code, output = repository.look_into(folder)
        assert code == 1
        assert message in output
    clone.write(PYSEC, advisory("aiohttp", events=[{"introduced": "0"}, {"fixed": "soon"}]))
    clone.commit("2099-03-02")
    code, output = repository.look_into(clone.folder)
    assert code == 1
    assert "cve-snapshot: PYSEC-2099-1" in output
    assert "soon" in output
    assert repository.database.read_text() == before


@pytest.mark.parametrize(
    ("listed", "events", "found"),
    [
        (["3.9.0"], [], True),
        (["3.9.0+cu128"], [], True),
        (["a3", "3.9.0"], [], True),
        (["a3", "3.9.0+cu130", "3.9.1"], [], False),
        ([], [{"introduced": "3.9"}, {"last_affected": "3.9.0"}], True),
        ([], [{"introduced": "3.9.0+cu128"}], True),
        ([], [{"introduced": "3.9"}, {"fixed": "3.9.1"}], True),
        ([], [{"introduced": "0"}, {"fixed": "3.9.0"}], False),
        ([], [{"introduced": "3.9.1"}], False),
    ],
)
def test_a_build_of_a_release_has_the_advisories_of_the_release(
    repository: Repository, clone: AdvisoryClone, listed: list[str], events: list[dict[str, str]], found: bool
) -> None:
    (repository.folder / "requirements" / "worker.txt").write_text("aiohttp==3.9.0+cu128\n")
    record = advisory("aiohttp", events=events)
    record["affected"][0]["versions"] = listed
    clone.write(PYSEC, record)
    clone.commit("2099-03-01")
    code, output = repository.look_into(clone.folder)
    assert code == 0, output
    vulnerabilities = repository.records()["aiohttp==3.9.0+cu128"]["vulnerabilities"]
    assert [each["id"] for each in vulnerabilities] == ["PYSEC-2099-1"] * found


@pytest.mark.parametrize(
    "name",
    [
        "record.json",
        "advisories/github-reviewed/2099/03/GHSA-aaaa/GHSA-aaaa.json",
        "vulns/aiohttp/OTHER-2099-1.yaml",
        "vulns/PYSEC-2099-1.yaml",
        "copy/vulns/aiohttp/PYSEC-2099-1.yaml",
        "data/reports/GO-2099-1.yaml",
    ],
)
def test_a_clone_of_another_database_replaces_nothing(
    repository: Repository, clone: AdvisoryClone, name: str
) -> None:
    """It may hold a few advisories of an ecosystem, and then knows nothing of the others."""
    repository.know(aiohttp=[KNOWN])
    before = repository.database.read_text()
    clone.write(name, advisory("tokenizers", events=[{"introduced": "0"}]))
    clone.commit("2099-03-05")
    code, output = repository.look_into(clone.folder)
    assert code == 1
    assert "not of a known database" in output
    assert "vulns/PACKAGE/PYSEC-*.yaml" in output
    assert repository.database.read_text() == before


def test_a_clone_that_mixes_two_databases_replaces_nothing(
    repository: Repository, clone: AdvisoryClone
) -> None:
    repository.know(aiohttp=[KNOWN])
    before = repository.database.read_text()
    clone.write(PYSEC, RECORD)
    clone.write("data/osv/GO-2099-1.json", advisory("a.example/b", events=[], ecosystem="Go"))
    clone.commit("2099-03-05")
    code, output = repository.look_into(clone.folder)
    assert code == 1
    assert "more than one database" in output
    assert repository.database.read_text() == before


def test_a_database_speaks_of_its_own_ecosystem_only(repository: Repository, clone: AdvisoryClone) -> None:
    repository.know(aiohttp=[KNOWN])
    before = repository.records()
    stray = advisory("tokenizers", events=[{"introduced": "0"}])
    clone.write("data/osv/GO-2099-1.json", advisory("a.example/b", events=[], ecosystem="Go"))
    clone.write("data/osv/GO-2099-2.json", stray)
    clone.commit("2099-03-05")
    code, output = repository.look_into(clone.folder)
    assert code == 0, output
    assert repository.records() == before
