"""How long answers may be where nobody has said so."""

from __future__ import annotations

import json
from pathlib import Path


def usual_max_tokens(model: str, wanted: int) -> int:
    """`maxTokens` as wanted, but at most half of the model's context; as wanted where the context is not known.

    Args:
        model: folder of the model, or its URI.
        wanted: tokens of an answer.
    """
    try:
        settings = json.loads(
            (Path(model.removeprefix("file://")) / "config.json").read_text(encoding="utf-8")
        )
        return max(1, min(wanted, int(settings["max_position_embeddings"]) // 2))
    except (OSError, ValueError, TypeError, KeyError):
        return wanted
