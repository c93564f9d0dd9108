"""What MkDocs cannot do by itself: pages and files from outside docs/, and Mermaid drawings as SVG (mkdocs.yml).

In the repository, a page of docs/ links to any file of the checkout (`../manifests/examples/two-pools.yaml`), so that
the link works on a code host. The site has such a file as a page where OUTSIDE_PAGES names it, else as a copy under
`files/`. A link to a file that does not exist stays as it is, and `mkdocs build --strict` fails on it.
"""

from __future__ import annotations

import posixpath
import re
import zlib
from pathlib import Path
from typing import Any

import mermaidx
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from pymdownx.superfences import SuperFencesException

CHECKOUT = Path(__file__).resolve().parents[1]
OUTSIDE_PAGES = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "e2e/README.md": "kubernetes-harness.md",
}
_LINK = re.compile(r"(?<=\]\()(?P<path>[^)#:\s]+)(?P<anchor>#[^)\s]*)?(?=\))")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Have fences of the language `mermaid` drawn while the site is built."""
    drawing = {"name": "mermaid", "class": "mermaid", "format": _drawn}
    config.mdx_configs["pymdownx.superfences"] = {"custom_fences": [drawing]}
    return config


def _drawn(source: str, *_: Any, **__: Any) -> str:
    """Mermaid's own drawing, as SVG inside the page; its id, to which its styles are bound, is unique on a page."""
    try:
        svg = mermaidx.render(source).svg()
    except Exception as error:  # superfences would show the source instead
        raise SuperFencesException(f"Mermaid cannot draw this: {error}\n{source}") from error
    svg = svg.replace("my-svg", f"drawing-{zlib.crc32(source.encode()):08x}")
    return f'<div class="drawing">{svg}</div>'


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages from outside docs/, and every file of the checkout that a page links to."""
    for source, page in OUTSIDE_PAGES.items():
        if (CHECKOUT / source).is_file():
            files.append(File.generated(config, page, content=_moved(source, page)))
    for file in [file for file in files if file.is_documentation_page()]:
        for target in _outside_links(file.content_string, file.src_uri):
            if files.get_file_from_path(f"files/{target}") is None:
                files.append(File.generated(config, f"files/{target}", abs_src_path=str(CHECKOUT / target)))
    return files


def on_page_markdown(markdown: str, *, page: Page, **_: Any) -> str:
    """Point links that leave docs/ to the site's page, or copy, of the file."""
    return _relinked(markdown, page.file.src_uri)


def _moved(source: str, page: str) -> str:
    """A page from outside docs/, its links as they would be if it stood in docs/."""
    folder = posixpath.dirname(source)

    def link(match: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(folder, match["path"]))
        return posixpath.relpath(target, posixpath.join("docs", posixpath.dirname(page))) + (
            match["anchor"] or ""
        )

    return _LINK.sub(link, (CHECKOUT / source).read_text(encoding="utf-8"))


def _target(link: str, page: str) -> str | None:
    """The file of the checkout, outside docs/, that a page's link leads to; None for any other link."""
    target = posixpath.normpath(posixpath.join("docs", posixpath.dirname(page), link))
    return None if target.startswith(("docs/", "../")) or not (CHECKOUT / target).is_file() else target


def _outside_links(markdown: str, page: str) -> set[str]:
    found = {_target(match["path"], page) for match in _LINK.finditer(markdown)}
    return {target for target in found if target is not None and target not in OUTSIDE_PAGES}


def _relinked(markdown: str, page: str) -> str:
    def link(match: re.Match[str]) -> str:
        target = _target(match["path"], page)
        if target is None:
            return match[0]
        place = OUTSIDE_PAGES.get(target, f"files/{target}")
        return posixpath.relpath(place, posixpath.dirname(page) or ".") + (match["anchor"] or "")

    return _LINK.sub(link, markdown)
