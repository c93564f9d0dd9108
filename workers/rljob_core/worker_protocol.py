"""What the operator and its workers agree on: environment variables, exit codes, and termination messages.

The operator starts a worker as `python -m rljob_runtime.main ROLE` and decides from the worker's exit code:

| code | meaning | what the operator does |
|---|---|---|
| 0 | a trainer has finished training; any other role was asked to stop | trainer: the job succeeded |
| 2 | the user has to change something; the message says what | fails the job at once with that message |
| 3 | fenced: a newer attempt or writer epoch took over | restarts it; not counted |
| 4 | something outside the job is missing or does not answer | restarts it with back-off; not counted; reports it |
| 143 | stopped by SIGTERM before training was over | restarts it; not counted |
| other, or a signal | a crash | restarts it with back-off; a trainer's is counted against `backoffLimit` |

A trainer that is stopped by SIGTERM before training is finished must not exit with 0.

A rollout worker's first process watches the one that holds the engine, and ends with its exit code. If that process
crashed, the first one reports it to the coordinator before it ends.

The termination message is what the worker wrote to the file that `TERMINATION_LOG` names, else the end of its output.
A launcher such as torchrun exits with 1 whatever the exit codes of its ranks. So a worker that knows why it ends writes
the failure there (`rljob_core.failures.Failure` as JSON), and the code is that of the failure's reason.
"""

from __future__ import annotations

MODULE = "rljob_runtime.main"
"""The module that runs a worker."""

TRACKER_ROLE = "tracker"
"""The role whose errors do not end the job."""

FETCH_MODEL = "fetch-model"
"""The argument with which `MODULE` downloads the model that the job names, and ends; also its container's name."""
FETCH_DATA = "fetch-data"
"""The argument with which `MODULE` downloads the model's settings and tokenizer and the data sets, and ends."""
FETCH_ALL = "fetch-all"
"""The argument with which `MODULE` downloads the model and the data sets, and ends."""

FORK_SERVER = "fork-server"
"""The argument with which `MODULE` forks the roles that `rljob run` asks for (`rljob_runtime.process.fork_server`)."""

SCORING_MODULE = "rljob_runtime.rewards.server"
"""The module that runs reward functions, for a reward worker that connects to the socket at the path it is given."""
SCORING_PROBE = "rljob_runtime.rewards.probe"
"""The module that exits with 0 if a scoring server answers at the path that it is given."""
SCORER = "scorer"
"""The container of a reward worker's pod that runs the reward functions."""

ENVIRONMENT_MODULE = "rljob_runtime.environments"
"""The module that plays episodes in a pod of its own, for rollout workers that connect to the address it is given."""
ENVIRONMENT_HOST = "environment"
"""The name in the certificate of a job's environment pods."""
ENVIRONMENT_AUTHORITY, ENVIRONMENT_CERTIFICATE, ENVIRONMENT_KEY = "ca.crt", "tls.crt", "tls.key"
"""Files in the folder that `ENVIRONMENT_KEYS` names: the job's authority, the certificate of this end, and its key."""

LOST_SITES_FILE = "lost-sites.json"
"""The file beside the job's configuration with the sites that are not to be waited for, a JSON list; absent if none."""

# ---------------------------------------------------------------------------------------- environment variables

CONFIG = "RLJOB_CONFIG"
"""Path of the job's configuration file (`rljob_core.config.JobConfig` as JSON)."""
NATS_URL = "RLJOB_NATS_URL"
"""Address of the NATS server."""
NATS_CREDENTIALS = "RLJOB_NATS_CREDENTIALS"
"""The role's NATS credentials or the path of their file; unset if the NATS server does not authenticate clients."""
NATS_JWT = "RLJOB_NATS_JWT"
"""Path of the file with the role's NATS token, in which it is renewed; unset if the credentials have a token."""
POD = "RLJOB_POD"
"""Name of the worker's pod."""
POOL = "RLJOB_POOL"
"""Name of a rollout worker's pool."""
TRACKER = "RLJOB_TRACKER"
"""Name of the experiment tracker that a tracker's process sends the job's metrics to."""
TRACKER_FOLDER = "RLJOB_TRACKER_FOLDER"
"""Folder for the files of a tracker whose options name none; empty or unset on a cluster."""
TRACKER_HANDOVER = "RLJOB_TRACKER_HANDOVER_SECONDS"
"""For which a tracker's process waits, as one that it replaces may still store metrics; unset where none can."""
TRACKER_PYTHON = "RLJOB_TRACKER_PYTHON"
"""Python of the environment in which the trackers' packages are installed; unset if that is the workers' own."""
REVISION = "RLJOB_REVISION"
"""Git revision of the code that runs, which trackers store: images set it."""
NONCE = "RLJOB_NONCE"
"""Second part of a rollout worker's instance name, set by the process that watches the one with the engine."""
ALIVE_PIPE = "RLJOB_ALIVE_PIPE"
"""Number of the file descriptor into which a watched process writes for how long it may be silent (`alive`)."""
ATTEMPT = "RLJOB_ATTEMPT"
"""Number of a trainer's attempt."""
READY_FILE = "RLJOB_READY_FILE"
"""Path of the file that a worker creates once it is ready."""
TERMINATION_LOG = "RLJOB_TERMINATION_LOG"
"""Path of the file to which a worker writes its termination message."""
SCORING_SOCKET = "RLJOB_SCORING_SOCKET"
"""Path of the scoring server's socket; unset if the reward worker starts a server of its own."""
ENVIRONMENT_ADDRESS = "RLJOB_ENVIRONMENT_ADDRESS"
"""`host:port` of the job's environment pods, of which the host has all addresses; unset if a rollout worker starts an
environment server of its own."""
ENVIRONMENT_KEYS = "RLJOB_ENVIRONMENT_KEYS"
"""Folder of the files by which environment pods and rollout workers know each other."""
ENVIRONMENT_SETUP = "RLJOB_ENVIRONMENT"
"""What an environment pod plays: `rljob_runtime.environments.messages.EnvironmentSetup` as JSON."""
MODULES = "RLJOB_MODULES"
"""Folders, separated as in PYTHONPATH, in which modules are found that no installed package has: the manifest's."""
DECISIONS = "RLJOB_DECISIONS"
"""Folder for the coordinator's decision log; unset if it keeps none."""
METRICS_ADDRESS = "RLJOB_METRICS_ADDRESS"
"""`host:port` at which a role serves its metrics; unset or empty if it serves none, port 0 for any free one."""
METRICS_TARGETS = "RLJOB_METRICS_TARGETS"
"""Folder into which a role that serves metrics writes a file by which Prometheus finds it; unset in a cluster."""
LOG_LEVEL = "RLJOB_LOG_LEVEL"
"""Least severe level that is logged: DEBUG, INFO, WARNING, ERROR or CRITICAL."""
DIE_WITH_PARENT = "RLJOB_DIE_WITH_PARENT"
"""1: a process has the kernel kill it when the process that started it ends."""
CLUSTER = "RLJOB_CLUSTER"
"""In a local cluster: a word that all of its processes have, by which those that were left behind are found."""
SUPERVISOR = "RLJOB_SUPERVISOR"
"""Id of the process with which all processes that it has started, and theirs, are to end."""


OWN = "RLJOB_"
"""How the names of all these variables begin. They mean nothing to other programs and libraries."""


def dying_with(supervisor: int) -> dict[str, str]:
    """The environment variables of a process that is to end with its supervisor."""
    return {DIE_WITH_PARENT: "1", SUPERVISOR: str(supervisor)}


# ---------------------------------------------------------------------------------------- exit codes

EXIT_CRASHED = 1
EXIT_USER_ERROR = 2
EXIT_FENCED = 3
EXIT_UNAVAILABLE = 4
EXIT_STOPPED = 143
"""The code of a process that SIGTERM ended: Kubernetes must not take a stopped trainer's Job for complete."""

EXIT_HUNG = 124
"""The code of a process that was ended because it hung, as `timeout` gives it; a crash like others."""

_EXPLAINED = {EXIT_USER_ERROR, EXIT_FENCED, EXIT_UNAVAILABLE, EXIT_STOPPED}


def is_crash(code: int) -> bool:
    """Whether a worker that nobody asked to end crashed if it ended with this code; a trainer with 0 has finished."""
    return code not in _EXPLAINED


# ---------------------------------------------------------------------------------------- termination messages

FETCHED = "Fetched: "
"""Followed by what was downloaded, as JSON: rows of its name, `uri_digest` of its URI, its revision."""

LONGEST_MESSAGE = 4096
"""Bytes of a termination message: Kubernetes cuts it there."""
