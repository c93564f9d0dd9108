"""`rljob site forget` on a real API server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from e2e.harness.fixtures import SharedControlPlane
from invocation import rljob
from kubeconfigs import cluster_of, write_kubeconfig
from operators import Namespace, Object

pytestmark = pytest.mark.xdist_group("operator")

NAME = "forgettable"


@pytest.fixture
def site(
    crds: SharedControlPlane, watched: Namespace, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Namespace]:
    monkeypatch.setenv("KUBECONFIG", str(crds.kubeconfig))
    watched.apply(
        {"apiVersion": "rljob.dev/v1alpha1", "kind": "Site", "metadata": {"name": NAME}, "spec": {}}
    )
    yield watched
    watched("delete", "rlsite", NAME)


def annotations(watched: Namespace) -> Object:
    found: Object = watched.existing("rlsite", NAME)["metadata"].get("annotations", {})
    return {key: value for key, value in found.items() if key.startswith("rljob.dev/")}


def status(watched: Namespace, **fields: object) -> None:
    watched.patch("rlsite", NAME, {"status": fields}, "--subresource=status")


def test_a_site_that_is_away_is_forgotten_with_its_last_beat(site: Namespace) -> None:
    done = rljob("site", "forget", NAME)
    assert (done.code, done.out) == (0, f"Site {NAME}, never heard, counts as lost until it is heard again\n")
    assert annotations(site) == {"rljob.dev/forget": "never"}
    status(site, connected=False, lastBeat="2026-01-02T03:04:05Z")
    done = rljob("site", "forget", NAME)
    assert done.out.startswith(f"Site {NAME}, last heard at 2026-01-02T03:04:05Z, counts as lost")
    assert annotations(site) == {"rljob.dev/forget": "2026-01-02T03:04:05Z"}


def test_one_that_is_connected_and_one_that_does_not_exist_are_refused(site: Namespace) -> None:
    status(site, connected=True, lastBeat="2026-01-02T03:04:05Z")
    done = rljob("site", "forget", NAME)
    assert done.code == 2
    assert "the site is connected: to take its engines away, remove the pools there" in done.errors[0]
    done = rljob("site", "forget", "nowhere")
    assert done.code == 2
    assert f"there is no such Site (Sites: {NAME}" in done.errors[0]
    assert annotations(site) == {}


def test_an_api_server_that_cannot_be_reached_is_said(
    site: Namespace, crds: SharedControlPlane, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nobody = write_kubeconfig(tmp_path / "nobody", cluster_of(crds.kubeconfig), {"token": "wrong"})
    monkeypatch.setenv("KUBECONFIG", str(nobody))
    done = rljob("site", "forget", NAME)
    assert (done.code, len(done.errors)) == (1, 1)
    assert done.errors[0].startswith("error: ")
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "absent"))
    done = rljob("site", "forget", NAME)
    assert done.code == 1
    assert "set KUBECONFIG" in done.errors[0]
