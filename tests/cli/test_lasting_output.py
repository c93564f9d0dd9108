"""A run goes on when nobody reads what it prints."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

PRINTING = """
import typer
from rich.console import Console
from rljob_cli.run.lasting_output import outlast_readers
from rljob_runtime.process.leave import leave
outlast_readers()
Console().print("a step")
typer.echo("the end")
typer.echo("an error", err=True)
leave(0)
"""


@pytest.mark.parametrize("gone", ["reader", "disk"])
def test_what_can_be_printed_no_more_ends_nothing(gone: str) -> None:
    if gone == "reader":
        reading, output = os.pipe()
        os.close(reading)
    else:
        output = os.open("/dev/full", os.O_WRONLY)
    ended = subprocess.run([sys.executable, "-c", PRINTING], stdout=output, stderr=output, check=False)
    os.close(output)
    assert ended.returncode == 0


def test_closed_output_ends_nothing() -> None:
    command = ["sh", "-c", 'exec "$@" >&- 2>&-', "sh", sys.executable, "-c", PRINTING]
    assert subprocess.run(command, check=False).returncode == 0
