"""Tables of the reference pages."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from rljob_cli.manifest.fields import FieldEntry


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """The lines of a table, and an empty one after it."""
    yield f"| {' | '.join(head)} |"
    yield f"|{'|'.join('---' for _ in head)}|"
    for row in rows:
        yield f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |"
    yield ""


def prose(text: str) -> str:
    """Text of a description: what Markdown or HTML would read as markup is shown as it is."""
    return text.replace("<", "&lt;").replace("*", "\\*").replace("[", "\\[")


def row(field: FieldEntry, link: str = "") -> tuple[str, str, str, str]:
    """Name, type, default and meaning of a field.

    Args:
        field: of the API, or an option.
        link: where its own fields are listed; empty if it has none.
    """
    name = f"[`{field.name}`]({link})" if link else f"`{field.name}`"
    default = "**required**" if field.required else f"`{field.default}`" if field.default else ""
    return name, field.type.replace("[", "\\["), default, " ".join(_meaning(field))


def _meaning(field: FieldEntry) -> Iterator[str]:
    if field.description:
        yield prose(field.description)
    if field.allowed:
        yield f"One of {', '.join(f'`{value}`' for value in field.allowed)}."
    if field.bounds:
        yield f"Must be {', '.join(field.bounds)}."
    if field.immutable:
        yield f"*Cannot be changed later, because {prose(field.immutable)}.*"
