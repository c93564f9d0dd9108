"""An agent that asks one question with Python's own HTTP client, so that little is measured but the gateway."""

from __future__ import annotations

import json
import os
import sys
from urllib.request import Request, urlopen


def post(call: str, body: dict[str, object]) -> object:
    """Call the server of the episode."""
    request = Request(
        f"{os.environ['OPENAI_BASE_URL']}/{call}",
        json.dumps(body).encode(),
        {"Authorization": f"Bearer {os.environ['OPENAI_API_KEY']}", "Content-Type": "application/json"},
    )
    with urlopen(request) as answer:
        return json.load(answer)


if __name__ == "__main__":
    message = {"role": "user", "content": sys.argv[1]}
    post("chat/completions", {"model": os.environ["OPENAI_MODEL"], "messages": [message]})
    post("score", {"score": len(sys.argv[1]) % 7 / 7})
