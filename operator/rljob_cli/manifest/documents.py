"""Reads YAML files: their documents, each with its lines, and the one that is a job."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.nodes import Node

from rljob_core.errors import SpecError

Document = tuple[Node | None, Any]
"""The nodes of a YAML document, which have line numbers, and its content."""


def job_document(file: Path, documents: Sequence[Document]) -> Document:
    """Of a file's documents, the one that is no Site, or an empty one.

    Raises:
        SpecError: there are several, or the file has Sites only.
    """
    others = [document for document in documents if not is_site(document[1])]
    if len(others) > 1 and (root := others[1][0]) is not None:
        mark = root.start_mark
        raise SpecError(
            str(file),
            f"line {mark.line + 1}, column {mark.column + 1}: a second document begins here: keep one RLJob per file",
        )
    if documents and not others:
        raise SpecError(str(file), "has Sites and no RLJob: add the job that has pools there")
    return others[0] if others else (None, None)


def documents_of(file: Path, text: str | None = None) -> list[Document]:
    """The documents of a file that are not empty; `text`: what it is going to hold.

    Raises:
        SpecError: it cannot be read, or is no YAML.
    """
    return [
        (root, as_json(content))
        for root, content in parse(_read(file) if text is None else text, str(file))
        if content is not None
    ]


def is_site(content: object) -> bool:
    """Whether a document describes a Site."""
    return isinstance(content, dict) and content.get("kind") == "Site"


def parse(text: str, source: str) -> list[Document]:
    """Parse YAML documents.

    Raises:
        SpecError: the text is not YAML, or a key is given twice.
    """
    # Pure Python, because only that reader is YAML 1.2, where 1e-4 is a number and `no` is a word.
    try:
        nodes = YAML(typ="safe", pure=True).compose_all(text)
        return list(zip(nodes, YAML(typ="safe", pure=True).load_all(text), strict=True))
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f"line {mark.line + 1}, column {mark.column + 1}: " if mark is not None else ""
        raise SpecError(source, place + _problem(error)) from error
    except YAMLError as error:  # characters that YAML does not know
        raise SpecError(source, f"not YAML: {' '.join(str(error).split())}") from error


def as_json(content: Any) -> Any:
    """Convert integral floats such as 4.0 and 1e6 to integers, as kubectl does: JSON has only one number type."""
    if isinstance(content, dict):
        return {key: as_json(value) for key, value in content.items()}
    if isinstance(content, list):
        return [as_json(item) for item in content]
    return int(content) if isinstance(content, float) and content.is_integer() else content


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise SpecError(str(file), "there is no such file: give the path of an RLJob's YAML file") from error
    except UnicodeDecodeError as error:
        raise SpecError(str(file), f"byte {error.start} is not UTF-8: save the file as UTF-8 text") from error
    except OSError as error:
        raise SpecError(str(file), f"cannot be read: {error.strerror}") from error


def _problem(error: MarkedYAMLError) -> str:
    problem = (error.problem or "not YAML").strip()
    if problem.startswith("found duplicate key"):
        key = re.match(r'found duplicate key "?([^"\s]+)"?', problem)
        return f"the key {key[1] if key else ''} is given twice: keep one of them"
    context = f" {error.context.strip()}" if error.context else ""
    return f"not YAML:{context}: {problem}"
