"""The page's audits, in a process of their own."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from rljob_cli.page.auditing import RunAudits

SCRIPT = """#!/bin/sh
printf '{"arguments": "%s", "url": "%s"}' "$*" "$RLJOB_PAGE_AUDIT_URL"
"""


async def test_no_argument_holds_the_url_as_it_may_hold_a_password(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "python"
    script.write_text(SCRIPT)
    script.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(script))
    audits = RunAudits(tmp_path)
    await audits.audit("nats://me:secret@127.0.0.1:1", records=1)
    assert (audits.state, audits.message) == ("done", "")
    assert audits.findings is not None
    assert "secret" not in audits.findings["arguments"]
    assert str(tmp_path) in audits.findings["arguments"]
    assert audits.findings["url"] == "nats://me:secret@127.0.0.1:1"
