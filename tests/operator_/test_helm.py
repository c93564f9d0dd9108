"""The Helm chart: what it renders is what kustomize renders, and a release's life on a real API server."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from e2e.harness.availability import available
from e2e.harness.binaries import CONTROL_PLANE, CONTROLLERS, built, find
from e2e.harness.control_plane import ControlPlane
from e2e.harness.kubectl import Kubectl
from installation import CHECKOUT, MANIFESTS, NAMESPACED, Object, moved, of_kind, rendered
from ruamel.yaml import YAML
from typer.testing import CliRunner

from rljob_cli.commands import app
from rljob_operator.settings import Settings

pytestmark = [pytest.mark.nightly, pytest.mark.xdist_group("helm")]

CHART = CHECKOUT / "charts/rljob"
PAGE = (CHECKOUT / "docs/helm.md").read_text(encoding="utf-8")
OVERLAYS = MANIFESTS / "overlays"
ELSEWHERE = ["nats.install=false", "nats.url=nats://nats.example:4222"]
CRDS = {"rljobs.rljob.dev", "rolloutpools.rljob.dev", "sites.rljob.dev"}

#: By the values that are set: the namespace, a kustomization, and components that are added to it.
SAME: list[tuple[list[str], str, Path, list[str]]] = [
    ([], "rljob-system", MANIFESTS, []),
    (["namespace.create=true"], "rljob-system", MANIFESTS, []),
    (ELSEWHERE, "rljob-system", OVERLAYS / "external-nats", []),
    ([*ELSEWHERE, "nats.authentication=false"], "rljob-system", OVERLAYS / "external-nats", ["open-nats"]),
    (["scope=Namespace", "crds.install=false"], "rl-team", NAMESPACED, []),
    (["monitoring.enabled=true"], "rljob-system", OVERLAYS / "monitoring", []),
    (["kueue.enabled=true"], "rljob-system", MANIFESTS, ["kueue"]),
    (["sites.enabled=true"], "rljob-system", MANIFESTS, ["sites"]),
    (["nodeNotices.enabled=true"], "rljob-system", MANIFESTS, ["node-notices"]),
    (["operator.replicas=2"], "rljob-system", OVERLAYS / "high-availability", []),
]


@pytest.fixture(scope="module")
def helm() -> Path:
    with available():
        return built()["helm"]


@pytest.fixture(scope="module")
def kustomize(tmp_path_factory: pytest.TempPathFactory) -> Kubectl:
    """kubectl, of which only `kustomize` is used: no cluster."""
    with available():
        return Kubectl(find()["kubectl"], tmp_path_factory.mktemp("none") / "kubeconfig")


def template(helm: Path, *values: str, namespace: str = "rljob-system") -> subprocess.CompletedProcess[str]:
    sets = [f"--set={value}" for value in values]
    command = [str(helm), "template", "rljob", str(CHART), f"--namespace={namespace}", *sets]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def objects_of(helm: Path, *values: str, namespace: str = "rljob-system") -> list[Object]:
    done = template(helm, *values, namespace=namespace)
    assert done.returncode == 0, done.stderr
    return [dict(found) for found in YAML(typ="safe").load_all(done.stdout) if found]


def by_name(objects: list[Object]) -> dict[tuple[str, str], Object]:
    found = {(o["kind"], o["metadata"]["name"]): o for o in objects}
    assert len(found) == len(objects)
    return found


def sorted_lists(node: Any) -> Any:
    """The same with lists of maps in one order: kustomize puts what a patch adds at another end."""
    if isinstance(node, dict):
        return {key: sorted_lists(value) for key, value in node.items()}
    if isinstance(node, list):
        entries = [sorted_lists(entry) for entry in node]
        return sorted(entries, key=lambda entry: json.dumps(entry, sort_keys=True))
    return node


# ---------------------------------------------------------------------------------------------- rendered


@pytest.mark.parametrize("case", SAME, ids=lambda case: ",".join(case[0]) or "defaults")
def test_it_renders_what_kustomize_renders(
    helm: Path, kustomize: Kubectl, tmp_path: Path, case: tuple[list[str], str, Path, list[str]]
) -> None:
    values, namespace, folder, components = case
    if components:
        up = "../" * len((tmp_path / "any").resolve().parts[1:])
        added = [f"{up}{(MANIFESTS / 'components' / name).relative_to('/')}" for name in components]
        folder = moved(folder, namespace, tmp_path / "with", components=added)
    expected = by_name(rendered(kustomize, folder))
    found = by_name(objects_of(helm, *values, namespace=namespace))
    if "namespace.create=true" not in values:
        expected.pop(("Namespace", namespace), None)
    for crd in of_kind(list(found.values()), "CustomResourceDefinition"):
        assert crd["metadata"]["annotations"].pop("helm.sh/resource-policy") == "keep"
        crd["metadata"]["annotations"] or crd["metadata"].pop("annotations")
    assert found.keys() == expected.keys()
    for key, manifest in found.items():
        if values:
            assert sorted_lists(manifest) == sorted_lists(expected[key])
        else:
            assert manifest == expected[key]


def test_values_reach_the_operator(helm: Path) -> None:
    digest = f"sha256:{'0' * 64}"
    values = [
        "image.repository=registry.example/op",
        f"image.digest={digest}",
        "image.pullSecrets={registry}",
    ]
    values += [
        "worker.image=registry.example/w:1",
        "watchNamespaces={team-a,team-b}",
        "operator.env.RLJOB_WORKERS=16",
    ]
    values += [
        "operator.env.RLJOB_STORAGE=null",
        "operator.nodeSelector.pool=system",
        "networkPolicies.install=false",
        "nats.storageClassName=007",
    ]
    found = by_name(objects_of(helm, *values))
    pods = {
        kind: found[kind]["spec"]["template"]["spec"] for kind in found if kind[0] in ("Deployment", "Job")
    }
    for pod in pods.values():
        assert pod["containers"][0]["image"] == f"registry.example/op@{digest}"
        assert pod["imagePullSecrets"] == [{"name": "registry"}]
    operator = pods["Deployment", "rljob-operator"]
    given = {entry["name"]: entry.get("value") for entry in operator["containers"][0]["env"]}
    assert (given["RLJOB_WORKERS"], given["WATCH_NAMESPACES"]) == ("16", "team-a,team-b")
    assert given["RLJOB_WORKER_IMAGE"] == "registry.example/w:1"
    assert "RLJOB_STORAGE" not in given
    assert operator["nodeSelector"] == {"pool": "system"}
    server = found["StatefulSet", "nats"]["spec"]
    (claim,) = server["volumeClaimTemplates"]
    assert claim["spec"]["storageClassName"] == "007"  # also where YAML would take it for a number
    assert not of_kind(list(found.values()), "NetworkPolicy")


def test_large_numbers_of_a_file_stay_numbers(helm: Path, tmp_path: Path) -> None:
    """Helm reads them as floats, which Go writes as 1e+06."""
    file = tmp_path / "values.yaml"
    file.write_text("operator: {env: {RLJOB_NATS_JOB_GB: 1000000}}")
    command = [str(helm), "template", "rljob", str(CHART), f"--values={file}"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert 'value: "1000000"' in done.stdout
    settings = {"RLJOB_NATS_URL": "nats://nats:4222", "RLJOB_NATS_JOB_GB": "1000000"}
    assert Settings.read(settings).nats_job_bytes == 10**15


@pytest.mark.parametrize(
    ("values", "named"),
    [
        (["operator.replicas=2"], "/operator/replicas"),
        (["operator.env.RLJOB_LOGLEVEL=DEBUG"], "RLJOB_LOGLEVEL"),
        (["operator.env.RLJOB_NATS_URL=nats://nats:4222"], "RLJOB_NATS_URL"),
        (["nats.instal=false"], "instal"),
        (["scope=Everywhere"], "/scope"),
        (["image.digest=0123"], "/image/digest"),
        (["nats.storage=much"], "/nats/storage"),
        (["networkPolicies.apiServerPorts={http}"], "/networkPolicies/apiServerPorts/0"),
        (["watchNamespaces={Team A}"], "/watchNamespaces/0"),
        (["nats.install=false", "nats.url=http://nats"], "/nats/url"),
        (["nats.install=false"], "nats.url is empty"),
        (["nats.url=nats://nats.example:4222"], "nats.url is set, and nats.install is true"),
        (["nats.authentication=false"], "nats.authentication is false"),
    ],
    ids=lambda case: case[0] if isinstance(case, list) else "",
)
def test_a_wrong_value_is_refused_by_its_name(helm: Path, values: list[str], named: str) -> None:
    done = template(helm, *values)
    assert done.returncode == 1
    assert named in done.stderr


def test_every_value_is_described() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))
    parts = [schema, *schema["$defs"].values()]
    missing = [
        name
        for part in parts
        for name, field in part["properties"].items()
        if "$ref" not in field and not field.get("description")
    ]
    assert missing == []


def test_files_that_are_not_up_to_date_are_named(tmp_path: Path) -> None:
    ours = tmp_path / "chart"
    shutil.copytree(CHART, ours)
    command = ["chart", f"--output={ours}", f"--checkout={CHECKOUT}"]
    assert CliRunner().invoke(app, [*command, "--check"]).exit_code == 0
    (ours / "values.yaml").write_text("scope: Cluster\n")
    (ours / "templates/stray.yaml").write_text("kind: Any\n")
    done = CliRunner().invoke(app, [*command, "--check"])
    assert done.exit_code == 1
    assert f"{ours}/values.yaml" in done.output
    assert f"{ours}/templates/stray.yaml" in done.output
    assert CliRunner().invoke(app, command).exit_code == 0
    assert CliRunner().invoke(app, [*command, "--check"]).exit_code == 0
    done = CliRunner().invoke(app, ["chart", f"--checkout={tmp_path}"])
    assert (done.exit_code, "kustomization.yaml cannot be read" in done.output) == (2, True)


# ---------------------------------------------------------------------------------------------- installed


class PageCommands:
    """What docs/helm.md shows, typed by a user of this cluster in a folder with the chart."""

    def __init__(self, helm: Path, kubectl: Kubectl, folder: Path) -> None:
        self.kubectl = kubectl
        self.folder = folder
        (folder / "charts").mkdir(parents=True)
        shutil.copytree(CHART, folder / "charts/rljob")
        (values,) = re.findall(r"```yaml\n(# my-values.yaml\n.*?)```", PAGE, re.DOTALL)
        (folder / "my-values.yaml").write_text(values)
        self._environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("HELM_")},
            "PATH": os.pathsep.join([str(helm.parent), str(kubectl.program.parent), os.environ["PATH"]]),
            "KUBECONFIG": str(kubectl.kubeconfig),
            "HOME": str(folder),
        }

    def section(self, heading: str) -> list[str]:
        """The commands of a section."""
        (text,) = re.findall(rf"^## {heading}\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)
        return re.findall(r"^\$ (.+)$", text, re.MULTILINE)

    def run(self, command: str) -> str:
        done = subprocess.run(
            ["bash", "-o", "pipefail", "-c", command],
            cwd=self.folder,
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
        return done.stdout

    def names(self, kind: str) -> set[str]:
        """Of objects of the release's namespace, or of the cluster."""
        found = self.kubectl.within("rljob-system").json("get", kind)["items"]
        return {o["metadata"]["name"] for o in found}

    def add_job(self) -> None:
        example = str(MANIFESTS / "examples/chain-sum.yaml")
        self.kubectl.within("default")("apply", f"--filename={example}")


@pytest.fixture
def page(helm: Path, tmp_path: Path) -> Iterator[PageCommands]:
    with available():
        find().require((*CONTROL_PLANE, *CONTROLLERS))
    with ControlPlane(tmp_path / "control-plane") as control_plane:
        yield PageCommands(helm, control_plane.kubectl, tmp_path / "user")


def test_the_life_of_a_release(page: PageCommands) -> None:
    """Rendered and applied, taken over, upgraded with its CRDs, rolled back, uninstalled, and installed again."""
    (apply,) = page.section("Without a release")
    page.run(f"{apply} --validate=strict")
    page.kubectl.wait("condition=Established", *(f"crd/{name}" for name in sorted(CRDS)))
    namespace = page.kubectl.json("get", "namespace", "rljob-system")["metadata"]
    assert namespace["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"

    # The release before had other CRDs.
    crds = page.folder / "charts/rljob/templates/crds.yaml"
    text = crds.read_text()
    crds.write_text(
        text.replace("helm.sh/resource-policy: keep", "helm.sh/resource-policy: keep\n    of: before")
    )
    (take_over,) = page.section("From kubectl to Helm")
    notes = page.run(take_over)
    assert "kubectl delete rljobs --all --all-namespaces" in notes
    assert all(name in notes for name in CRDS)
    assert page.kubectl.json("get", "crd", "rljobs.rljob.dev")["metadata"]["annotations"]["of"] == "before"
    page.add_job()
    uid = page.kubectl.within("default").json("get", "rljob", "chain-sum")["metadata"]["uid"]

    crds.write_text(text)
    (upgrade,) = page.section("Upgrade")
    page.run(upgrade)
    for name in CRDS:
        assert "of" not in page.kubectl.json("get", "crd", name)["metadata"]["annotations"]
    (operator,) = page.kubectl.within("rljob-system").json("get", "deployment")["items"]
    (container,) = operator["spec"]["template"]["spec"]["containers"]
    assert container["image"] == "registry.example/rljob-operator:0.1.0"
    assert {"name": "RLJOB_WORKERS", "value": "16"} in container["env"]
    assert "rljob-nats-setup-2" in page.names("job")
    page.run("helm rollback rljob 1 --namespace rljob-system")
    page.run(upgrade)

    delete_jobs, uninstall, *for_good = page.section("Remove")
    page.run(delete_jobs)
    page.add_job()
    page.run(uninstall)
    assert page.names("crd") >= CRDS
    assert page.kubectl.within("default").json("get", "rljob", "chain-sum")["metadata"]["uid"] != uid
    for kind in ("deployment", "statefulset", "role", "rolebinding", "networkpolicy", "service"):
        assert page.names(kind) == set()
    assert not [
        n for n in page.names("clusterrole") | page.names("clusterrolebinding") if n.startswith("rljob")
    ]

    for command in page.section("Install"):
        page.run(command)
    assert page.names("deployment") == {"rljob-operator"}
    assert page.kubectl.within("default").succeeds("get", "rljob", "chain-sum")
    page.run(delete_jobs)
    page.run(uninstall)
    for command in for_good:
        page.run(f"{command} --timeout=280s")
    assert not page.names("crd") & CRDS


def test_a_release_for_one_namespace_needs_nothing_outside_of_it(page: PageCommands) -> None:
    page.kubectl("apply", "--server-side", f"--kustomize={CHECKOUT / 'crds'}")
    page.kubectl("create", "namespace", "rl-team")
    binding = ["admin", "--namespace=rl-team", "--clusterrole=cluster-admin", "--user=someone"]
    page.kubectl("create", "rolebinding", *binding)
    values = "--set=scope=Namespace --set=crds.install=false --kube-as-user=someone"
    page.run(f"helm install rljob charts/rljob --namespace rl-team {values}")
    assert page.kubectl.within("rl-team").succeeds("get", "role/rljob-operator", "deployment/rljob-operator")
