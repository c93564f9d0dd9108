"""The documentation site builds: no dead link, every drawing drawn, and nothing loaded from another server."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).parents[2]
pytestmark = pytest.mark.xdist_group("site")  # else several processes build it


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site as `make docs` builds it."""
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", f"--site-dir={folder}"],
        cwd=CHECKOUT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def test_every_page_is_on_the_site(site: Path) -> None:
    pages = {
        page.relative_to(CHECKOUT / "docs").with_suffix(".html") for page in CHECKOUT.glob("docs/**/*.md")
    }
    assert [page for page in pages if not (site / page).is_file()] == []
    assert (site / "index.html").is_file()
    assert (site / "files/manifests/examples/two-pools.yaml").is_file()


def test_drawings_are_drawn(site: Path) -> None:
    drawings = (CHECKOUT / "docs/architecture.md").read_text().count("```mermaid")
    page = (site / "architecture.html").read_text()
    assert page.count('<div class="drawing"><svg') == drawings
    assert "```mermaid" not in page


def test_pages_load_nothing_from_elsewhere(site: Path) -> None:
    loads = re.compile(r"<(?:script|img|iframe|link)\b[^>]*?(?:src|href)=[\"']?((?:https?:)?//[^\"' >]+)")
    found = {match for page in site.rglob("*.html") for match in loads.findall(page.read_text())}
    assert found == set()
