"""What trackers, whose servers are other people's, are sent of a job's spec: no secrets."""

from __future__ import annotations

import re
from typing import Any

HIDDEN = "***"
"""What stands for a value that may be a secret."""
_PASSWORD = re.compile(r"(?<=://)[^/?#\s]*@")
_TEMPLATE = "template"


def without_passwords(text: str) -> str:
    """A text without the users and passwords of the URLs in it."""
    return _PASSWORD.sub("", text)


def redacted(value: Any, *, template: bool = False) -> Any:
    """A spec without the passwords of URLs, and without the values of environment variables of pod templates.

    Args:
        value: a spec, or a part of one: JSON values with the field names of the API.
        template: whether it is a part of a pod template.
    """
    if isinstance(value, str):
        return without_passwords(value)
    if isinstance(value, list):
        return [redacted(part, template=template) for part in value]
    if not isinstance(value, dict):
        return value
    return {
        name: _hidden(part)
        if template and name == "env"
        else redacted(part, template=template or name == _TEMPLATE)
        for name, part in value.items()
    }


def _hidden(env: Any) -> Any:
    """A container's `env` without values; names, and references to Secrets and ConfigMaps, stay."""
    if not isinstance(env, list):
        return HIDDEN
    return [
        {name: HIDDEN if name == "value" else redacted(part) for name, part in variable.items()}
        if isinstance(variable, dict)
        else HIDDEN
        for variable in env
    ]
