"""The reward `python_tests`: whether Python that a model wrote passes the item's tests, in a sandbox."""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping
from typing import Any

from rljob_core.ports import Reward
from rljob_core.ports.sandbox import Sandbox, SandboxLimits

SECONDS = 10.0
"""That code and tests may take; what takes longer has failed."""
_LIMITS = SandboxLimits(seconds=SECONDS, output_bytes=1 << 20)
_BLOCK = re.compile(r"```(?:python|py)?[ \t]*\n(.*?)(?:```|\Z)", re.DOTALL)
_TESTS = """\
import sys
_word = sys.stdin.readline()
from answer import *  # noqa
{tests}
sys.stdout.write("\\n" + _word)
"""


def python_tests(sandbox: Sandbox) -> Reward:
    """The reward, whose programs run in a sandbox.

    The tests read a word from standard input and write it at their end: code that ends the process early, with whatever
    exit code, has passed nothing.
    """

    def python_tests(*, completion: str, item: Mapping[str, Any]) -> float:
        """1 if the item's `tests` run to their end after the completion's last block of code, else 0."""
        word = secrets.token_hex(16)
        files = {
            "answer.py": code_of(completion).encode("utf-8", errors="replace"),
            "tests.py": _TESTS.format(tests=item["tests"]).encode("utf-8", errors="replace"),
        }
        # -I: no module of the working directory takes the place of a standard one, but for the answer itself.
        program = "import sys, runpy; sys.path.append('.'); runpy.run_path('tests.py', run_name='__main__')"
        found = sandbox.run(
            ["python3", "-I", "-c", program], files=files, stdin=f"{word}\n".encode(), limits=_LIMITS
        )
        return float(found.succeeded and found.output.endswith(f"\n{word}\n".encode()))

    return python_tests


def code_of(completion: str) -> str:
    """The last block of code between three backticks; without one, all of it."""
    blocks = _BLOCK.findall(completion)
    return str(blocks[-1]) if blocks else completion
