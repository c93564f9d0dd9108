"""What a job names by URI is downloaded before its workers start: pods, the revision, the condition `ModelReady`."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from e2e.harness.nats_server import EmbeddedServer
from operators import Namespace, Operator, children_of, manifest
from small_job import MakeJob
from tests.hub import Hub, running_hub
from tests.waiting import until

from rljob_core.config import JobConfig
from rljob_core.errors import StoreUnavailable
from rljob_core.failures import Failure, Reason, failure_in, termination_message
from rljob_core.remote_uri import uri_digest
from rljob_core.spec import RLJob
from rljob_operator.children.audit_pod import BACKUP_FILE, POD_FILE, RESTORE_FILE, audit_config_map
from rljob_operator.children.cluster_defaults import ClusterDefaults
from rljob_operator.children.isolation import network_policy
from rljob_operator.children.resolved_job import ResolvedJob, resolve_job
from rljob_operator.children.worker_pod import Patches, pod_template
from rljob_operator.cluster.port import Manifest
from rljob_operator.decisions.conditions import condition
from rljob_operator.names import Role
from rljob_operator.reconcile.reconcile import Reconciler
from rljob_runtime.downloads.role import run_fetch

URI = "hf://acme/sums@main"
ROWS = "hf://datasets/acme/rows/train.jsonl"
COMMIT = "0123456789abcdef0123456789abcdef01234567"
DATA = {"source": "jsonl", "dataset": ROWS}
READING = [Role.COORDINATOR, Role.ROLLOUT, Role.REWARD, Role.TRAINER]


@pytest.fixture
def on_cluster(defaults: ClusterDefaults) -> ClusterDefaults:
    return replace(defaults, per_job=True, containers=True)


def rendered(job: ResolvedJob, role: Role, user: Manifest | None = None) -> Manifest:
    pool = job.spec.rollout.pools[0] if role is Role.ROLLOUT else None
    spec: Manifest = pod_template(job, role, "c", Patches("spec.x", user), pool=pool)["spec"]
    return spec


def fetch_of(spec: Manifest) -> Manifest:
    (found,) = spec["initContainers"]
    return dict(found)


# ---------------------------------------------------------------------------------------------- pods


@pytest.mark.parametrize("role", READING)
def test_an_init_container_downloads_and_alone_has_the_credentials(
    make_job: MakeJob, on_cluster: ClusterDefaults, role: Role
) -> None:
    job = resolve_job(make_job(model__uri=URI, model__credentialsSecret="hub"), on_cluster)
    spec = rendered(job, role)
    fetch = fetch_of(spec)
    weights = role in {Role.ROLLOUT, Role.TRAINER}
    assert fetch["command"][-1] == ("fetch-model" if weights else "fetch-data")
    assert fetch["envFrom"] == [{"secretRef": {"name": "hub"}}]
    assert not any("hub" in json.dumps(container) for container in spec["containers"])
    assert fetch["securityContext"]["readOnlyRootFilesystem"]
    assert fetch["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    (worker,) = [c for c in spec["containers"] if c["name"] == role.value]
    seen = {m["mountPath"]: m.get("readOnly") for m in worker["volumeMounts"] if "download" in m["mountPath"]}
    assert seen == {"/mnt/downloads": True, "/mnt/download-cache": True}
    assert {"name": "download-cache", "emptyDir": {}} in spec["volumes"]
    assert not [c for c in spec["containers"] if c["name"] == "scorer" and "download" in json.dumps(c)]


def test_trackers_and_jobs_on_folders_download_nothing(
    make_job: MakeJob, on_cluster: ClusterDefaults
) -> None:
    tracked = resolve_job(make_job(model__uri=URI), on_cluster)
    assert "initContainers" not in rendered(tracked, Role.TRACKER)
    for role in READING:
        assert "initContainers" not in rendered(resolve_job(make_job(), on_cluster), role)


def test_the_pods_of_a_claim_share_one_cache_that_the_init_container_writes(
    make_job: MakeJob, on_cluster: ClusterDefaults
) -> None:
    job = resolve_job(make_job(model__uri=URI, model__cache="pvc://cache/models"), on_cluster)
    assert job.config.download_cache == "/mnt/claims/cache/models"
    spec = rendered(job, Role.TRAINER)
    claim = {"name": "claim-cache", "mountPath": "/mnt/claims/cache"}
    assert claim in fetch_of(spec)["volumeMounts"]
    spec = rendered(job, Role.ROLLOUT)
    assert {**claim, "readOnly": True} in spec["containers"][0]["volumeMounts"]
    assert "download-cache" not in json.dumps(spec["volumes"])


def test_only_init_containers_write_to_a_cache_that_other_jobs_share(
    make_job: MakeJob, on_cluster: ClusterDefaults
) -> None:
    def mounts(spec: Manifest) -> dict[str, bool]:
        (container,) = spec["containers"]
        found = {m["name"]: not m.get("readOnly") for m in container["volumeMounts"]}
        return {name: found[name] for name in ("claim-cache", "claim-own") if name in found}

    changes = {
        "model__uri": URI,
        "model__cache": "pvc://cache/models",
        "weights__uri": "pvc://own/weights",
        "trainer__checkpoint__uri": "pvc://own/checkpoints",
    }
    job = resolve_job(make_job(**changes), on_cluster)
    assert mounts(rendered(job, Role.TRAINER)) == {"claim-cache": False, "claim-own": True}
    restore = json.loads(audit_config_map(job)["data"][RESTORE_FILE])["spec"]
    assert mounts(restore) == {"claim-cache": False, "claim-own": True}
    changes["trainer__checkpoint__uri"] = "pvc://cache/checkpoints"
    both = rendered(resolve_job(make_job(**changes), on_cluster), Role.TRAINER)
    assert mounts(both) == {"claim-cache": True, "claim-own": True}


def test_a_job_that_downloads_nothing_has_the_configuration_and_pods_of_earlier_releases(
    make_job: MakeJob, on_cluster: ClusterDefaults
) -> None:
    job = resolve_job(make_job(trackers=[{"name": "WandB"}]), on_cluster)
    config = json.loads(job.config_text)
    assert not {"grace", "downloads", "download_cache"} & config.keys()
    assert "cache" not in config["spec"]["model"]
    assert "environment" not in config["spec"]["rollout"]
    assert "samples" not in config["spec"]["trackers"][0]
    assert JobConfig.model_validate_json(job.config_text) == job.config
    assert "cache" not in job.spec_values["model"]  # of which the pods' hash is a digest
    assert job.spec_values["model"] == {"uri": "/model", "credentialsSecret": None, "lora": None}


def test_a_download_has_what_patches_add_to_the_worker(
    make_job: MakeJob, on_cluster: ClusterDefaults
) -> None:
    proxy = {"name": "HTTPS_PROXY", "value": "http://proxy:3128"}
    authority = {"name": "ca", "mountPath": "/etc/ca", "readOnly": True}
    worker = {
        "name": "worker",
        "env": [proxy],
        "envFrom": [{"configMapRef": {"name": "company"}}],
        "volumeMounts": [authority],
        "resources": {"limits": {"cpu": "1"}},
        "imagePullPolicy": "Always",
    }
    company = {"spec": {"containers": [worker], "volumes": [{"name": "ca", "configMap": {"name": "ca"}}]}}
    job = resolve_job(make_job(model__uri=URI), replace(on_cluster, template=company))
    for role in READING:
        fetch = fetch_of(rendered(job, role, {"spec": {"containers": [{"name": role, "image": "own"}]}}))
        assert proxy in fetch["env"]
        assert {"configMapRef": {"name": "company"}} in fetch["envFrom"]
        assert authority in fetch["volumeMounts"]
        assert (fetch["resources"], fetch["imagePullPolicy"]) == ({"limits": {"cpu": "1"}}, "Always")
        assert fetch["image"] == "own"
        assert not [one for one in fetch["env"] if one["name"] == "RLJOB_NATS_URL"]
    own = {"name": "fetch-model", "resources": {"limits": {"cpu": "2"}}}
    fetch = fetch_of(rendered(job, Role.TRAINER, {"spec": {"initContainers": [own]}}))
    assert fetch["resources"] == {"limits": {"cpu": "2"}}


def test_the_platform_may_keep_the_cache_on_nodes(make_job: MakeJob, on_cluster: ClusterDefaults) -> None:
    folder = {"hostPath": {"path": "/var/cache/rljob", "type": "Directory"}}
    volume = {"name": "download-cache", "emptyDir": None, **folder}
    place = replace(on_cluster, template={"spec": {"volumes": [volume]}})
    spec = rendered(resolve_job(make_job(model__uri=URI), place), Role.TRAINER)
    assert {"name": "download-cache", **folder} in spec["volumes"]


def test_workers_find_paths_and_the_same_revision(make_job: MakeJob, on_cluster: ClusterDefaults) -> None:
    place = replace(on_cluster, revisions={"model": COMMIT})
    before, config = (resolve_job(make_job(model__uri=URI, data=DATA), p).config for p in (on_cluster, place))
    assert config.spec.model.uri == "/mnt/downloads/model"
    assert config.spec.data.dataset == "/mnt/downloads/data"
    assert before.downloads["model"].revision == ""
    assert (config.downloads["model"].uri, config.downloads["model"].revision) == (URI, COMMIT)
    assert (config.downloads["data"].uri, config.downloads["data"].source) == (ROWS, "jsonl")
    jobs = [resolve_job(make_job(model__uri=URI, data=DATA), p) for p in (on_cluster, place)]
    assert rendered(jobs[0], Role.COORDINATOR) == rendered(jobs[1], Role.COORDINATOR)  # no pod restarts
    assert jobs[0].digest != jobs[1].digest


def test_a_backup_has_the_model_and_an_audit_needs_none(
    make_job: MakeJob, on_cluster: ClusterDefaults
) -> None:
    data = audit_config_map(resolve_job(make_job(model__uri=URI), on_cluster))["data"]
    assert "initContainers" not in json.loads(data[POD_FILE])["spec"]
    assert fetch_of(json.loads(data[BACKUP_FILE])["spec"])["command"][-1] == "fetch-model"


def test_hubs_are_reached_by_https(make_job: MakeJob, on_cluster: ClusterDefaults) -> None:
    rules = network_policy(resolve_job(make_job(model__uri=URI), on_cluster))["spec"]["egress"]
    assert {"ports": [{"protocol": "TCP", "port": 443}]} in rules


# ---------------------------------------------------------------------------------------------- the command


@pytest.fixture
def hub() -> Iterator[Hub]:
    with running_hub() as hub:
        yield hub


def fetch_as_pod(config: JobConfig, folder: Path, command: str) -> tuple[int, str, str]:
    """Run the init container's command on a configuration; its exit code, its message, its log."""
    (folder / "config.json").write_text(config.model_dump_json(by_alias=True))
    ended = folder / "message"
    ended.unlink(missing_ok=True)
    variables = {"RLJOB_CONFIG": str(folder / "config.json"), "RLJOB_TERMINATION_LOG": str(ended)}
    done = subprocess.run(
        [sys.executable, "-m", "rljob_runtime.main", command],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, ended.read_text() if ended.exists() else "", done.stderr


def in_folder(config: JobConfig, folder: Path) -> JobConfig:
    found = {
        name: one.model_copy(update={"path": str(folder / "links" / name)})
        for name, one in config.downloads.items()
    }
    return config.model_copy(update={"downloads": found, "download_cache": str(folder / "cache")})


def test_the_command_downloads_and_says_the_revision(
    make_job: MakeJob, on_cluster: ClusterDefaults, hub: Hub, tmp_path: Path
) -> None:
    model = hub.model("acme/sums", Path("manifests/examples/models/chain-sum"), cuts=[1_500_000])
    rows = hub.data("acme/rows", {"train.jsonl": b'{"question": "1+1", "answer": "2"}\n'})
    config = in_folder(resolve_job(make_job(model__uri=URI, data=DATA), on_cluster).config, tmp_path)
    code, message, log = fetch_as_pod(config, tmp_path, "fetch-data")
    assert code == 0, log
    found = {"model": model.branches["main"], "data": rows.branches["main"]}
    told = [["model", uri_digest(URI), found["model"]], ["data", uri_digest(ROWS), found["data"]]]
    assert json.loads(message.removeprefix("Fetched: ")) == told
    assert not (tmp_path / "links/model/model.safetensors").exists()
    assert not hub.downloads()
    code, _, log = fetch_as_pod(config, tmp_path, "fetch-model")
    assert code == 0, log
    assert (tmp_path / "links/model/model.safetensors").stat().st_size == 3_432_056
    assert re.search(r"downloading hf://acme/sums@main: \d\.\d of 3\.4 MB", log)
    assert (tmp_path / "links/data").read_bytes() == rows.commits[found["data"]]["train.jsonl"]


def test_a_download_that_has_begun_is_continued_after_a_longer_cut(
    make_job: MakeJob, on_cluster: ClusterDefaults, hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    handler = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr("time.sleep", lambda _: None)
    monkeypatch.setattr("rljob_runtime.downloads.role._WORTH_BYTES", 1_000_000)
    monkeypatch.setattr("huggingface_hub.constants.DOWNLOAD_CHUNK_SIZE", 100_000)
    model = Path("manifests/examples/models/chain-sum")
    repository = hub.model("acme/sums", model, cuts=[1_500_000] + [0] * 60)
    config = in_folder(resolve_job(make_job(model__uri=URI), on_cluster).config, tmp_path)
    try:
        run_fetch(config, True, False)
        assert not repository.cuts
        assert hub.downloads()[-1].range.startswith("bytes=1")
        repository.cuts = [0] * 60
        with pytest.raises(StoreUnavailable):  # little has come, and the condition says why
            run_fetch(config.model_copy(update={"download_cache": str(tmp_path / "other")}), True, False)
    finally:
        signal.signal(signal.SIGTERM, handler)


def test_a_download_ends_at_sigterm_as_the_first_process_of_a_container(
    make_job: MakeJob, on_cluster: ClusterDefaults, tmp_path: Path
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        config = in_folder(resolve_job(make_job(model__uri=URI), on_cluster).config, tmp_path)
        (tmp_path / "config.json").write_text(config.model_dump_json(by_alias=True))
        variables = {
            "RLJOB_CONFIG": str(tmp_path / "config.json"),
            "HF_ENDPOINT": f"http://127.0.0.1:{silent.getsockname()[1]}",
        }
        process = subprocess.Popen(
            # The kernel lets the first process of a container ignore it, too.
            ["sh", "-c", 'trap "" TERM; exec "$0" -m rljob_runtime.main fetch-model', sys.executable],
            env={k: v for k, v in os.environ.items() if k != "HF_HUB_OFFLINE"} | variables,
        )
        try:
            silent.settimeout(60)
            with silent.accept()[0]:
                process.terminate()
                assert process.wait(timeout=60) == 143
        finally:
            process.kill()
            process.wait()


def test_a_model_that_may_not_be_read_is_waited_for_and_one_that_cannot_be_used_is_not(
    make_job: MakeJob, on_cluster: ClusterDefaults, hub: Hub, tmp_path: Path
) -> None:
    hub.model("acme/sums", Path("manifests/examples/models/chain-sum"), token="secret", gated=True)
    config = in_folder(resolve_job(make_job(model__uri=URI), on_cluster).config, tmp_path)
    code, message, _ = fetch_as_pod(config, tmp_path, "fetch-model")
    assert (code, failure_in(message).detail.startswith("spec.model.uri: acme/sums is gated")) == (4, True)
    assert "spec.model.credentialsSecret" in message
    hub.repositories["models/acme/sums"].token = ""
    hub.repositories["models/acme/sums"].commit({"config.json": b"{}", "pytorch_model.bin": b"pickle"})
    code, message, _ = fetch_as_pod(config, tmp_path, "fetch-model")
    assert (code, failure_in(message).detail.startswith("spec.model.uri: holds its weights in")) == (2, True)


# ---------------------------------------------------------------------------------------------- the job


class Stepped:
    """A reconciler over the dictionary."""

    def __init__(self, server: Any, defaults: ClusterDefaults) -> None:
        self.server = server
        self.reconciler = Reconciler(server, defaults, clock=lambda: server.now)

    async def step(self, job: RLJob) -> None:
        for _ in range(12):
            if (await self.reconciler.reconcile(job)).actions == 0:
                return
        pytest.fail("it does not settle")

    def kinds(self) -> list[str]:
        owners = [*self.server.of("Deployment"), *self.server.of("Job")]
        return sorted(owner["metadata"]["name"] for owner in owners)

    def said(self, kind: str) -> tuple[str, str, str]:
        found = condition(self.server.stored, kind)
        assert found is not None
        return found.status, found.reason, found.message

    def fetches(self, name: str, state: dict[str, Any]) -> None:
        """What the kubelet says of the init container of the first pod of an owner."""
        (owner,) = [
            one
            for one in [*self.server.of("Deployment"), *self.server.of("Job")]
            if one["metadata"]["name"] == name
        ]
        pod = self.server.pod(owner, 0)
        pod["spec"] = owner["spec"]["template"]["spec"]
        pod["status"] = {"initContainerStatuses": [{"name": "fetch-model", "state": state}]}


def fetched(name: str, uri: str, revision: object) -> str:
    return f"Fetched: {json.dumps([[name, uri_digest(uri), revision]])}"


def ended(code: int, message: str) -> dict[str, Any]:
    return {"terminated": {"exitCode": code, "message": message}}


async def test_the_coordinators_pod_finds_the_revision_and_then_the_others_start(
    make_job: MakeJob, server: Any, on_cluster: ClusterDefaults
) -> None:
    job, run = make_job(model__uri=URI), Stepped(server, on_cluster)
    await run.step(job)
    await run.step(job)
    assert run.kinds() == ["chain-sum-coordinator"]
    assert server.stored.trainer_attempt == 0
    message = f"the coordinator's pod looks up {URI}"
    assert run.said("ModelReady") == ("False", "Resolving", message)
    assert run.said("Ready") == ("False", "ModelNotReady", message)
    run.fetches("chain-sum-coordinator", ended(0, fetched("model", URI, COMMIT)))
    await run.step(job)
    assert run.kinds() == [
        "chain-sum-coordinator", "chain-sum-reward", "chain-sum-rollout-cpu", "chain-sum-trainer-1"
    ]  # fmt: skip
    assert [(d.name, d.uri, d.revision) for d in server.stored.downloads] == [("model", URI, COMMIT)]
    configs = [m["data"]["config.json"] for m in server.of("ConfigMap") if "config.json" in m["data"]]
    assert configs
    assert {json.loads(config)["downloads"]["model"]["revision"] for config in configs} == {COMMIT}
    run.fetches("chain-sum-trainer-1", {"running": {}})
    await run.step(job)
    assert run.said("ModelReady")[:2] == ("False", "Downloading")
    assert "kubectl logs chain-sum-trainer-1-0 -c fetch-model" in run.said("ModelReady")[2]
    run.fetches("chain-sum-trainer-1", ended(0, fetched("model", URI, COMMIT)))
    await run.step(job)
    assert run.said("ModelReady") == ("True", "Downloaded", f"{URI} at {COMMIT}")
    # A later pod that says otherwise, as one that somebody has tampered with might, changes nothing.
    run.fetches("chain-sum-coordinator", ended(0, fetched("model", URI, COMMIT[::-1])))
    await run.step(job)
    assert [d.revision for d in server.stored.downloads] == [COMMIT]


HELD_OUT = "hf://datasets/acme/held-out/test.jsonl"


async def test_what_is_added_to_a_running_job_takes_none_of_its_pods_down(
    make_job: MakeJob, server: Any, on_cluster: ClusterDefaults
) -> None:
    run = Stepped(server, on_cluster)
    await run.step(make_job())
    await run.step(make_job())
    running = run.kinds()
    assert "chain-sum-trainer-1" in running
    (before,) = [d for d in server.of("Deployment") if d["metadata"]["name"] == "chain-sum-reward"]
    evaluation = {"data": {"source": "jsonl", "dataset": HELD_OUT}}
    changed = make_job(evaluation=evaluation)
    await run.step(changed)
    assert run.kinds() == running
    assert run.said("ModelReady")[1] == "Resolving"
    (held,) = [d for d in server.of("Deployment") if d["metadata"]["name"] == "chain-sum-reward"]
    assert held == before  # it would download another revision than the coordinator
    run.fetches("chain-sum-coordinator", ended(0, fetched("evaluation", HELD_OUT, COMMIT)))
    await run.step(changed)
    assert run.kinds() == running
    (after,) = [d for d in server.of("Deployment") if d["metadata"]["name"] == "chain-sum-reward"]
    assert after != before
    # Another URI of the same name is looked for again, and the old coordinator's word is not about it.
    other = make_job(evaluation={"data": {"source": "jsonl", "dataset": f"{HELD_OUT}l/x.jsonl"}})
    await run.step(other)
    assert run.kinds() == running
    assert server.stored.downloads == []
    run.fetches(
        "chain-sum-coordinator", ended(0, fetched("evaluation", f"{HELD_OUT}l/x.jsonl", COMMIT[::-1]))
    )
    await run.step(other)
    assert [(d.uri, d.revision) for d in server.stored.downloads] == [(f"{HELD_OUT}l/x.jsonl", COMMIT[::-1])]


async def test_one_uri_has_one_revision(make_job: MakeJob, server: Any, on_cluster: ClusterDefaults) -> None:
    run, job = Stepped(server, on_cluster), make_job(data=DATA)
    await run.step(job)
    run.fetches("chain-sum-coordinator", ended(0, fetched("data", ROWS, COMMIT)))
    await run.step(job)
    await run.step(make_job(data=DATA, evaluation={"data": {"dataset": ROWS, "source": "jsonl"}}))
    assert {d.name: d.revision for d in server.stored.downloads} == {"data": COMMIT, "evaluation": COMMIT}
    config = resolve_job(
        make_job(data=DATA, evaluation={"data": {"dataset": ROWS, "source": "jsonl"}}), on_cluster
    ).config
    assert config.spec.data.dataset == "/mnt/downloads/data"
    assert config.spec.evaluation is not None
    assert config.spec.evaluation.data.dataset == "/mnt/downloads/evaluation"


@pytest.mark.parametrize(
    "message",
    [
        "",
        "Fetched: [",
        fetched("model", URI, 1),
        fetched("model", URI, "../../etc"),
        fetched("model", f"{URI}2", COMMIT),
        'Fetched: ["model"]',
        "Fetched: 1",
        f'Fetched: [["model", "{URI}"]]',
    ],
)
async def test_what_is_no_revision_is_no_revision(
    make_job: MakeJob, server: Any, on_cluster: ClusterDefaults, message: str
) -> None:
    run = Stepped(server, on_cluster)
    await run.step(make_job(model__uri=URI))
    run.fetches("chain-sum-coordinator", ended(0, message))
    await run.step(make_job(model__uri=URI))
    assert run.kinds() == ["chain-sum-coordinator"]
    assert "chain-sum-coordinator-0 has named no revision of it" in run.said("ModelReady")[2]


async def test_a_download_that_fails_is_reported_with_its_remedy(
    make_job: MakeJob, server: Any, on_cluster: ClusterDefaults
) -> None:
    job, run = make_job(model__uri=URI), Stepped(server, on_cluster)
    await run.step(job)
    run.fetches(
        "chain-sum-coordinator",
        ended(
            4,
            termination_message(
                Failure(Reason.RESOURCE_MISSING, "spec.model.uri: acme/sums is gated: accept")
            ),
        ),
    )
    await run.step(job)
    words = "chain-sum-coordinator-0: spec.model.uri: acme/sums is gated: accept"
    assert run.said("ModelReady") == ("False", "DownloadFailed", words)
    assert run.said("Ready") == ("False", "ModelNotReady", words)
    run.fetches(
        "chain-sum-coordinator",
        ended(
            2,
            termination_message(
                Failure(Reason.INVALID_SPEC, "spec.model.uri: holds its weights in a pickle")
            ),
        ),
    )
    await run.step(job)
    assert run.said("Failed")[:2] == ("True", "InvalidSpec")
    assert "holds its weights in a pickle" in run.said("Failed")[2]


# ---------------------------------------------------------------------------------------------- the API server


@pytest.mark.xdist_group("operator")
def test_the_revision_is_kept_by_a_real_api_server(
    crds: Any, namespace: str, nats_server: EmbeddedServer, watched: Namespace, tmp_path: Path
) -> None:
    bad = {
        "hf://acme": "must be hf://org/name",
        "hf://datasets/acme/rows": "must be hf://org/name",
        "hf://acme/sums@a b": "must be",
    }
    for uri, words in bad.items():
        assert words in watched.refuses(manifest(model={"uri": uri})), uri
    assert "must be pvc://claim/folder" in watched.refuses(manifest(model={"uri": URI, "cache": "s3://b/c"}))
    assert "must be jsonl or parquet" in watched.refuses(manifest(data={"dataset": ROWS}))
    with Operator(crds.kubeconfig, nats_server.url, namespace, tmp_path / "operator.log"):
        watched.apply(manifest(model={"uri": URI}))
        selector = "--selector=rljob.dev/job=sums,rljob.dev/role=coordinator"
        pod = until(lambda: watched("get", "pods", selector, "--output=name").strip())
        until(lambda: watched.condition("sums", "ModelReady"))
        assert "job/sums-trainer-1" not in watched.children()
        container = {
            "name": "fetch-model", "image": "i", "imageID": "i", "ready": True, "restartCount": 0,
            "state": {"terminated": {"exitCode": 0, "message": fetched("model", URI, COMMIT)}},
        }  # fmt: skip
        status = {"status": {"initContainerStatuses": [container]}}
        watched("patch", pod, "--subresource=status", "--type=merge", f"--patch={json.dumps(status)}")
        until(lambda: watched.children() == children_of("sums"))
        found = watched.get("rljob", "sums")
        assert found is not None
        assert found["status"]["downloads"] == [{"name": "model", "uri": URI, "revision": COMMIT}]
