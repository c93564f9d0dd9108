"""What a job's ledger says of its engines, read by a pod that has the audit's credentials."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from typing import Any

from e2e.jobs import Job

_READ = """
import asyncio, json, sys
from collections import Counter
from pathlib import Path
from rljob_cli.audit.read import read_configured
from rljob_cli.cluster_job import job_config
from rljob_core.records import Dispatched, SiblingReset

evidence = asyncio.run(read_configured(job_config(Path(sys.argv[1]))))
records = [r for message in evidence.ledger if message.batch is not None for r in message.batch.records]
resets = [r for r in records if isinstance(r, SiblingReset)]
inherited = [i for r in records if isinstance(r, Dispatched) for i in r.inherited.values()]
print(json.dumps({
    "resets": Counter(r.reason for r in resets),
    "died": sum(r.died for r in resets),
    "failures": sum(r.failure for r in resets),
    "resumed": len(inherited),
    "resumed_tokens": sum(i.tokens for i in inherited),
}))
"""


_SITE = """
import asyncio, sys
from pathlib import Path
from rljob_cli.audit.streams import ledger_messages, stored
from rljob_cli.cluster_job import job_config
from rljob_core.ports import Channel
from rljob_core.records import Dispatched, StepCommitted
from rljob_runtime.messaging.connect import role_store

async def main(path, site, steps, first):
    store = role_store(job_config(Path(path)), "reader")
    await store.open()
    while True:
        sites, trained = {}, {}
        for message in ledger_messages(await stored(store, Channel.LEDGER), []):
            for record in message.batch.records if message.batch is not None else ():
                if isinstance(record, Dispatched):
                    sites |= dict.fromkeys(record.trajectories, record.site)
                if isinstance(record, StepCommitted):
                    trained[record.version] = {sites.get(t) for part in record.micro_batches for t in part}
        first = first or str(max(trained, default=0))
        found = [version for version, where in trained.items() if version > int(first) and site in where]
        print(first, max(trained, default=0), found, flush=True)
        if len(found) >= int(steps):
            return
        await asyncio.sleep(1)

asyncio.run(main(*sys.argv[1:]))
"""


@dataclass(frozen=True, slots=True)
class EngineEnds:
    """What became of the trajectories of engines that ended.

    Attributes:
        resets: attempts that ended without a result, by reason.
        died: of these, those whose engine had died.
        failures: of these, those that count against `maxAttempts`.
        resumed: attempts that went on from the tokens of earlier ones.
        resumed_tokens: these tokens.
    """

    resets: dict[str, int]
    died: int
    failures: int
    resumed: int
    resumed_tokens: int


def engine_ends(job: Job) -> EngineEnds:
    """Read them from the ledger as it is now."""
    found = json.loads(_run(job, _READ).splitlines()[-1])
    return EngineEnds(**{field.name: found[field.name] for field in fields(EngineEnds)})


def site_is_trained_on(
    job: Job, site: str, *, steps: int = 2, since: int | None = None, seconds: float = 240
) -> None:
    """Return once the job has committed that many steps in which there were trajectories of a site.

    Args:
        job: has committed them, or will.
        site: name of the site.
        steps: how many.
        since: the version after which they count; None for the newest.
        seconds: for which they are waited for.

    Raises:
        AssertionError: it did not happen in time.
    """
    _run(job, _SITE, site, str(steps), "" if since is None else str(since), seconds=seconds)


def _run(job: Job, program: str, *arguments: str, seconds: float = 120) -> str:
    """Run a program with the path of the job's configuration, and what it prints."""
    text = job.kubectl("get", "configmap", f"{job.name}-audit", r"--output=jsonpath={.data.pod\.yaml}")
    pod: dict[str, Any] = json.loads(text)
    name = pod["metadata"]["name"] = f"{job.name}-ledger"
    (container,) = pod["spec"]["containers"]
    container["command"] = ["python", "-c", program, container["command"][-1], *arguments]
    job.kubectl("create", "--filename=-", input_text=json.dumps(pod))
    try:
        job.until(lambda: _phase(job, pod) in {"Succeeded", "Failed"}, seconds=seconds)
        log = job.kubectl("logs", name)
        assert _phase(job, pod) == "Succeeded", log
    except AssertionError as error:
        raise AssertionError(f"{error}\n{name}:\n{job.kubectl('logs', name, '--tail=5')}") from error
    finally:
        job.kubectl("delete", "pod", name, "--grace-period=0", "--force")
    return log


def _phase(job: Job, pod: dict[str, Any]) -> str:
    return job.kubectl("get", "pod", pod["metadata"]["name"], "--output=jsonpath={.status.phase}")
