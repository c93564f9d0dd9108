"""Reads YAML files: their documents, each with its lines, and the one that is a job."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.nodes import MappingNode, Node, SequenceNode

from rljob_core.errors import SpecError

_LARGEST_FILE = 4 << 20
_MOST_NODES = 200_000
_LONGEST_INTEGER = 64

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
    found = parse(_read(file) if text is None else text, str(file))
    return [document for document in found if document[1] is not None]


def is_site(content: object) -> bool:
    """Whether a document describes a Site."""
    return isinstance(content, dict) and content.get("kind") == "Site"


def parse(text: str, source: str) -> list[Document]:
    """Parse YAML documents, as JSON has their content.

    Raises:
        SpecError: the text is not YAML, or a key is given twice.
    """
    # Pure Python, because only that reader is YAML 1.2, where 1e-4 is a number and `no` is a word.
    try:
        nodes = list(YAML(typ="safe", pure=True).compose_all(text))
        _check_size(nodes, source)
        contents = map(_as_json, YAML(typ="safe", pure=True).load_all(text))
        return list(zip(nodes, contents, strict=True))
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f"line {mark.line + 1}, column {mark.column + 1}: " if mark is not None else ""
        raise SpecError(source, place + _problem(error)) from error
    except YAMLError as error:  # characters that YAML does not know
        raise SpecError(source, f"not YAML: {' '.join(str(error).split())}") from error
    except RecursionError as error:
        raise SpecError(source, "nested too deeply: no field of an RLJob is") from error
    except (
        ValueError,
        TypeError,
        OverflowError,
        AttributeError,
    ) as error:  # of a date or a number that is none
        raise SpecError(
            source, f"not YAML: a value cannot be read ({' '.join(str(error).split())})"
        ) from error


def _check_size(nodes: Sequence[Node | None], source: str) -> None:
    """Check what aliases (`*name`) expand to: a page of them may stand for billions of values, or for one without end.

    Raises:
        SpecError: it is more than a manifest has.
    """
    sizes = dict[int, int]()

    def size(node: Any) -> int:
        if (known := sizes.get(id(node))) is not None:
            return known
        sizes[id(node)] = _MOST_NODES + 1  # while it is inside of itself
        match node:
            case MappingNode():
                found = 1 + sum(size(key) + size(value) for key, value in node.value)
            case SequenceNode():
                found = 1 + sum(map(size, node.value))
            case _:
                found = 1
        sizes[id(node)] = found
        return found

    if sum(map(size, nodes)) > _MOST_NODES:
        raise SpecError(
            source, f"stands for more than {_MOST_NODES:,} values, aliases (*name) written out: shorten it"
        )


def _as_json(content: Any) -> Any:
    """Convert what YAML has and JSON lacks, as kubectl does.

    Integral floats such as 4.0 and 1e6 become integers, because JSON has only one number type; keys, dates, and what a
    tag such as `!!set` makes become text.
    """
    match content:
        case dict():
            return {
                key if isinstance(key, str) else str(key): _as_json(value) for key, value in content.items()
            }
        case list():
            return [_as_json(item) for item in content]
        case float() if content.is_integer():
            return int(content)
        case int() if content.bit_length() > _LONGEST_INTEGER:
            return f"a number of {content.bit_length():,} bits"  # which no field takes
        case None | bool() | int() | float() | str():
            return content
    return str(content)


def _read(file: Path) -> str:
    try:
        with file.open("rb") as opened:
            content = opened.read(_LARGEST_FILE + 1)
        if len(content) > _LARGEST_FILE:
            raise SpecError(
                str(file), f"has more than {_LARGEST_FILE:,} bytes, more than an API server takes: shorten it"
            )
        return content.decode("utf-8")
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
