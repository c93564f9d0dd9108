"""Reading a cluster often: through one `kubectl proxy`, which costs what asking costs, not a process each time."""

from __future__ import annotations

import atexit
import json
import re
import tempfile
import urllib.request
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from e2e.harness.daemon import Daemon
from e2e.harness.errors import ClusterError
from e2e.harness.kubectl import Kubectl

_SERVING = re.compile(r"Starting to serve on (\S+)")


class Reader:
    """GETs with the rights of a `kubectl`; the proxy ends with this process."""

    def __init__(self, program: Path, kubeconfig: Path) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="kubectl-proxy-")
        log = Path(self._folder.name) / "log"
        command = [str(program), f"--kubeconfig={kubeconfig}", "proxy", "--port=0"]
        self._proxy = Daemon("kubectl proxy", command, log=log)
        self._proxy.start()
        self._proxy.wait_until(lambda: _SERVING.search(log.read_text()) is not None, seconds=240)
        found = _SERVING.search(log.read_text())
        assert found is not None
        self._address = found[1]
        atexit.register(self._proxy.stop)

    def get(self, path: str, **parameters: str) -> Any:
        """What the API server answers.

        Raises:
            ClusterError: it refuses, or is not there.
        """
        query = f"?{urlencode(parameters)}" if parameters else ""
        try:
            with urllib.request.urlopen(f"http://{self._address}{path}{query}", timeout=30) as answer:
                return json.load(answer)
        except (OSError, ValueError) as error:
            raise ClusterError(f"GET {path}: {error}") from error


def reader_of(kubectl: Kubectl) -> Reader:
    """The one for the cluster of a kubectl."""
    return _reader(kubectl.program, kubectl.kubeconfig)


_reader = cache(Reader)
