"""What an RLJob names, and where: the one table that the operator's refusal and the admission policy are made from.

Of a pod template, `POD_TEMPLATE` lists the fields that name something and those that are harmless. All others count as
names themselves (`Kind.POD_TEMPLATE_FIELDS`): host paths, the host's network, whatever Kubernetes may add one day; and
so do values that the table does not list, and nulls, which would remove what the operator or the platform has set. So
what nobody has thought of needs the platform's permission, too.
`crd.job_policy` writes the same table as expressions of a ValidatingAdmissionPolicy.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class Kind(StrEnum):
    """What is named; the value is the key of the rules that lists what may be."""

    IMAGES = "images"
    SECRETS = "secrets"
    CONFIG_MAPS = "configMaps"
    CLAIMS = "persistentVolumeClaims"
    SERVICE_ACCOUNTS = "serviceAccounts"
    PRIORITY_CLASSES = "priorityClasses"
    RUNTIME_CLASSES = "runtimeClasses"
    NODE_LABELS = "nodeLabels"
    TAINTS = "taints"
    SERVERS = "servers"
    """Places outside of the pods: URLs of NATS servers, engines and object stores, ranges of addresses, namespaces."""
    POD_METADATA = "podMetadata"
    """Keys of pods' labels and annotations."""
    POD_TEMPLATE_FIELDS = "podTemplateFields"


@dataclass(frozen=True, slots=True)
class Free:
    """A value that names nothing, or only what is inside the job's own pods."""


@dataclass(frozen=True, slots=True)
class Named:
    """A string that is a name.

    Attributes:
        separator: between several names in one string; empty if there is only one.
        absent: what it means that the field is missing; empty if that names nothing.
    """

    kind: Kind
    separator: str = ""
    absent: str = ""


@dataclass(frozen=True, slots=True)
class Place:
    """A URI: of a claim (`pvc://claim/folder`), of a server, or a path or name that names nothing."""


@dataclass(frozen=True, slots=True)
class Urls:
    """Free-form options, of which strings that begin with http:// or https:// name servers.

    Attributes:
        depth: how many lists and maps are looked into; what is deeper counts as a server of the name `TOO_DEEP`.
    """

    depth: int = 3


TOO_DEEP = "(nested too deep)"


@dataclass(frozen=True, slots=True)
class Keys:
    """A map whose keys are names."""

    kind: Kind


@dataclass(frozen=True, slots=True)
class Only:
    """A field of a pod template that may have these values."""

    values: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Items:
    """A list."""

    item: Node


@dataclass(frozen=True, slots=True)
class Fields:
    """An object with these fields.

    Attributes:
        template: whether it is of a pod template, where the API server checks nothing: all other fields, nulls and
            values of another type count as `Kind.POD_TEMPLATE_FIELDS`.
    """

    fields: Mapping[str, Node]
    template: bool = False


Node = Free | Named | Place | Urls | Keys | Only | Items | Fields

FREE = Free()


def _template(*free: str, **fields: Node) -> Fields:
    """An object of a pod template with fields that name nothing, and others."""
    return Fields({**dict.fromkeys(free, FREE), **fields}, template=True)


def _free(*free: str, **fields: Node) -> Fields:
    """An object of the API with fields that name nothing, and others."""
    return Fields({**dict.fromkeys(free, FREE), **fields})


_OFF, _ON = Only((False,)), Only((True,))
_SECRET = _template("key", "optional", "items", "defaultMode", name=Named(Kind.SECRETS))
_CONFIG_MAP = _template("key", "optional", "items", "defaultMode", name=Named(Kind.CONFIG_MAPS))
_HANDLERS: Mapping[str, Node] = {
    "exec": FREE,
    "grpc": FREE,
    "sleep": FREE,
    "httpGet": _template("path", "port", "scheme", "httpHeaders"),
    "tcpSocket": _template("port"),
}
_PROBE = _template(
    "initialDelaySeconds", "timeoutSeconds", "periodSeconds", "successThreshold", "failureThreshold",
    "terminationGracePeriodSeconds", **_HANDLERS,
)  # fmt: skip
_HANDLER = _template(**_HANDLERS)
_RESOURCES = _template("limits", "requests")
_SECCOMP = _template(type=Only(("RuntimeDefault",)))
_CONTAINER = _template(
    "name", "command", "args", "workingDir", "volumeMounts", "volumeDevices", "imagePullPolicy", "restartPolicy",
    "resizePolicy", "terminationMessagePath", "terminationMessagePolicy", "stdin", "stdinOnce", "tty",
    image=Named(Kind.IMAGES),
    env=Items(
        _template(
            "name", "value",
            valueFrom=_template(
                "fieldRef", "resourceFieldRef", secretKeyRef=_SECRET, configMapKeyRef=_CONFIG_MAP
            ),
        )
    ),
    envFrom=Items(_template("prefix", secretRef=_SECRET, configMapRef=_CONFIG_MAP)),
    ports=Items(_template("name", "containerPort", "protocol")),
    resources=_RESOURCES,
    livenessProbe=_PROBE,
    readinessProbe=_PROBE,
    startupProbe=_PROBE,
    lifecycle=_template(postStart=_HANDLER, preStop=_HANDLER),
    securityContext=_template(
        "runAsUser", "runAsGroup", "readOnlyRootFilesystem",
        privileged=_OFF,
        allowPrivilegeEscalation=_OFF,
        runAsNonRoot=_ON,
        capabilities=_template(drop=Only((["ALL"],))),
        seccompProfile=_SECCOMP,
    ),
)  # fmt: skip
_VOLUME = _template(
    "name", "emptyDir", "downwardAPI",
    configMap=_CONFIG_MAP,
    secret=_template("items", "defaultMode", "optional", secretName=Named(Kind.SECRETS)),
    persistentVolumeClaim=_template("readOnly", claimName=Named(Kind.CLAIMS)),
    projected=_template(
        "defaultMode",
        sources=Items(_template("downwardAPI", secret=_SECRET, configMap=_CONFIG_MAP)),
    ),
)  # fmt: skip
_NODE_TERM = _template(matchExpressions=Items(_template("operator", "values", key=Named(Kind.NODE_LABELS))))
_POD_TERM = _template("labelSelector", "topologyKey", "matchLabelKeys", "mismatchLabelKeys")
_NEAR_PODS = _template(
    requiredDuringSchedulingIgnoredDuringExecution=Items(_POD_TERM),
    preferredDuringSchedulingIgnoredDuringExecution=Items(_template("weight", podAffinityTerm=_POD_TERM)),
)
POD_TEMPLATE = _template(
    metadata=_template(labels=Keys(Kind.POD_METADATA), annotations=Keys(Kind.POD_METADATA)),
    spec=_template(
        "topologySpreadConstraints", "terminationGracePeriodSeconds", "activeDeadlineSeconds", "hostAliases",
        "enableServiceLinks", "restartPolicy", "hostname", "subdomain",
        containers=Items(_CONTAINER),
        initContainers=Items(_CONTAINER),
        volumes=Items(_VOLUME),
        imagePullSecrets=Items(_template(name=Named(Kind.SECRETS))),
        serviceAccountName=Named(Kind.SERVICE_ACCOUNTS),
        serviceAccount=Named(Kind.SERVICE_ACCOUNTS),
        automountServiceAccountToken=_OFF,
        priorityClassName=Named(Kind.PRIORITY_CLASSES),
        runtimeClassName=Named(Kind.RUNTIME_CLASSES),
        nodeSelector=Keys(Kind.NODE_LABELS),
        affinity=_template(
            nodeAffinity=_template(
                requiredDuringSchedulingIgnoredDuringExecution=_template(nodeSelectorTerms=Items(_NODE_TERM)),
                preferredDuringSchedulingIgnoredDuringExecution=Items(_template("weight", preference=_NODE_TERM)),
            ),
            podAffinity=_NEAR_PODS,
            podAntiAffinity=_NEAR_PODS,
        ),
        tolerations=Items(
            _template(
                "operator", "value", "effect", "tolerationSeconds",
                key=Named(Kind.TAINTS, absent="(every taint)"),
            )
        ),
        hostNetwork=_OFF,
        hostPID=_OFF,
        hostIPC=_OFF,
        hostUsers=_OFF,
        shareProcessNamespace=_OFF,
        resources=_RESOURCES,
        securityContext=_template(
            "runAsUser", "runAsGroup", "fsGroup", "fsGroupChangePolicy", "supplementalGroups",
            "supplementalGroupsPolicy",
            runAsNonRoot=_ON,
            seccompProfile=_SECCOMP,
        ),
    ),
)  # fmt: skip

_DATA = _free("source", "options", "promptTemplate", dataset=Place())
SPEC = _free(
    "managedBy",  # who else reconciles the job, with rights of its own
    image=Named(Kind.IMAGES),
    imagePullSecrets=Items(Named(Kind.SECRETS)),
    model=_free(uri=Place(), credentialsSecret=Named(Kind.SECRETS)),
    data=_DATA,
    evaluation=_free(data=_DATA),
    # Functions, losses, engines, environments and backends are code of the image, and run in the job's own pods.
    reward=_free(functions=Items(FREE), template=POD_TEMPLATE),
    algorithm=_free("loss"),
    rollout=_free(
        engine=_free("name", options=Urls()),
        environment=_free("name", "options"),
        sampling=_free(stop=Items(FREE)),
        pools=Items(
            _free("name", "datacenter", "costPerHour", engine=_free(options=Urls()), template=POD_TEMPLATE)
        ),
    ),
    trainer=_free("backend", "options", checkpoint=_free(uri=Place()), template=POD_TEMPLATE),
    coordinator=_free(template=POD_TEMPLATE),
    weights=_free(uri=Place()),
    trackers=Items(FREE),
    nats=_free(url=Named(Kind.SERVERS, separator=","), credentialsSecret=Named(Kind.SECRETS)),
    networking=_free(egress=Items(_free(cidr=Named(Kind.SERVERS), namespace=Named(Kind.SERVERS)))),
)
"""The spec of an RLJob: every string and every free-form map of its schema. Numbers and enumerations name nothing."""


@dataclass(frozen=True, slots=True)
class Mention:
    """A name in an RLJob.

    Attributes:
        path: the field, lists left out: `spec.rollout.pools.template.spec.volumes.secret.secretName`.
        name: what it names; of `Kind.POD_TEMPLATE_FIELDS`, the field's path below the template.
    """

    kind: Kind
    path: str
    name: str

    def __str__(self) -> str:
        return self.path if self.kind is Kind.POD_TEMPLATE_FIELDS else f"{self.path} {self.name}"


def mentions(spec: Mapping[str, Any]) -> Iterator[Mention]:
    """All that the spec of an RLJob names.

    Args:
        spec: JSON values, with the field names of the API.
    """
    yield from _of_fields(SPEC, spec, "spec", "")


def _of(node: Node, value: Any, path: str, below: str) -> Iterator[Mention]:
    """What a value names; `below` is its path below the pod template, empty outside of one."""
    match node:
        case Named(kind=kind, separator=separator) if isinstance(value, str):
            for name in value.split(separator) if separator else [value]:
                yield Mention(kind, path, name)
        case Place() if isinstance(value, str):
            yield from _of_place(value, path)
        case Urls():
            yield from _of_options(value, path, node.depth)
        case Keys(kind=kind) if isinstance(value, dict):
            for key in value:
                yield Mention(kind, path, key)
        case Only(values=values) if any(type(value) is type(one) and value == one for one in values):
            pass
        case Items(item=item) if isinstance(value, list):
            for part in value:
                yield from _of(item, part, path, below)
        case Fields() if isinstance(value, dict):
            yield from _of_fields(node, value, path, below)
        case Free():
            pass
        case _ if below:
            yield Mention(Kind.POD_TEMPLATE_FIELDS, path, below)


def _of_fields(node: Fields, value: Mapping[str, Any], path: str, below: str) -> Iterator[Mention]:
    for field, inner in node.fields.items():
        where = f"{path}.{field}"
        if field in value:
            yield from _of(inner, value[field], where, _joined(below, field) if node.template else "")
        elif isinstance(inner, Named) and inner.absent:
            yield Mention(inner.kind, where, inner.absent)
    if node.template:
        for field in value.keys() - node.fields.keys():
            yield Mention(Kind.POD_TEMPLATE_FIELDS, f"{path}.{field}", _joined(below, field))


def _joined(below: str, field: str) -> str:
    return f"{below}.{field}" if below else field


def _of_place(uri: str, path: str) -> Iterator[Mention]:
    scheme, found, rest = uri.partition("://")
    if found and scheme == "pvc":
        yield Mention(Kind.CLAIMS, path, rest.partition("/")[0])
    elif found and scheme != "file":
        yield Mention(Kind.SERVERS, path, uri)


def _of_options(value: Any, path: str, depth: int) -> Iterator[Mention]:
    if isinstance(value, str) and value.startswith(("http://", "https://")):
        yield Mention(Kind.SERVERS, path, value)
    elif isinstance(value, dict | list):
        parts = value.values() if isinstance(value, dict) else value
        if depth == 0:
            yield Mention(Kind.SERVERS, path, TOO_DEEP)
        else:
            for part in parts:
                yield from _of_options(part, path, depth - 1)
