"""Debian's Prometheus, for tests: its programs, and a server that scrapes."""

from __future__ import annotations

import json
import shutil
import subprocess
import urllib.parse
import urllib.request
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

from e2e.harness.availability import available
from e2e.harness.errors import NotAvailableError
from e2e.harness.ports import hold_port
from ruamel.yaml import YAML
from tests.waiting import patience, until


def program(name: str) -> str:
    """Path of `prometheus` or `promtool`; skips the test where it is missing."""
    with available():
        return _found(name)
    raise AssertionError


def _found(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        _missing(name)
    return found


def _missing(name: str) -> NoReturn:
    raise NotAvailableError(f"{name} is not installed: e2e/install-packages.sh installs it")


class PrometheusServer:
    """A Prometheus on a free port of the loopback interface.

    Args:
        folder: for its configuration, data and log.
        targets: file, or pattern of files, with the targets.
        rules: file of rules.
    """

    def __init__(self, folder: Path, *, targets: str, rules: Path) -> None:
        configuration = {
            "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
            "scrape_configs": [
                {"job_name": "rljob", "file_sd_configs": [{"files": [targets], "refresh_interval": "1s"}]}
            ],
            "rule_files": [str(rules)],
        }
        with (folder / "prometheus.yml").open("w") as file:
            YAML(typ="safe").dump(configuration, file)
        self._held = hold_port()
        self._address = f"127.0.0.1:{self._held.getsockname()[1]}"
        self._log = folder / "prometheus.log"
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [
                    program("prometheus"),
                    f"--config.file={folder / 'prometheus.yml'}",
                    f"--storage.tsdb.path={folder / 'tsdb'}",
                    f"--web.listen-address={self._address}",
                ],
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def get(self, path: str, **parameters: str) -> Any:
        """The data of an answer of its API."""
        url = f"http://{self._address}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"

        def answered() -> list[Any]:
            try:
                with urllib.request.urlopen(url, timeout=patience()) as answer:
                    return [json.load(answer)["data"]]
            except urllib.error.HTTPError as error:
                if error.code != 503:
                    raise AssertionError(f"{url}: {error.read().decode()}") from error
            except OSError:
                pass  # it does not listen yet
            return []

        return until(
            answered, url, every=0.2, alive=lambda: self._process.poll() is None, shown=self._log.read_text
        )[0]

    def query(self, text: str) -> list[dict[str, Any]]:
        """The series of an instant query."""
        return list(self.get("query", query=text)["result"])

    def stop(self) -> None:
        """End it."""
        self._process.terminate()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(30)
        self._process.kill()
        self._process.wait()
        self._held.close()
