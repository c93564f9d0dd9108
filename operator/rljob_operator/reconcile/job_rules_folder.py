"""`JobRulesFolder` reads the platform's rules for jobs from a mounted ConfigMap: a file for each key.

The kubelet exchanges the files of a changed ConfigMap in about a minute. So the operator needs no right to read
ConfigMaps of its own namespace, and no restart.
"""

from __future__ import annotations

import logging
from pathlib import Path

from rljob_operator.decisions.job_rules import JobRules, RulesMode

log = logging.getLogger(__name__)

_NOTHING = JobRules({"mode": RulesMode.ENFORCE})
"""Allows nothing: what holds until rules that exist have been read once."""


class JobRulesFolder:
    """The rules, as they were read last.

    Args:
        folder: the mounted ConfigMap; None, or a folder without files, allows everything.
    """

    def __init__(self, folder: str | None) -> None:
        self._folder = None if folder is None else Path(folder)
        self.rules = JobRules({}) if folder is None else _NOTHING
        self.refresh()

    def refresh(self) -> bool:
        """Read the rules again; returns whether they have changed. While they cannot be read, the old ones hold."""
        if self._folder is None:
            return False
        try:
            # The kubelet's own entries begin with dots.
            files = [file for file in self._folder.glob("[!.]*") if file.is_file()]
            found = JobRules({file.name: file.read_text(encoding="utf-8") for file in files})
        except (OSError, UnicodeDecodeError) as error:
            log.warning("rules for jobs cannot be read, so the old ones remain in force: %s", error)
            return False
        if found == self.rules:
            return False
        self.rules = found
        log.info("rules for jobs: %s", found.mode)
        return True
