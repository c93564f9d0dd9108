"""NetworkPolicies, enforced: packet filter rules of the nodes, rendered from the policies and pods of a cluster.

    with enforced(cluster):
        ...                                  # what no policy allows is refused

The nodes' network plugin is a cable per pod, so every packet from or to a pod passes its node's table FORWARD, after
kube-proxy has replaced a Service's address by a pod's. A pod that some policy selects gets a chain for each direction
of that policy: what a rule allows returns, all else is rejected. Answers to what was allowed pass. As with other
plugins, a node reaches its own pods, and a new pod is filtered a moment after it has its address.

Not supported, and refused: `ipBlock.except`, named ports, `endPort`. IPv6 ranges are left out: the nodes have none.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from e2e.harness.cluster import Cluster
from e2e.harness.errors import ClusterError
from e2e.harness.kubectl import KubernetesObject

CHAIN = "POLICIES"
_DIRECTIONS = (("Egress", "-s", "-d", "to"), ("Ingress", "-d", "-s", "from"))


def render(
    policies: Sequence[KubernetesObject],
    pods: Sequence[KubernetesObject],
    namespaces: Sequence[KubernetesObject],
) -> str:
    """Input of `iptables-restore --noflush`: the chain `POLICIES`, and one for each pod and direction that is limited.

    Raises:
        ClusterError: a policy has a part that is not supported.
    """
    places = {one["metadata"]["name"]: one["metadata"].get("labels", {}) for one in namespaces}
    present = [pod for pod in pods if _address(pod)]
    chains = [CHAIN]
    rules = [f"-A {CHAIN} -m conntrack --ctstate RELATED,ESTABLISHED -j RETURN"]
    for index, pod in enumerate(present):
        for direction, own, other, peers in _DIRECTIONS:
            limiting = [policy for policy in policies if _limits(policy, pod, direction)]
            if not limiting:
                continue
            chain = f"{CHAIN}-{direction}-{index}"
            chains.append(chain)
            rules.append(f"-A {CHAIN} {own} {_address(pod)} -j {chain}")
            for policy in limiting:
                for rule in policy["spec"].get(direction.lower()) or []:
                    for address in _addresses(rule.get(peers), policy, present, places):
                        for port in _ports(rule):
                            allowed = " ".join(
                                part for part in (address and f"{other} {address}", port) if part
                            )
                            rules.append(f"-A {chain} {allowed} -j RETURN".replace("  ", " "))
            rules.append(f"-A {chain} -j REJECT")
    return "\n".join(["*filter", *(f":{chain} - [0:0]" for chain in chains), *rules, "COMMIT", ""])


def _address(pod: KubernetesObject) -> str:
    """Its own, or nothing if it has none."""
    status = pod.get("status", {})
    if pod["spec"].get("hostNetwork") or status.get("phase") in {"Succeeded", "Failed"}:
        return ""
    return str(status.get("podIP", ""))


def _limits(policy: KubernetesObject, pod: KubernetesObject, direction: str) -> bool:
    spec = policy["spec"]
    default = ["Ingress", "Egress"] if spec.get("egress") else ["Ingress"]
    return (
        direction in spec.get("policyTypes", default)
        and policy["metadata"]["namespace"] == pod["metadata"]["namespace"]
        and _selected(spec.get("podSelector", {}), pod["metadata"].get("labels", {}))
    )


def _selected(selector: KubernetesObject, labels: Mapping[str, str]) -> bool:
    return selector.get("matchLabels", {}).items() <= labels.items() and all(
        _holds(each, labels) for each in selector.get("matchExpressions", [])
    )


def _holds(expression: KubernetesObject, labels: Mapping[str, str]) -> bool:
    key, values = expression["key"], expression.get("values", [])
    match expression["operator"]:
        case "In":
            return labels.get(key) in values
        case "NotIn":
            return labels.get(key) not in values
        case "Exists":
            return key in labels
        case _:
            return key not in labels


def _addresses(
    peers: Sequence[KubernetesObject] | None,
    policy: KubernetesObject,
    pods: Sequence[KubernetesObject],
    places: Mapping[str, Mapping[str, str]],
) -> Iterator[str]:
    """Addresses and ranges that any of the peers is; an empty one stands for all of them."""
    if not peers:
        yield ""
    for peer in peers or []:
        if "ipBlock" in peer:
            if peer["ipBlock"].get("except"):
                raise ClusterError(
                    f"NetworkPolicy {policy['metadata']['name']}: `except` is not supported here"
                )
            if ":" not in peer["ipBlock"]["cidr"]:
                yield peer["ipBlock"]["cidr"]
            continue
        for pod in pods:
            namespace = pod["metadata"]["namespace"]
            near = (
                _selected(peer["namespaceSelector"], places.get(namespace, {}))
                if "namespaceSelector" in peer
                else namespace == policy["metadata"]["namespace"]
            )
            if near and _selected(peer.get("podSelector", {}), pod["metadata"].get("labels", {})):
                yield _address(pod)


def _ports(rule: KubernetesObject) -> Iterator[str]:
    """Matches of the ports that a rule allows; an empty one stands for all of them."""
    if not rule.get("ports"):
        yield ""
    for port in rule.get("ports") or []:
        number = port.get("port")
        if "endPort" in port or isinstance(number, str):
            raise ClusterError("NetworkPolicies: named ports and `endPort` are not supported here")
        match = f"-p {port.get('protocol', 'TCP').lower()}"
        yield match if number is None else f"{match} --dport {number}"


@contextmanager
def enforced(cluster: Cluster, *, every_seconds: float = 1.0) -> Iterator[None]:
    """Enforce the cluster's policies on all its nodes, as they and the pods change.

    Raises:
        ClusterError: a node does not take the rules, or a policy is not supported.
    """
    stopping = threading.Event()
    failures: list[ClusterError] = []
    rules = cluster.folder / "policies"
    last = ""

    def refresh() -> None:
        nonlocal last
        found: dict[str, list[KubernetesObject]] = {"NetworkPolicy": [], "Pod": [], "Namespace": []}
        asked = cluster.kubectl.json("get", "networkpolicies,pods,namespaces", "--all-namespaces")
        for item in asked["items"]:
            found[item["kind"]].append(item)
        text = render(found["NetworkPolicy"], found["Pod"], found["Namespace"])
        if text == last:
            return
        rules.write_text(text)
        for node in cluster.nodes.values():
            done = node.run("iptables-restore", "--noflush", "--wait=10", str(rules))
            if (
                done.returncode == 0
                and node.run("iptables", "--wait", "-C", "FORWARD", "-j", CHAIN).returncode
            ):
                done = node.run("iptables", "--wait", "-I", "FORWARD", "-j", CHAIN)
            if done.returncode != 0:
                raise ClusterError(f"{node.name} does not take the policies: {done.stderr.strip()}")
        last = text

    def follow() -> None:
        while not stopping.wait(every_seconds):
            try:
                refresh()
            except ClusterError as error:
                failures.append(error)
                return

    refresh()
    thread = threading.Thread(target=follow, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stopping.set()
        thread.join()
        for node in cluster.nodes.values():
            node.run("iptables", "--wait", "-D", "FORWARD", "-j", CHAIN)
    if failures:
        raise failures[0]
