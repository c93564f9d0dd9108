"""The values of the Helm chart, as types: the chart's `values.schema.json`, and the comments of its `values.yaml`.

Helm checks a user's values by the schema before it renders anything, and names the value that it refuses.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, create_model
from pydantic.alias_generators import to_camel

_ChartPort = Annotated[int, Field(ge=1, le=65535)]
_ChartMap = dict[str, Any]
_NAMESPACE = r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$"
_QUANTITY = r"^[0-9]+(\.[0-9]+)?(Ki|Mi|Gi|Ti|Pi|k|M|G|T|P)?$"
_IMAGE = r"^[^\s]+$"

#: Variables of the operator that other values set, or that belong to files which the chart mounts.
SET_BY_THE_CHART = {
    "RLJOB_NATS_URL",
    "RLJOB_NATS_ISSUER",
    "RLJOB_WORKER_IMAGE",
    "RLJOB_WORKER_TEMPLATE",
    "RLJOB_WORKER_EGRESS",
    "RLJOB_JOB_RULES",
    "RLJOB_NOTICE_TAINTS",
    "RLJOB_SITE",
    "WATCH_NAMESPACES",
    "RLJOB_PROBE_HOST",
    "RLJOB_PROBE_PORT",
    "RLJOB_LEASE",
    "POD_NAME",
    "POD_NAMESPACE",
}


class ChartPart(BaseModel):
    """A map of values; what it does not name is refused."""

    model_config = ConfigDict(alias_generator=to_camel, extra="forbid", populate_by_name=True)


class ChartImage(ChartPart):
    """The operator's image, which also makes the keys of NATS."""

    repository: str = Field(pattern=_IMAGE, description="Where your nodes pull it from, without a tag.")
    tag: str = Field(pattern=r"^[\w][\w.-]{0,127}$", description="Its tag.")
    digest: str = Field(
        pattern=r"^(sha256:[0-9a-f]{64})?$", description="sha256:…; if given, it takes the place of the tag."
    )
    pull_secrets: list[str] = Field(description="Secrets of the release's namespace for the registry.")


class ChartWorker(ChartPart):
    """What jobs without an image of their own run."""

    image: str = Field(pattern=_IMAGE, description="Image of the workers of jobs without `image`.")


class ChartOperator(ChartPart):
    """The operator's Deployment."""

    replicas: int = Field(
        ge=0,
        le=5,
        description="1; 2 for one that stands by on another node; 0 to stop it: jobs keep training without it.",
    )
    resources: _ChartMap = Field(description="Requests and limits of the container.")
    priority_class_name: str = Field(
        description="Its PriorityClass; empty: none, as always with `scope: Namespace`."
    )
    node_selector: dict[str, str] = Field(description="Labels of the nodes that it may run on.")
    tolerations: list[_ChartMap] = Field(description="Taints that it tolerates.")
    extra_volumes: list[_ChartMap] = Field(description="More volumes, for files that `env` names.")
    extra_volume_mounts: list[_ChartMap] = Field(description="Where the container mounts them.")
    env: _ChartMap = Field(description="Its variables by name (docs/operator.md#environment).")


class ChartNats(ChartPart):
    """The NATS server of all jobs: one that the chart installs, or yours."""

    install: bool = Field(
        description="One nats-server with its keys, in the release's namespace; false: `url` is yours."
    )
    url: str = Field(
        pattern=r"^((nats|tls|ws|wss)://\S+)?$",
        description="URL of your server, or of several with commas between; empty: the chart's own.",
    )
    authentication: bool = Field(
        description="The server asks for credentials: the operator's are in the Secret rljob-nats-issuer."
    )
    image: str = Field(pattern=_IMAGE, description="The chart's server: its image.")
    resources: _ChartMap = Field(description="The chart's server: requests and limits.")
    storage: str = Field(
        pattern=_QUANTITY, description="The chart's server: size of its volume. Cannot be changed later."
    )
    storage_class_name: str = Field(
        description="The chart's server: class of its volume; empty: the cluster's default. Cannot be changed later."
    )
    max_file_store: str = Field(
        pattern=r"^[0-9]+[KMGT]B?$",
        description="The chart's server: how much streams may take. Less than the volume has.",
    )


class ChartCrds(ChartPart):
    """The CustomResourceDefinitions. An uninstall leaves them, and all jobs with them."""

    install: bool = Field(
        description="Install them, and upgrade them; false: somebody else does (`kubectl apply -k crds`)."
    )


class ChartNamespace(ChartPart):
    """The release's namespace."""

    create: bool = Field(
        description="Render the Namespace, too: for `helm template`. `helm install` wants --create-namespace."
    )


class ChartNetworkPolicies(ChartPart):
    """What may connect to what in the release's namespace."""

    install: bool = Field(description="Install NetworkPolicies.")
    api_server_ports: list[_ChartPort] = Field(
        description="Ports of the API server, as its pods or nodes have them."
    )
    nats_ports: list[_ChartPort] = Field(
        description="Ports of a NATS server of yours, as its pods have them."
    )


class ChartMonitoring(ChartPart):
    """PodMonitors, alert rules and a dashboard."""

    enabled: bool = Field(description="Needs the Prometheus operator's CustomResourceDefinitions.")


class ChartKueue(ChartPart):
    """Jobs wait in queues of Kueue."""

    enabled: bool = Field(description="A ClusterRole for Kueue's Workloads.")


class ChartNodeNotices(ChartPart):
    """The operator watches nodes for taints that say that the machine is about to be taken away."""

    enabled: bool = Field(description="Watch nodes: a ClusterRole for it.")
    taints: list[str] = Field(description="Keys of these taints.")


class ChartSites(ChartPart):
    """Other clusters may join this one, the hub."""

    enabled: bool = Field(
        description="A load balancer for the leafnodes of sites: port 7422 of the NATS server."
    )


class ChartValues(ChartPart):
    """Values of the chart rljob."""

    scope: Literal["Cluster", "Namespace"] = Field(
        description="Namespace: the operator watches, and has rights in, the release's namespace alone."
    )
    watch_namespaces: list[Annotated[str, Field(pattern=_NAMESPACE)]] = Field(
        description="With `scope: Cluster`: namespaces to watch; empty: all."
    )
    image: ChartImage
    worker: ChartWorker
    operator: ChartOperator
    nats: ChartNats
    crds: ChartCrds
    namespace: ChartNamespace
    network_policies: ChartNetworkPolicies
    monitoring: ChartMonitoring
    kueue: ChartKueue
    node_notices: ChartNodeNotices
    sites: ChartSites


def schema(variables: dict[str, str]) -> dict[str, Any]:
    """The JSON schema of values.

    Args:
        variables: what each variable of the operator means, by its name.
    """
    fields: dict[str, Any] = {
        name: (str | int, Field(default="", description=meaning))
        for name, meaning in variables.items()
        if name not in SET_BY_THE_CHART
    }
    environment = create_model("ChartEnvironment", __config__=ConfigDict(extra="forbid"), **fields)
    operator = create_model(
        "ChartOperatorWithEnvironment",
        __base__=ChartOperator,
        env=(environment, Field(description=ChartOperator.model_fields["env"].description)),
    )
    whole = create_model("ChartValuesWithEnvironment", __base__=ChartValues, operator=(operator, ...))
    made: dict[str, Any] = whole.model_json_schema(by_alias=True)
    made["properties"]["global"] = {
        "type": "object",
        "description": "Helm's: of a chart that depends on this one.",
    }
    made["description"] = ChartValues.__doc__
    found: dict[str, Any] = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **_without_titles(made),
    }
    return found


def _without_titles(node: Any) -> Any:
    """Titles only repeat names, and defaults are in values.yaml."""
    if isinstance(node, dict):
        dropped = [key for key in ("title", "default") if isinstance(node.get(key), str)]
        return {key: _without_titles(value) for key, value in node.items() if key not in dropped}
    return [_without_titles(entry) for entry in node] if isinstance(node, list) else node


def described() -> Iterator[tuple[str, str]]:
    """Each value's path and what it means, in order; a map's before its own."""
    for name, field in ChartValues.model_fields.items():
        part = field.annotation
        if isinstance(part, type) and issubclass(part, ChartPart):
            yield to_camel(name), (part.__doc__ or "").strip()
            for key, below in part.model_fields.items():
                yield f"{to_camel(name)}.{to_camel(key)}", below.description or ""
        else:
            yield to_camel(name), field.description or ""


def variables_of(page: str) -> dict[str, str]:
    """The operator's variables and what they mean, from the table of docs/operator.md."""
    (body,) = re.findall(r"^\| variable \|.*\n\|[-|]+\n((?:\|.*\n)+)", page, re.MULTILINE)
    found = {}
    for row in body.splitlines():
        cells = [cell.strip() for cell in row.strip("|").split("|")]
        meaning = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", cells[-1])
        found.update(dict.fromkeys(re.findall(r"`([^`]+)`", cells[0]), meaning))
    return found
