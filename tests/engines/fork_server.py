"""Processes for tests that need many which have loaded torch and DeepSpeed: those are loaded once, and then it forks.

Run as a program. A line of standard input is what to start, JSON: `{"gang": folder, "ranks": 2}`, or
`{"rljob": [arguments], "log": file}`; a line of standard output tells the exit codes of the processes, once all of them
have ended. The first that fails ends the others, which would wait for it.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

#: Nobody waits for longer, on a machine however busy.
_SECONDS = 1200

Birth = tuple[Path, Callable[[], None]]


def born(asked: dict[str, Any]) -> list[Birth]:
    """The processes that are asked for, each with its log."""
    if "rljob" in asked:
        return [(Path(asked["log"]), partial(_rljob, asked["rljob"]))]
    from gang_rank import run_rank

    folder, ranks = Path(asked["gang"]), asked["ranks"]
    return [(folder / f"rank-{rank}.log", partial(run_rank, rank, ranks, folder)) for rank in range(ranks)]


def _rljob(arguments: list[str]) -> None:
    from rljob_cli.main import main

    sys.argv = ["rljob", *arguments]
    main()


def fork(log: Path, work: Callable[[], None]) -> int:
    """Do this in a new process, whose output goes to a file; its id."""
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        signal.alarm(_SECONDS)
        file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        for stream in (1, 2):
            os.dup2(file, stream)
        work()
        code = 0
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)  # nothing of this process's own is to be ended by another
    return 0


def await_all(pids: list[int]) -> list[int]:
    """Their exit codes; once one fails, all others are killed."""
    codes = dict[int, int]()
    while len(codes) < len(pids):
        pid, status = os.wait()
        codes[pid] = os.waitstatus_to_exitcode(status)
        if codes[pid]:
            for other in set(pids) - codes.keys():
                os.kill(other, signal.SIGKILL)
    return [codes[pid] for pid in pids]


def main() -> None:
    """Load, then do what is asked."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # where libraries may print
    import deepspeed  # noqa: F401
    import gang_rank  # noqa: F401
    import peft  # noqa: F401
    from transformers import Qwen2ForCausalLM  # noqa: F401

    for line in sys.stdin:
        codes = await_all([fork(*each) for each in born(json.loads(line))])
        print(json.dumps(codes), file=answers, flush=True)


if __name__ == "__main__":
    main()
