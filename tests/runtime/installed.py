"""Distributions as an installer leaves them: a module, and metadata beside it."""

from __future__ import annotations

from pathlib import Path


def install(folder: Path, name: str, code: str, **points: str) -> Path:
    """Lay down a distribution of one module.

    Args:
        folder: of the path; made if it does not exist.
        name: of the distribution; its module has underscores for hyphens.
        code: of the module.
        points: by group without `rljob.`, lines of `name = attribute of the module`.

    Returns:
        The folder.
    """
    module = name.replace("-", "_")
    metadata = folder / f"{module}-1.2.dist-info"
    metadata.mkdir(parents=True)
    (folder / f"{module}.py").write_text(code)
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.2\n")
    text = ""
    for group, lines in points.items():
        text += f"[rljob.{group}]\n"
        for line in lines.splitlines():
            point, _, attribute = line.partition(" = ")
            text += f"{point} = {module}:{attribute}\n"
    (metadata / "entry_points.txt").write_text(text)
    return folder
