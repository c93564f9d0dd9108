"""A job's YAML file may describe its Sites, as `kubectl apply` takes it: their links are those of the job."""

from __future__ import annotations

from pathlib import Path

import pytest

from rljob_cli.manifest.load import InvalidManifest, load_job, load_job_and_links
from rljob_cli.run_folder.folder import Identity, RunFolder
from rljob_core.errors import SpecError
from rljob_core.spec import SiteLinkSpec
from rljob_operator.children.resolved_job import resolve_job

JOB = """\
apiVersion: rljob.dev/v1alpha1
kind: RLJob
metadata: {name: far, uid: u1}
spec:
  steps: 2
  model: {uri: model}
  data: {dataset: chain_sum}
  rollout:
    pools: [{name: near}, {name: far, site: west}]
"""
SITE = """\
apiVersion: rljob.dev/v1alpha1
kind: Site
metadata: {name: west}
spec:
  namespaces: [default]
  link: {bitsPerSecond: 1e8, latencySeconds: 0.06, pricePerGigabyte: "0.05"}
"""
LINK = SiteLinkSpec(bits_per_second=10**8, latency_seconds=0.06, price_per_gigabyte="0.05")


def written(folder: Path, *documents: str) -> Path:
    file = folder / "job.yaml"
    file.write_text("---\n".join(documents))
    return file


@pytest.mark.parametrize("documents", [(JOB, SITE), (SITE, JOB), (SITE, JOB, "")])
def test_sites_may_stand_before_and_after_the_job(tmp_path: Path, documents: tuple[str, ...]) -> None:
    file = written(tmp_path, *documents)
    assert load_job(file, ["spec.steps=3"]).spec.steps == 3
    assert load_job_and_links(file)[1] == {"west": LINK}


def test_a_file_without_sites_has_no_links(tmp_path: Path) -> None:
    assert load_job_and_links(written(tmp_path, JOB))[1] == {}


def test_errors_in_a_site_name_its_line(tmp_path: Path) -> None:
    file = written(tmp_path, JOB, SITE.replace("0.06", "-1"))
    with pytest.raises(InvalidManifest) as error:
        load_job_and_links(file)
    (problem,) = error.value.exceptions
    assert str(problem).startswith("spec.link.latencySeconds: ")
    assert "(job.yaml, line 16)" in str(problem)


def test_a_site_is_described_once(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="describes the Site west twice"):
        load_job_and_links(written(tmp_path, JOB, SITE, SITE))


def test_sites_alone_are_no_job(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="has Sites and no RLJob"):
        load_job(written(tmp_path, SITE))


def test_the_links_of_named_sites_are_in_the_configuration(tmp_path: Path) -> None:
    job, folder = load_job(written(tmp_path, JOB, SITE)), RunFolder(tmp_path / "run")
    other = {"west": LINK, "east": SiteLinkSpec()}
    assert resolve_job(job, folder.defaults("", links=other)).config.links == {"west": LINK}
    assert resolve_job(job, folder.defaults("")).config.links == {}


def test_a_folder_keeps_them(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    links = {"west": LINK.model_dump(mode="json", by_alias=True)}
    folder.claim(Identity("far", "default", "u1", "m", "", {}, links=links))
    found = folder.identity()
    assert found is not None
    assert found.site_links == {"west": LINK}
