"""What Argo CD, Flux and kstatus make of a job's status: their own languages, on statuses that `assess` made."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import lupa.lua51
import pytest
from cel_expr_python import cel
from ruamel.yaml import YAML

from rljob_core.spec import API_VERSION, RLJob
from rljob_operator.children.cluster_defaults import ClusterDefaults
from rljob_operator.decisions.status import Phase
from rljob_operator.reconcile.reconcile import Reconciler

MakeJob = Callable[..., RLJob]
Object = dict[str, Any]

GITOPS = Path(__file__).resolve().parents[2] / "manifests/gitops"
ARGO_CD = (GITOPS / "argocd-health.lua").read_text()
FLUX = YAML(typ="safe").load(GITOPS / "flux-health.yaml")


class ReconciledJob:
    """One job through its life; `shown` is what a tool reads of it."""

    def __init__(self, server: Any, defaults: ClusterDefaults, make_job: MakeJob) -> None:
        self.server = server
        self._make = make_job
        self._reconciler = Reconciler(server, defaults, clock=lambda: server.now)
        self._generation = 1
        self.changes: Object = {"backoffLimit": 1}
        self.phase = Phase.RUNNING

    @property
    def job(self) -> RLJob:
        return self._make(**self.changes)

    async def look(self, *, times: int = 1) -> None:
        """As many passes as that."""
        for _ in range(times):
            self.phase = (await self._reconciler.reconcile(self.job)).phase

    def shown(self) -> Object:
        job = self.job
        status = self.server.stored.model_dump(mode="json", by_alias=True, exclude_none=True)
        metadata = {"name": job.metadata.name, "generation": self._generation}
        return {
            "apiVersion": API_VERSION,
            "kind": "RLJob",
            "metadata": metadata,
            "spec": {},
            "status": status,
        }

    def edited(self) -> None:
        """Somebody has just changed the spec."""
        self._generation += 1


async def starting(reconciled: ReconciledJob) -> None:
    await reconciled.look(times=3)


async def training(reconciled: ReconciledJob) -> None:
    await starting(reconciled)
    reconciled.server.pods_ready()
    await reconciled.look(times=2)


async def short_of_an_engine(reconciled: ReconciledJob) -> None:
    await training(reconciled)
    (rollout,) = [o for o in reconciled.server.of("Deployment") if "rollout" in o["metadata"]["name"]]
    rollout["status"]["readyReplicas"] = 1
    await reconciled.look()


async def edited(reconciled: ReconciledJob) -> None:
    await training(reconciled)
    reconciled.edited()


async def backing_off(reconciled: ReconciledJob) -> None:
    await training(reconciled)
    reconciled.server.gang_ends(code=1)
    await reconciled.look(times=2)


async def suspending(reconciled: ReconciledJob) -> None:
    await training(reconciled)
    reconciled.changes["suspend"] = True
    await reconciled.look()


async def suspended(reconciled: ReconciledJob) -> None:
    await suspending(reconciled)
    reconciled.server.pods_gone()
    await reconciled.look(times=8)


async def resumed(reconciled: ReconciledJob) -> None:
    await suspended(reconciled)
    reconciled.changes["suspend"] = False
    await reconciled.look(times=2)


async def succeeding(reconciled: ReconciledJob) -> None:
    await training(reconciled)
    reconciled.server.gang_ends(code=0)
    await reconciled.look()


async def succeeded(reconciled: ReconciledJob) -> None:
    await succeeding(reconciled)
    reconciled.server.pods_gone()
    await reconciled.look(times=8)


async def failing(reconciled: ReconciledJob) -> None:
    reconciled.changes["backoffLimit"] = 0
    await training(reconciled)
    reconciled.server.gang_ends(code=1, message="out of memory")
    await reconciled.look()


async def failed(reconciled: ReconciledJob) -> None:
    await failing(reconciled)
    reconciled.server.pods_gone()
    await reconciled.look(times=8)


async def stalled(reconciled: ReconciledJob) -> None:
    reconciled.changes["reward__template"] = {"spec": {"containers": "x"}}
    await reconciled.look(times=2)


async def stalled_while_it_ran(reconciled: ReconciledJob) -> None:
    await training(reconciled)
    await stalled(reconciled)


async def healed(reconciled: ReconciledJob) -> None:
    await stalled(reconciled)
    del reconciled.changes["reward__template"]
    await reconciled.look(times=2)


Scene = Callable[[ReconciledJob], Awaitable[None]]

#: Scene, phase, and what kstatus, Flux and Argo CD call it.
SCENES: list[tuple[Scene, Phase, str, str, str]] = [
    (starting, Phase.RUNNING, "InProgress", "InProgress", "Progressing"),
    (training, Phase.RUNNING, "Current", "Current", "Healthy"),
    (short_of_an_engine, Phase.RUNNING, "InProgress", "InProgress", "Progressing"),
    (edited, Phase.RUNNING, "InProgress", "InProgress", "Progressing"),
    (backing_off, Phase.RUNNING, "InProgress", "InProgress", "Progressing"),
    (suspending, Phase.SUSPENDED, "InProgress", "InProgress", "Progressing"),
    (suspended, Phase.SUSPENDED, "Current", "Current", "Suspended"),
    (resumed, Phase.RUNNING, "InProgress", "InProgress", "Progressing"),
    # That it is trained, or has failed, is known before its pods are gone: kstatus alone waits for that.
    (succeeding, Phase.SUCCEEDED, "InProgress", "Current", "Healthy"),
    (succeeded, Phase.SUCCEEDED, "Current", "Current", "Healthy"),
    (failing, Phase.FAILED, "InProgress", "Failed", "Degraded"),
    (failed, Phase.FAILED, "Failed", "Failed", "Degraded"),
    (stalled, Phase.STALLED, "Failed", "Failed", "Degraded"),
    (stalled_while_it_ran, Phase.STALLED, "Failed", "Failed", "Degraded"),
    (healed, Phase.RUNNING, "InProgress", "InProgress", "Progressing"),
]


# ---------------------------------------------------------------------------------------------- the tools


def kstatus(shown: Object) -> str:
    """The rules for any custom resource of kubernetes-sigs/cli-utils, pkg/kstatus."""
    status = shown.get("status", {})
    if status.get("observedGeneration", shown["metadata"]["generation"]) != shown["metadata"]["generation"]:
        return "InProgress"
    for condition in status.get("conditions", []):
        verdict = {"Reconciling": "InProgress", "Stalled": "Failed"}.get(condition["type"])
        if verdict is not None and condition["status"] == "True":
            return verdict
    return "Current"


class FluxError(Exception):
    """An expression has no value: Flux tries again until its timeout."""


def flux(shown: Object) -> str:
    """As Flux' RFC 0009 says: the generation, then inProgress, failed, current."""
    (check,) = FLUX["spec"]["healthCheckExprs"]
    assert (check["apiVersion"], check["kind"]) == (shown["apiVersion"], shown["kind"])
    seen = shown.get("status", {}).get("observedGeneration")
    if seen is not None and seen != shown["metadata"]["generation"]:
        return "InProgress"
    environment = cel.NewEnv(variables=dict.fromkeys(shown, cel.Type.DYN))
    for name in ("inProgress", "failed", "current"):
        try:
            value = environment.compile(check[name]).eval(data=shown).value()
        except Exception as error:
            raise FluxError from error
        if not isinstance(value, bool):
            raise FluxError(str(value))
        if value:
            return name[0].upper() + name[1:]
    return "InProgress"


def argo_cd(shown: Object) -> tuple[str, str]:
    """As Argo CD does it: `obj` is a global, libraries but the base and table ones are missing."""
    lua = lupa.lua51.LuaRuntime(register_eval=False, register_builtins=False)
    for library in ("string", "math", "io", "os", "debug", "coroutine", "package", "require"):
        lua.globals()[library] = None
    lua.globals()["obj"] = lua.table_from(shown, recursive=True)
    health = lua.execute(ARGO_CD)
    return health["status"], health["message"]


# ---------------------------------------------------------------------------------------------- tests


@pytest.fixture
def reconciled(server: Any, defaults: ClusterDefaults, make_job: MakeJob) -> ReconciledJob:
    return ReconciledJob(server, defaults, make_job)


@pytest.mark.parametrize("said", SCENES, ids=[said[0].__name__ for said in SCENES])
async def test_health(reconciled: ReconciledJob, said: tuple[Scene, Phase, str, str, str]) -> None:
    scene, phase, as_kstatus, as_flux, as_argo_cd = said
    await scene(reconciled)
    shown = reconciled.shown()
    assert reconciled.phase is phase
    assert kstatus(shown) == as_kstatus
    assert flux(shown) == as_flux
    status, message = argo_cd(shown)
    assert status == as_argo_cd
    assert message


def test_every_phase_is_in_a_scene() -> None:
    assert {row[1] for row in SCENES} == set(Phase)


async def test_argo_cd_says_why(reconciled: ReconciledJob) -> None:
    await failed(reconciled)
    reason, _, message = argo_cd(reconciled.shown())[1].partition(": ")
    assert reason[0].isupper()
    assert "out of memory" in message


def test_what_the_operator_has_not_seen_is_not_healthy(reconciled: ReconciledJob) -> None:
    shown = reconciled.shown()
    del shown["status"]
    assert argo_cd(shown)[0] == "Progressing"
    with pytest.raises(FluxError):
        flux(shown)
    shown["status"] = {}
    assert argo_cd(shown)[0] == "Progressing"
    assert flux(shown) == "InProgress"


async def test_conditions_follow_kstatus(reconciled: ReconciledJob) -> None:
    """Both abnormal conditions are there to be read at all times, and are of the same generation."""
    for scene in (training, suspended, resumed, succeeded):
        await scene(reconciled)
        status = reconciled.shown()["status"]
        kinds = [condition["type"] for condition in status["conditions"]]
        assert {"Reconciling", "Stalled"} <= set(kinds)
        assert len(kinds) == len(set(kinds))
        assert {c["observedGeneration"] for c in status["conditions"]} == {status["observedGeneration"]}
