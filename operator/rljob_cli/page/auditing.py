"""Audits a run for the page, in a process of its own: an audit computes for a while, and the page must not wait for it.

    python -m rljob_cli.page.auditing DIR

prints the findings on the run in DIR as `rljob audit --json` does. The URL of the server that has its streams comes in
the environment: it may hold a password, and all users of a machine see the arguments of its processes.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from rljob_cli.own_command import own_command
from rljob_cli.run_folder.folder import RunFolder
from rljob_core.errors import RLJobError

MOST_RECORDS = 600_000
"""An audit keeps all of them in memory, about 2 KB each."""
_LEAST_PAUSE, _PAUSE_PER_SECOND = 15.0, 15.0
_LONGEST_SECONDS = 900.0
_NICENESS = 15
_URL = "RLJOB_PAGE_AUDIT_URL"


class RunAudits:
    """The audits of one run.

    Attributes:
        findings: of the newest audit, as `rljob audit --json` prints them; None before the first.
        state: `none`, `running`, `done`, `failed` or `large`.
        message: what failed, or what to do instead.
        at: when the newest audit ended, in seconds since 1970.
        pause: seconds until the next one, so that audits take a small part of one processor.
        revision: number that grows with each change.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.findings: dict[str, Any] | None = None
        self.state = "none"
        self.message = ""
        self.at = 0.0
        self.pause = _LEAST_PAUSE
        self.revision = 0

    async def audit(self, url: str, *, records: int) -> None:
        """Audit the run once.

        Args:
            url: of a server that has its streams.
            records: how many its ledger has.
        """
        if records > MOST_RECORDS:
            self._set(
                "large",
                f"the ledger has {records:,} records: run `{own_command('audit', str(self._folder))}`",
            )
            return
        self._set("running")
        began = time.monotonic()
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-P",  # no module of the current folder
            "-m",
            __spec__.name,
            str(self._folder),
            stdin=asyncio.subprocess.DEVNULL,
            env={**os.environ, _URL: url},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        try:
            async with asyncio.timeout(_LONGEST_SECONDS):
                output, said = await process.communicate()
            self.findings = json.loads(output) if process.returncode == 0 else self.findings
            last = said.decode(errors="replace").strip().splitlines()[-1:]
            if process.returncode == 0:
                self._set("done", _unchecked(self.findings))
            else:
                self._set("failed", *last)
        except (TimeoutError, ValueError) as error:
            self._set("failed", f"the audit did not end well: {error or 'it took too long'}")
        finally:
            if process.returncode is None:
                process.kill()
                await process.communicate()  # to the ends of its pipes, which are then closed
            self.at = time.time()
            self.pause = max(_LEAST_PAUSE, _PAUSE_PER_SECOND * (time.monotonic() - began))

    def _set(self, state: str, message: str = "") -> None:
        self.state, self.message = state, message
        self.revision += 1


def _unchecked(findings: dict[str, Any] | None) -> str:
    """What an audit does not say of a job on a cluster whose storage is not here; empty if it says all."""
    number = len((findings or {}).get("unchecked", ()))
    return f"{number} more claims need the job's storage: kubectl rljob audit --in-cluster" if number else ""


def main() -> None:
    """Print the findings; exit code 1 and one line on standard error if there are none."""
    from rljob_cli.audit import audit
    from rljob_cli.audit.read import read_folder_served
    from rljob_cli.audit.table import as_text

    folder, url = sys.argv[1], os.environ[_URL]
    with suppress(OSError):
        os.nice(_NICENESS)
    try:
        print(as_text(audit(asyncio.run(read_folder_served(RunFolder(Path(folder)), url)))))  # noqa: T201  its output
    except (RLJobError, OSError, LookupError) as error:
        sys.exit(f"{error}".splitlines()[0])


if __name__ == "__main__":
    main()
