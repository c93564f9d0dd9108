"""`rljob run` goes on when nobody reads what it says any more, as under `| head`."""

from __future__ import annotations

import subprocess
import sys

LINES = """
import sys
from rich.console import Console
from rljob_cli.run.lasting_output import outlast_readers
outlast_readers()
sys.stdin.readline()  # by then nobody reads
Console().print("a line")
print("an error", file=sys.stderr, flush=True)
sys.exit(7)
"""


def test_a_process_whose_output_lost_its_reader_goes_on() -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", LINES], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdin
    assert process.stdout
    assert process.stderr
    process.stdout.close()
    process.stderr.close()
    process.stdin.write(b"\n")
    process.stdin.close()
    assert process.wait(60) == 7
