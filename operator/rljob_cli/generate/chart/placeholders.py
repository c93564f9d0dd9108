"""Objects with places for Helm's template language, and their text.

An object stays data until it is written: a place is a word that YAML writes as it is, and that the text then replaces.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from rljob_cli.yaml_files import as_yaml

_WORD = re.compile(r"helmplace(\d+)x")
_LINE = re.compile(r"^( *)(- )?helmplace(\d+)x(: (?:null)?| *:)?$")


class TemplatePlaces:
    """The places of one template file."""

    def __init__(self) -> None:
        self._texts: list[str] = []

    def value(self, expression: str) -> str:
        """A place for what an expression gives, in the middle of a line."""
        return self._place(f"{{{{ {expression} }}}}")

    def lines(self, text: str) -> str:
        """A place for lines, as an element of a list or as a key with the value None.

        `INDENT` in the text becomes the number of spaces before that element or key, `DEEPER` two more.
        """
        return self._place(text)

    def text(self, manifest: Mapping[str, Any], condition: str = "") -> str:
        """The object, rendered only if the condition holds."""
        plain = as_yaml(manifest, "").replace("{{", '{{ "{{" }}')
        lines = "".join(f"{self._line(line)}\n" for line in plain.splitlines())
        return f"{{{{- if {condition} }}}}\n---\n{lines}{{{{- end }}}}\n" if condition else f"---\n{lines}"

    def _place(self, text: str) -> str:
        self._texts.append(text)
        return f"helmplace{len(self._texts) - 1}x"

    def _line(self, line: str) -> str:
        if found := _LINE.match(line):
            spaces = found[1]
            text = self._texts[int(found[3])]
            text = text.replace("INDENT", str(len(spaces))).replace("DEEPER", str(len(spaces) + 2))
            return "\n".join(part if part.startswith("{{") else spaces + part for part in text.splitlines())
        return _WORD.sub(lambda found: self._texts[int(found[1])], line)
