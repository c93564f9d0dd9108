"""`kubectl apply -k`: what is applied, on a real API server with its real controllers."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from e2e.harness.control_plane import ControlPlane
from e2e.harness.kubectl import Kubectl
from installation import CHECKOUT, MANIFESTS, NAMESPACED, Asked, Object, installed, moved, of_kind, rendered
from operators import Namespace, manifest
from prometheus_client import generate_latest
from ruamel.yaml import YAML
from tests.waiting import until

from rljob_operator.cluster.port import Ref
from rljob_operator.nats import accounts as nats_accounts
from rljob_operator.reconcile.leader_election import LEADER_LABEL
from rljob_operator.settings import Settings
from rljob_operator.telemetry import OperatorMetrics
from rljob_runtime.messaging.nats.server import MAX_PENDING, binary

pytestmark = [pytest.mark.smoke, pytest.mark.kube, pytest.mark.xdist_group("manifests")]

EXTERNAL = MANIFESTS / "overlays/external-nats"
CLUSTER = MANIFESTS / "overlays/nats-cluster"
ROLES = ("Role", "ClusterRole")
WORKLOADS = ("Deployment", "StatefulSet", "Job")


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """manifests/, applied."""
    with installed(tmp_path_factory.mktemp("installed")) as control_plane:
        yield control_plane


@pytest.fixture(scope="module")
def kubectl(base: ControlPlane) -> Kubectl:
    return base.kubectl


@pytest.fixture(scope="module")
def every(kubectl: Kubectl, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Object]]:
    """All that we ship, rendered; no test changes it."""
    folder = tmp_path_factory.mktemp("rendered")
    opened = moved(EXTERNAL, "rljob-system", folder / "open", components=[component("open-nats", folder)])
    folders = {
        "base": MANIFESTS,
        "namespaced": NAMESPACED,
        "external-nats": EXTERNAL,
        "open-nats": opened,
        "nats-cluster": CLUSTER,
        "node-notices": moved(
            MANIFESTS, "rljob-system", folder / "notices", components=[component("node-notices", folder)]
        ),
    }
    return {name: rendered(kubectl, folder) for name, folder in folders.items()}


def component(name: str, tmp_path: Path) -> str:
    """As a kustomization in a folder of `tmp_path` names it."""
    up = "../" * len((tmp_path / "any").resolve().parts[1:])
    return f"{up}{(MANIFESTS / 'components' / name).relative_to('/')}"


def names(objects: list[Object], *kinds: str) -> set[str]:
    return {o["metadata"]["name"] for o in of_kind(objects, *kinds)}


def one(objects: list[Object], kind: str, name: str) -> Object:
    (found,) = [o for o in of_kind(objects, kind) if o["metadata"]["name"] == name]
    return found


def pod_of(workload: Object) -> Object:
    spec: Object = workload["spec"]["template"]["spec"]
    return spec


def environment(objects: list[Object]) -> dict[str, Any]:
    (container,) = pod_of(one(objects, "Deployment", "rljob-operator"))["containers"]
    return {entry["name"]: entry.get("value", entry.get("valueFrom")) for entry in container["env"]}


def pods(kubectl: Kubectl, namespace: str) -> dict[str, list[Object]]:
    found: dict[str, list[Object]] = {}
    for pod in kubectl.within(namespace).json("get", "pods")["items"]:
        found.setdefault(pod["metadata"]["labels"]["app.kubernetes.io/name"], []).append(pod)
    return found


# ---------------------------------------------------------------------------------------------- applied


def test_applied_again_nothing_changes(kubectl: Kubectl) -> None:
    lines = kubectl("apply", "--kustomize", str(MANIFESTS)).splitlines()
    assert len(lines) == len(rendered(kubectl, MANIFESTS))
    assert not [line for line in lines if not line.endswith(" unchanged")]
    kubectl("apply", "--kustomize", str(MANIFESTS), "--server-side", "--force-conflicts", "--dry-run=server")


@pytest.mark.parametrize("folder", [MANIFESTS, EXTERNAL], ids=["base", "external-nats"])
def test_it_is_valid_as_strictly_as_can_be(kubectl: Kubectl, folder: Path) -> None:
    arguments = ["--kustomize", str(folder), "--dry-run=server", "--validate=strict"]
    assert "Warning" not in kubectl("apply", *arguments)


def test_three_servers_are_valid_as_strictly_as_can_be(kubectl: Kubectl, tmp_path: Path) -> None:
    kubectl(
        "create", "namespace", "team-c"
    )  # where no single server is, whose StatefulSet cannot become theirs
    folder = moved(CLUSTER, "team-c", tmp_path / "cluster")
    arguments = ["--kustomize", str(folder), "--dry-run=server", "--validate=strict"]
    assert "Warning" not in kubectl("apply", *arguments)


def test_cert_manager_s_certificates_take_the_places_of_ours(kubectl: Kubectl, tmp_path: Path) -> None:
    """No two sources of the server's volume have a file of the same name, which the kubelet would refuse."""
    more = [component("cert-manager", tmp_path)]
    objects = rendered(kubectl, moved(MANIFESTS, "rljob-system", tmp_path / "own", components=more))
    (volume,) = [v for v in pod_of(one(objects, "StatefulSet", "nats"))["volumes"] if v["name"] == "config"]
    taken = [
        (source["secret"]["name"], item["key"], item["path"])
        for source in volume["projected"]["sources"]
        if "secret" in source
        for item in source["secret"].get("items", [{"key": "accounts.conf", "path": "accounts.conf"}])
    ]
    assert taken == [
        ("rljob-nats-accounts", "accounts.conf", "accounts.conf"),
        ("nats-tls", "tls.crt", "server.crt"),
        ("nats-tls", "tls.key", "server.key"),
    ]
    certificate = one(objects, "Certificate", "nats-tls")["spec"]
    assert certificate["secretName"] == "nats-tls"
    url = environment(objects)["RLJOB_NATS_URL"]
    assert urlsplit(url).hostname in certificate["dnsNames"]
    operator = pod_of(one(objects, "Deployment", "rljob-operator"))
    (mount,) = [m for m in operator["containers"][0]["volumeMounts"] if m["name"] == "nats-ca"]
    assert environment(objects)["RLJOB_NATS_CA"] == f"{mount['mountPath']}/ca.crt"


def test_three_servers_are_on_three_nodes_and_two_stay(every: dict[str, list[Object]]) -> None:
    objects = every["nats-cluster"]
    servers = one(objects, "StatefulSet", "nats")
    labels = servers["spec"]["template"]["metadata"]["labels"]
    apart = pod_of(servers)["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert apart == [{"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": labels}}]
    budget = one(objects, "PodDisruptionBudget", "nats")["spec"]
    assert budget == {"maxUnavailable": 1, "selector": {"matchLabels": labels}}
    routes = one(objects, "Service", servers["spec"]["serviceName"])
    assert (routes["spec"]["selector"], routes["spec"]["publishNotReadyAddresses"]) == (labels, True)
    policy = one(objects, "NetworkPolicy", "nats")["spec"]
    assert policy["ingress"][:1] == one(every["base"], "NetworkPolicy", "nats")["spec"]["ingress"]
    others = {
        "from": [{"podSelector": {"matchLabels": labels}}],
        "ports": [{"protocol": "TCP", "port": 6222}],
    }
    assert policy["ingress"][1:] == [others]


def test_the_namespace_admits_every_pod(kubectl: Kubectl) -> None:
    """Its namespace enforces Restricted Pod Security; the pods are made by the real controllers."""
    labels = kubectl.json("get", "namespace", "rljob-system")["metadata"]["labels"]
    assert labels["pod-security.kubernetes.io/enforce"] == "restricted"
    until(lambda: pods(kubectl, "rljob-system").keys() == {"rljob-operator", "nats", "rljob-nats-setup"})


def test_an_overlay_for_one_namespace_needs_nothing_outside_of_it(kubectl: Kubectl, tmp_path: Path) -> None:
    kubectl("create", "namespace", "team-a")
    kubectl("label", "namespace", "team-a", "pod-security.kubernetes.io/enforce=restricted")
    kubectl("create", "serviceaccount", "admin", "--namespace=team-a")
    kubectl(
        "create",
        "rolebinding",
        "admin",
        "--namespace=team-a",
        "--clusterrole=cluster-admin",
        "--serviceaccount=team-a:admin",
    )
    ours = moved(NAMESPACED, "team-a", tmp_path / "moved")
    as_admin = "--as=system:serviceaccount:team-a:admin"
    kubectl("apply", "--kustomize", str(ours), "--validate=strict", as_admin)
    until(lambda: pods(kubectl, "team-a").keys() == {"rljob-operator", "nats", "rljob-nats-setup"})
    as_operator = "--as=system:serviceaccount:team-a:rljob-operator"
    ours_now = kubectl.within("team-a")
    until(lambda: ours_now.succeeds("auth", "can-i", "create", "deployments", as_operator))
    assert not kubectl.within("default").succeeds("auth", "can-i", "list", "rljobs.rljob.dev", as_operator)


def test_who_may_edit_a_namespace_may_edit_its_jobs(kubectl: Kubectl) -> None:
    for role in ("edit", "view"):
        kubectl(
            "create", "rolebinding", role, f"--clusterrole={role}", f"--user={role}", "--namespace=default"
        )
    here = kubectl.within("default")
    until(lambda: here.succeeds("auth", "can-i", "create", "rljobs.rljob.dev", "--as=edit"))
    until(lambda: here.succeeds("auth", "can-i", "list", "rljobs.rljob.dev", "--as=view"))
    assert here.succeeds(
        "auth", "can-i", "patch", "rolloutpools.rljob.dev", "--subresource=scale", "--as=edit"
    )
    assert not here.succeeds("auth", "can-i", "patch", "rolloutpools.rljob.dev", "--as=edit")
    assert not here.succeeds("auth", "can-i", "create", "rljobs.rljob.dev", "--as=view")


# ---------------------------------------------------------------------------------------------- rendered


def test_roles_have_no_wildcards_and_the_operator_reads_no_secret(every: dict[str, list[Object]]) -> None:
    for objects in every.values():
        for role in of_kind(objects, *ROLES):
            for rule in role["rules"]:
                assert not {"*"} & {*rule["apiGroups"], *rule["resources"], *rule["verbs"]}
                if "secrets" in rule["resources"] and role["metadata"]["name"] == "rljob-operator":
                    assert not {"get", "list", "watch"} & {*rule["verbs"]}


def test_the_nats_server_keeps_little_for_a_client_that_does_not_read(every: dict[str, list[Object]]) -> None:
    """And no client can make it take the memory of its node."""
    for name in ("base", "nats-cluster"):
        config = one(every[name], "ConfigMap", "nats")["data"]["nats-server.conf"]
        assert re.search(r"max_pending: (\d+)MB", config)[1] == str(MAX_PENDING >> 20)  # type: ignore[index]
        (container,) = pod_of(one(every[name], "StatefulSet", "nats"))["containers"]
        (limit,) = [entry["value"] for entry in container["env"] if entry["name"] == "GOMEMLIMIT"]
        assert container["resources"]["limits"] == {"memory": "4Gi"}
        assert limit == "3600MiB"


def test_every_container_has_a_root_that_it_cannot_write_to(every: dict[str, list[Object]]) -> None:
    for objects in every.values():
        for workload in of_kind(objects, *WORKLOADS):
            for container in pod_of(workload)["containers"]:
                assert container["securityContext"]["readOnlyRootFilesystem"] is True
                assert container["resources"]["requests"].keys() == {"cpu", "memory"}


def test_only_who_asks_the_api_server_has_a_token(every: dict[str, list[Object]]) -> None:
    for objects in every.values():
        for workload in of_kind(objects, *WORKLOADS):
            spec = pod_of(workload)
            account = spec.get("serviceAccountName")
            assert (account is None) == (spec.get("automountServiceAccountToken") is False)
            assert account is None or account in names(objects, "ServiceAccount")


def test_secrets_are_mounted_under_the_names_that_they_are_made_with(every: dict[str, list[Object]]) -> None:
    objects = every["base"]
    operator, server = (
        pod_of(one(objects, *which)) for which in (("Deployment", "rljob-operator"), ("StatefulSet", "nats"))
    )
    volumes = {volume["name"]: volume for volume in operator["volumes"]}
    assert volumes["nats"]["secret"] == {"secretName": nats_accounts.ISSUER_SECRET}
    (mount,) = [m for m in operator["containers"][0]["volumeMounts"] if m["name"] == "nats"]
    folder = Path(mount["mountPath"])
    given = environment(objects)
    assert given["RLJOB_NATS_ISSUER"] == str(folder / nats_accounts.ISSUER_FILE)
    sources = [source for volume in server["volumes"] for source in volume["projected"]["sources"]]
    assert {"secret": {"name": nats_accounts.SERVER_SECRET}} in sources
    secrets = [source["secret"] for source in sources if "secret" in source]
    (certificate,) = [secret for secret in secrets if secret["name"] == nats_accounts.CERTIFICATE_SECRET]
    seeds = nats_accounts.Seeds.complete({}, bytes)
    made = {m["metadata"]["name"]: m["data"] for m in nats_accounts.secrets(seeds, namespace="n")}
    assert {item["key"] for item in certificate["items"]} < made[certificate["name"]].keys()
    config = one(objects, "ConfigMap", "nats")["data"]["nats-server.conf"]
    assert all(f"_file: /etc/nats/{item['path']}\n" in config for item in certificate["items"])
    assert f"include {nats_accounts.ACCOUNTS_FILE}\n" in config
    (read,) = [rule for rule in one(objects, "Role", "rljob-nats-setup")["rules"] if "get" in rule["verbs"]]
    assert read["resourceNames"] == [
        nats_accounts.SEEDS_SECRET,
        nats_accounts.SERVER_SECRET,
        nats_accounts.ISSUER_SECRET,
        nats_accounts.CERTIFICATE_SECRET,
        nats_accounts.ROUTES_SECRET,
    ]


def test_the_operator_reads_all_that_it_is_given(every: dict[str, list[Object]], tmp_path: Path) -> None:
    seeds = nats_accounts.Seeds.complete({}, bytes)
    (tmp_path / nats_accounts.ISSUER_FILE).write_text(nats_accounts.issuer(seeds).text())
    for objects in every.values():
        given = {name: value for name, value in environment(objects).items() if isinstance(value, str)}
        if "RLJOB_NATS_ISSUER" in given:
            given["RLJOB_NATS_ISSUER"] = str(tmp_path / nats_accounts.ISSUER_FILE)
        asked = Asked({**given, "WATCH_NAMESPACES": "team-a", "POD_NAMESPACE": "rljob-system"})
        settings = Settings.read(asked)
        assert environment(objects).keys() <= asked.names
        assert settings.defaults.nats_url == given["RLJOB_NATS_URL"]
        assert (settings.defaults.issuer is None) == ("RLJOB_NATS_ISSUER" not in given)


def test_the_server_is_the_one_that_is_tested(every: dict[str, list[Object]]) -> None:
    image = pod_of(one(every["base"], "StatefulSet", "nats"))["containers"][0]["image"]
    said = subprocess.run([binary(), "--version"], capture_output=True, text=True, check=True).stdout
    assert re.findall(r"(\d+\.\d+)", image)[0] == re.findall(r"v(\d+\.\d+)", said)[0]


def test_every_pod_has_a_policy_of_its_own_besides_the_one_that_denies_all(
    every: dict[str, list[Object]],
) -> None:
    for name, objects in every.items():
        policies = [policy["spec"] for policy in of_kind(objects, "NetworkPolicy")]
        for policy in policies:
            assert policy["policyTypes"] == ["Ingress", "Egress"]
        for workload in of_kind(objects, *WORKLOADS):
            labels = workload["spec"]["template"]["metadata"]["labels"]
            assert {"matchLabels": labels} in [policy["podSelector"] for policy in policies]
        # Where other people's pods are, too, theirs are left alone.
        assert (any(policy["podSelector"] == {} for policy in policies)) == (name != "namespaced")
        assert len(policies) == len(of_kind(objects, *WORKLOADS)) + (name != "namespaced")


def test_only_the_clients_port_of_nats_is_reached_and_only_by_ours(every: dict[str, list[Object]]) -> None:
    config = one(every["base"], "ConfigMap", "nats")["data"]["nats-server.conf"]
    assert re.findall(r"^http\S* (\S+)", config, re.MULTILINE) == ["127.0.0.1:8222"]
    policy = one(every["base"], "NetworkPolicy", "nats")["spec"]
    (rule,) = policy["ingress"]
    assert rule["ports"] == [{"protocol": "TCP", "port": 4222}]
    assert all("podSelector" in peer for peer in rule["from"])
    assert "egress" not in policy


def test_keda_reads_the_metrics_of_the_process_that_works(every: dict[str, list[Object]]) -> None:
    service = one(every["base"], "Service", "rljob-operator")
    operator = one(every["base"], "Deployment", "rljob-operator")
    labels = operator["spec"]["template"]["metadata"]["labels"]
    assert service["spec"]["selector"] == {**labels, LEADER_LABEL: "true"}
    (target,) = service["spec"]["ports"]
    listening = {p["name"]: p["containerPort"] for p in pod_of(operator)["containers"][0]["ports"]}
    assert listening[target["targetPort"]] == target["port"]
    page = (CHECKOUT / "docs/autoscaling.md").read_text()
    (shown,) = re.findall(r"```yaml\n(apiVersion: keda.*?)```", page, re.DOTALL)
    (trigger,) = YAML(typ="safe").load(shown)["spec"]["triggers"]
    at = service["metadata"]
    assert trigger["metadata"]["url"] == f"http://{at['name']}.{at['namespace']}:{target['port']}/metrics"
    metrics = OperatorMetrics()
    metrics.set_wanted([(Ref("RolloutPool", "team", "chain-sum-rollout-local"), 3)])
    assert f"{trigger['metadata']['valueLocation']} 3.0" in generate_latest(metrics.registry).decode()


def test_the_operator_watches_nodes_where_it_is_to_and_needs_no_more_for_it(
    every: dict[str, list[Object]],
) -> None:
    objects = every["node-notices"]
    taints = environment(objects)["RLJOB_NOTICE_TAINTS"].split(",")
    page = (CHECKOUT / "docs/autoscaling.md").read_text()
    assert [taint for taint in taints if f"`{taint}`" not in page] == []
    assert "RLJOB_NOTICE_TAINTS" not in environment(every["base"])
    role = one(objects, "ClusterRole", "rljob-operator-nodes")
    assert role["rules"] == [{"apiGroups": [""], "resources": ["nodes"], "verbs": ["list", "watch"]}]
    binding = one(objects, "ClusterRoleBinding", "rljob-operator-nodes")
    assert binding["roleRef"]["name"] == role["metadata"]["name"]
    assert binding["subjects"] == one(objects, "ClusterRoleBinding", "rljob-operator")["subjects"]


def test_the_operator_reaches_a_server_elsewhere(every: dict[str, list[Object]]) -> None:
    rules = {
        name: one(every[name], "NetworkPolicy", "rljob-operator")["spec"]["egress"]
        for name in ("base", "external-nats")
    }
    assert "to" in rules["base"][0]
    assert rules["external-nats"] == [{"ports": [{"protocol": "TCP", "port": 4222}]}, *rules["base"][1:]]


def test_an_overlay_for_one_namespace_has_nothing_of_the_cluster(every: dict[str, list[Object]]) -> None:
    objects = every["namespaced"]
    assert {o["metadata"].get("namespace") for o in objects} == {"rl-team"}
    assert not of_kind(objects, "ClusterRole", "ClusterRoleBinding")
    whole = one(every["base"], "ClusterRole", "rljob-operator")
    assert one(objects, "Role", "rljob-operator")["rules"] == whole["rules"]
    bindings = of_kind(objects, "RoleBinding")
    assert {s["namespace"] for binding in bindings for s in binding["subjects"]} == {"rl-team"}
    given = environment(objects)
    assert given["WATCH_NAMESPACES"] == {"fieldRef": {"fieldPath": "metadata.namespace"}}
    assert given.keys() - {"WATCH_NAMESPACES"} == environment(every["base"]).keys()


def test_with_a_server_elsewhere_there_is_none_of_ours(every: dict[str, list[Object]]) -> None:
    objects = every["external-nats"]
    gone = {(o["kind"], o["metadata"]["name"]) for o in every["base"]}
    gone -= {(o["kind"], o["metadata"]["name"]) for o in objects}
    assert gone == {
        *((kind, "nats") for kind in ("Service", "ConfigMap", "StatefulSet")),
        *((kind, "rljob-nats-setup") for kind in ("Job", "ServiceAccount", "Role", "RoleBinding")),
        *(("NetworkPolicy", name) for name in ("nats", "rljob-nats-setup")),
        ("Role", "rljob-nats-port-forward"),
    }
    assert environment(objects) == {
        **environment(every["base"]),
        "RLJOB_NATS_URL": "nats://nats.example:4222",
    }


def test_a_server_that_asks_for_no_credentials_needs_no_secret(every: dict[str, list[Object]]) -> None:
    operator = one(every["open-nats"], "Deployment", "rljob-operator")
    assert not [name for name in environment(every["open-nats"]) if "CREDENTIALS" in name or "ISSUER" in name]
    assert not [volume for volume in pod_of(operator)["volumes"] if "secret" in volume]
    mounts = {mount["name"] for mount in pod_of(operator)["containers"][0]["volumeMounts"]}
    assert mounts == {volume["name"] for volume in pod_of(operator)["volumes"]}


def test_components_go_with_the_overlay_for_one_namespace(kubectl: Kubectl, tmp_path: Path) -> None:
    more = [component(name, tmp_path) for name in ("external-nats", "open-nats")]
    objects = rendered(kubectl, moved(NAMESPACED, "team-b", tmp_path / "both", components=more))
    assert {o["metadata"]["namespace"] for o in objects} == {"team-b"}
    assert names(objects, *WORKLOADS) == {"rljob-operator"}


def test_the_job_that_makes_keys_can_be_taken_away(kubectl: Kubectl, tmp_path: Path) -> None:
    """As docs/nats-security.md shows it."""
    (shown,) = re.findall(r"```yaml\n(.*?)```", (CHECKOUT / "docs/nats-security.md").read_text(), re.DOTALL)
    patches = YAML(typ="safe").load(shown)["patches"]
    objects = rendered(kubectl, moved(MANIFESTS, "rljob-system", tmp_path / "without", patches=patches))
    assert not [o for o in objects if o["metadata"]["name"] == "rljob-nats-setup"]
    assert names(objects, *WORKLOADS) == {"rljob-operator", "nats"}


def test_what_each_policy_of_open_namespaces_does(kubectl: Kubectl) -> None:
    for mode, actions in (
        ("off", ["Audit"]),
        ("warn", ["Warn", "Audit"]),
        ("enforce", ["Deny", "Audit"]),
    ):
        objects = rendered(kubectl, MANIFESTS / "policies/namespaces" / mode)
        bindings = of_kind(objects, "ValidatingAdmissionPolicyBinding")
        assert [binding["spec"]["validationActions"] for binding in bindings] == [actions, actions]
        assert names(objects, "ValidatingAdmissionPolicy") == {b["spec"]["policyName"] for b in bindings}


# ---------------------------------------------------------------------------------------------- as the pages show it


def shown(heading: str, page: str = "docs/operator.md") -> dict[str, str]:
    """The YAML files below a heading, by the names in their first lines."""
    (section,) = re.findall(
        rf"^#+ {heading}$(.*?)(?:^#|\Z)",
        without_comments((CHECKOUT / page).read_text()),
        re.MULTILINE | re.DOTALL,
    )
    return dict(re.findall(r"```yaml\nFILE ([\w.-]+).*?\n(.*?)```", section, re.DOTALL))


def without_comments(page: str) -> str:
    """A page, in which only headings have a # at the begin of a line."""
    return re.sub(r"^# (\S+\.yaml)\b", r"FILE \1", page, flags=re.MULTILINE)


def kustomization(files: dict[str, str], folder: Path) -> Path:
    """The files in a folder, beside a copy of this repository."""
    folder.mkdir()
    (folder / "rljob").symlink_to(CHECKOUT)
    for name, text in files.items():
        (folder / name).write_text(text)
    return folder


def test_the_rules_that_the_page_shows_hold(kubectl: Kubectl, tmp_path: Path) -> None:
    files = shown("What the right to create RLJobs gives")
    ours = kustomization(
        {name: text.replace("team-a", "rules-a") for name, text in files.items()}, tmp_path / "own"
    )
    kubectl("create", "namespace", "rules-a")
    others, theirs = (Namespace(kubectl.within(name)) for name in ("default", "rules-a"))
    image = "registry.example/rl/worker:1"

    def naming(secret: str) -> Object:
        return manifest(image=image, imagePullSecrets=[secret])

    try:
        kubectl("apply", "--kustomize", str(ours), "--validate=strict")
        until(lambda: others.refuses(naming("another")))
        assert "may not name these Secrets" in others.refuses(naming("another"))
        assert "may not name these images" in others.refuses(manifest(image="another"))
        assert others.refuses(naming("hub-token")) == theirs.refuses(naming("rules-a-any")) == ""
        assert "(allowed: rules-a-*;" in theirs.refuses(naming("hub-token"))
    finally:
        kubectl("delete", "--kustomize", str(ours))


def test_an_operator_for_some_namespaces_has_rights_in_these(kubectl: Kubectl, tmp_path: Path) -> None:
    files = shown("Open namespaces")
    objects = rendered(kubectl, kustomization(files, tmp_path / "own"))
    assert environment(objects)["WATCH_NAMESPACES"] == "team-a"
    assert list(names(objects, "ClusterRoleBinding")) == [
        "rljob-operator-sites"
    ]  # it reads Sites, and no more
    binding = one(objects, "RoleBinding", "rljob-operator")
    assert binding["roleRef"]["name"] in names(objects, "ClusterRole")
    (subject,) = binding["subjects"]
    account = one(objects, subject["kind"], subject["name"])
    assert subject["namespace"] == account["metadata"]["namespace"]
    # Tried by an account of the same name elsewhere, as this one has its rights in this cluster already.
    kubectl("create", "namespace", "some-a")
    tried = {**binding, "metadata": {**binding["metadata"], "namespace": "some-a"}}
    kubectl.apply({**tried, "subjects": [{**subject, "namespace": "some-a"}]})
    as_operator = "--as=system:serviceaccount:some-a:rljob-operator"
    until(
        lambda: kubectl.within("some-a").succeeds(
            "auth", "can-i", "create", "rolloutpools.rljob.dev", as_operator
        )
    )
    assert not kubectl.within("default").succeeds("auth", "can-i", "list", "rljobs.rljob.dev", as_operator)
