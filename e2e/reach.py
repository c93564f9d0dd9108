"""What a container can connect to, tried from inside it."""

from __future__ import annotations

import json

from e2e.harness.kubectl import Kubectl

_TRY = """
import json, socket, sys
found = {}
for place in sys.argv[1:]:
    host, _, port = place.rpartition(":")
    try:
        socket.create_connection((host, int(port)), 5).close()
        found[place] = True
    except OSError:
        found[place] = False
print(json.dumps(found))
"""


def reached(kubectl: Kubectl, pod: str, container: str, *places: str, python: str = "python") -> set[str]:
    """Those of the places, each `host:port`, that a container's connection gets to.

    The container needs Python; a connection that is not answered within 5 s counts as none.
    """
    printed = kubectl("exec", pod, f"--container={container}", "--", python, "-c", _TRY, *places)
    found: dict[str, bool] = json.loads(printed)
    return {place for place, connected in found.items() if connected}
