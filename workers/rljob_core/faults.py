"""Who is at fault when a job has failed, what to do, and which log says more: `docs/troubleshooting.md` has the table.

`rljob run` prints it, and on a cluster the condition `Failed` has it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from rljob_core.errors import CorruptLedger, SpecError, StorageRefused, StoreUnavailable
from rljob_core.exhausted import limit_in


@dataclass(frozen=True, slots=True)
class Fault:
    """What a job ended of.

    Attributes:
        who: at fault.
        remedy: what to do before the run is continued.
        log: the role whose log says more, or `NATS_SERVER`; empty for all of them.
        elsewhere: what to do before another job takes the place of one that has failed on a cluster, where a failed job
            is not continued; empty if that is the remedy, too.
    """

    who: str
    remedy: str
    log: str = ""
    elsewhere: str = ""


NATS_SERVER = "nats-server"
"""The log of the NATS server, which is no role of the job."""

REWARD = Fault("your reward function", "mend it where the message says", "reward")
DATA = Fault(
    "your data",
    "mend the rows of the prompts that the message names, each in its place: the number of rows must not change",
    "coordinator",
    elsewhere="mend or remove the rows of the prompts that the message names",
)
ENGINE = Fault(
    "the engine, or the prompts that it cannot answer",
    "read what the engine said last, then change spec.rollout.engine, or mend the rows of those prompts in place",
    "rollout",
    elsewhere="read what the engine said last, then change spec.rollout.engine, or mend or remove the rows of those "
    "prompts",
)
TRAINING = Fault(
    "what was trained on, or how",
    "look at the trajectories that the message names, or lower spec.algorithm.learningRate, kl or microBatchTokens",
    "trainer",
)
TRAINER = Fault(
    "the trainer's process, which crashes", "read what it said last: options, memory, devices", "trainer"
)
WEIGHTS = Fault(
    "the storage of the weights, which has lost or altered what it held",
    "look after the disk; the command below goes back to the newest version that verifies",
    "trainer",
    elsewhere="look after the storage that spec.weights.uri names, or the NATS server's",
)
INPUT = Fault("your manifest, or what it names", "correct the field that the message names")
DEADLINE = Fault("your manifest, by its time limit", "raise spec.activeDeadlineSeconds, or remove it")
DISK = Fault(
    "the disk of this machine", "free space on it, or repair it; what the folder held is still there"
)
PERMISSIONS = Fault("the permissions of that path", "let this user read and write it")
LIMIT = Fault(
    "a limit of this machine or session, which is used up",
    "raise the limit that the message names, or end what uses it up",
)
SERVER = Fault("the NATS server, or its disk", "start or repair it; its log says why", NATS_SERVER)
STORAGE = Fault(
    "the storage of the NATS server or its account, which is smaller than one step",
    "give it more, or lower spec.rollout.sampling.maxTokens",
    "coordinator",
)
FAILING = Fault(
    "the processes of that role, which end again and again",
    "remove the cause that the message quotes: a package, a file, memory, a device",
)
LEDGER = Fault(
    "the ledger, which was damaged, or which another release or another program wrote",
    "restore the folder nats from a copy; `rljob audit` says what is left",
    elsewhere="look after the NATS server's disk; the job's newest backup can be restored as another job",
)
UNKNOWN = Fault(
    "not clear: perhaps rljob itself", "read the logs; if it is a mistake of rljob, report it with them"
)

NO_FURTHER = "and the job got no further"
"""How the message ends with which a job has failed whose role fails again and again."""
_FAILING = re.compile(rf"^(?P<role>\w+): .*{NO_FURTHER}$")
#: By the words of the job's end, in this order. The names of reasons are those of the ledger.
_BY_WORDS = [
    (re.compile(r"\): Reward(Raised|OutOfRange|Timeout|Crashed|Invalid)\b"), REWARD),
    (re.compile(r"\): PromptUnsendable\b"), DATA),
    (re.compile(r"prompts of step \d+ were given up"), ENGINE),
    (re.compile(r"^(?:\w+: )?the trajectory stream holds .* MB and step \d+ needs"), STORAGE),
    (re.compile(r"Versions that do verify"), WEIGHTS),
    (re.compile(r"is not finite|\bstep \d+: out of memory\b"), TRAINING),
    (re.compile(r"payloads of \d+ groups were missing|\bnats-server (at|answers)\b"), SERVER),
    (re.compile(r"trainer attempts failed, spec\.backoffLimit"), TRAINER),
    (re.compile(r"activeDeadlineSeconds"), DEADLINE),
    (re.compile(r"\bof the ledger\b"), LEDGER),
    (re.compile(r"\bspec\.\w+"), INPUT),
]


def fault_of_error(error: BaseException) -> Fault:
    """The fault that an error of `rljob run` itself means."""
    match error:
        case StoreUnavailable():
            return LIMIT if limit_in(str(error)) else SERVER
        case CorruptLedger():
            return LEDGER
        case OSError() | StorageRefused():
            return DISK
        case SpecError():
            return INPUT
        case _:
            return fault_of_words(str(error))


def fault_of_words(message: str) -> Fault:
    """The fault that the message with which a job has failed means, after the role that sent it, if it names one."""
    failing = _FAILING.search(message)
    other = UNKNOWN if failing is None else replace(FAILING, log=failing["role"])
    found = next((fault for pattern, fault in _BY_WORDS if pattern.search(message)), other)
    # Of what user code, data and fields are to blame for, they are.
    return LIMIT if found in {SERVER, TRAINER, other} and limit_in(message) else found
