"""What an RLJob names, and where: the one table that the operator's refusal and the admission policy are made from.

Of a pod template, `POD_TEMPLATE` lists the fields that name something and those that are harmless. All others count as
names themselves (`MentionKind.POD_TEMPLATE_FIELDS`): host paths, the host's network, whatever Kubernetes may add one
day; and so do values that the table does not list, and nulls, which would remove what the operator or the platform has
set. So what nobody has thought of needs the platform's permission, too.
`job_mentions` reads a job by this table; `crd.job_policy` writes it as expressions of a ValidatingAdmissionPolicy.
"""

from __future__ import annotations

from collections.abc import Mapping

from rljob_operator.decisions.named_fields import (
    FREE,
    Items,
    Keys,
    MentionKind,
    Named,
    Node,
    Only,
    StorageUri,
    Urls,
    fields,
    template,
)

_OFF, _ON = Only((False,)), Only((True,))
_SECRET = template("key", "optional", "items", "defaultMode", name=Named(MentionKind.SECRETS))
_CONFIG_MAP = template("key", "optional", "items", "defaultMode", name=Named(MentionKind.CONFIG_MAPS))
_HANDLERS: Mapping[str, Node] = {
    "exec": FREE,
    "grpc": FREE,
    "sleep": FREE,
    "httpGet": template("path", "port", "scheme", "httpHeaders"),
    "tcpSocket": template("port"),
}
_PROBE = template(
    "initialDelaySeconds", "timeoutSeconds", "periodSeconds", "successThreshold", "failureThreshold",
    "terminationGracePeriodSeconds", **_HANDLERS,
)  # fmt: skip
_HANDLER = template(**_HANDLERS)
_RESOURCES = template("limits", "requests", claims=Items(template("name", "request")))
_SECCOMP = template(type=Only(("RuntimeDefault",)))
_CONTAINER = template(
    "name", "command", "args", "workingDir", "volumeMounts", "volumeDevices", "imagePullPolicy", "restartPolicy",
    "resizePolicy", "terminationMessagePath", "terminationMessagePolicy", "stdin", "stdinOnce", "tty",
    image=Named(MentionKind.IMAGES),
    env=Items(
        template(
            "name", "value",
            valueFrom=template(
                "fieldRef", "resourceFieldRef", secretKeyRef=_SECRET, configMapKeyRef=_CONFIG_MAP
            ),
        )
    ),
    envFrom=Items(template("prefix", secretRef=_SECRET, configMapRef=_CONFIG_MAP)),
    ports=Items(template("name", "containerPort", "protocol")),
    resources=_RESOURCES,
    livenessProbe=_PROBE,
    readinessProbe=_PROBE,
    startupProbe=_PROBE,
    lifecycle=template(postStart=_HANDLER, preStop=_HANDLER),
    securityContext=template(
        "runAsUser", "runAsGroup", "readOnlyRootFilesystem",
        privileged=_OFF,
        allowPrivilegeEscalation=_OFF,
        runAsNonRoot=_ON,
        capabilities=template(drop=Only((["ALL"],))),
        seccompProfile=_SECCOMP,
    ),
)  # fmt: skip
_VOLUME = template(
    "name", "emptyDir", "downwardAPI",
    configMap=_CONFIG_MAP,
    secret=template("items", "defaultMode", "optional", secretName=Named(MentionKind.SECRETS)),
    persistentVolumeClaim=template("readOnly", claimName=Named(MentionKind.CLAIMS)),
    projected=template(
        "defaultMode",
        sources=Items(template("downwardAPI", secret=_SECRET, configMap=_CONFIG_MAP)),
    ),
)  # fmt: skip
_NODE_TERM = template(
    matchExpressions=Items(template("operator", "values", key=Named(MentionKind.NODE_LABELS)))
)
_POD_TERM = template("labelSelector", "topologyKey", "matchLabelKeys", "mismatchLabelKeys")
_NEAR_PODS = template(
    requiredDuringSchedulingIgnoredDuringExecution=Items(_POD_TERM),
    preferredDuringSchedulingIgnoredDuringExecution=Items(template("weight", podAffinityTerm=_POD_TERM)),
)
POD_TEMPLATE = template(
    metadata=template(labels=Keys(MentionKind.POD_METADATA), annotations=Keys(MentionKind.POD_METADATA)),
    spec=template(
        "topologySpreadConstraints", "terminationGracePeriodSeconds", "activeDeadlineSeconds", "hostAliases",
        "enableServiceLinks", "restartPolicy", "hostname", "subdomain",
        containers=Items(_CONTAINER),
        initContainers=Items(_CONTAINER),
        volumes=Items(_VOLUME),
        imagePullSecrets=Items(template(name=Named(MentionKind.SECRETS))),
        serviceAccountName=Named(MentionKind.SERVICE_ACCOUNTS),
        serviceAccount=Named(MentionKind.SERVICE_ACCOUNTS),
        automountServiceAccountToken=_OFF,
        priorityClassName=Named(MentionKind.PRIORITY_CLASSES),
        runtimeClassName=Named(MentionKind.RUNTIME_CLASSES),
        resourceClaims=Items(
            template(
                "name",
                resourceClaimName=Named(MentionKind.DEVICE_CLAIMS),
                resourceClaimTemplateName=Named(MentionKind.DEVICE_CLAIMS),
            )
        ),
        nodeSelector=Keys(MentionKind.NODE_LABELS),
        affinity=template(
            nodeAffinity=template(
                requiredDuringSchedulingIgnoredDuringExecution=template(nodeSelectorTerms=Items(_NODE_TERM)),
                preferredDuringSchedulingIgnoredDuringExecution=Items(template("weight", preference=_NODE_TERM)),
            ),
            podAffinity=_NEAR_PODS,
            podAntiAffinity=_NEAR_PODS,
        ),
        tolerations=Items(
            template(
                "operator", "value", "effect", "tolerationSeconds",
                key=Named(MentionKind.TAINTS, absent="(every taint)"),
            )
        ),
        hostNetwork=_OFF,
        hostPID=_OFF,
        hostIPC=_OFF,
        hostUsers=_OFF,
        shareProcessNamespace=_OFF,
        resources=_RESOURCES,
        securityContext=template(
            "runAsUser", "runAsGroup", "fsGroup", "fsGroupChangePolicy", "supplementalGroups",
            "supplementalGroupsPolicy",
            runAsNonRoot=_ON,
            seccompProfile=_SECCOMP,
        ),
    ),
)  # fmt: skip

_DATA = fields("source", "options", "promptTemplate", "chatTemplateKwargs", dataset=StorageUri())
SPEC = fields(
    "managedBy",  # who else reconciles the job, with rights of its own
    image=Named(MentionKind.IMAGES),
    imagePullSecrets=Items(Named(MentionKind.SECRETS)),
    model=fields(uri=StorageUri(), cache=StorageUri(), credentialsSecret=Named(MentionKind.SECRETS)),
    data=_DATA,
    evaluation=fields(data=_DATA, sets=Items(fields("name", data=_DATA))),
    # Functions, losses, engines, environments and backends are code of the image, and run in the job's own pods.
    reward=fields(functions=Items(FREE), perGroup=Items(FREE), template=POD_TEMPLATE),
    algorithm=fields("loss"),
    rollout=fields(
        engine=fields("name", options=Urls()),
        lengthPredictor=fields("name", "options"),
        environment=fields("name", "options", image=Named(MentionKind.IMAGES), template=POD_TEMPLATE),
        sampling=fields(stop=Items(FREE)),
        autoscaling=fields("budgetPerHour"),
        pools=Items(
            fields("name", "site", "costPerHour", engine=fields(options=Urls()), template=POD_TEMPLATE)
        ),
    ),
    trainer=fields("backend", "options", checkpoint=fields(uri=StorageUri()), template=POD_TEMPLATE),
    coordinator=fields(template=POD_TEMPLATE),
    weights=fields(uri=StorageUri()),
    # Trackers' pods reach servers that the options need not name: the name of a tracker counts as theirs.
    trackers=Items(
        fields(
            name=Named(MentionKind.SERVERS),
            image=Named(MentionKind.IMAGES),
            options=Urls(claims=True),
            credentialsSecret=Named(MentionKind.SECRETS),
        )
    ),
    nats=fields(url=Named(MentionKind.SERVERS, separator=","), credentialsSecret=Named(MentionKind.SECRETS)),
    networking=fields(
        egress=Items(fields(cidr=Named(MentionKind.SERVERS), namespace=Named(MentionKind.SERVERS)))
    ),
)
"""The spec of an RLJob: every string and every free-form map of its schema. Numbers and enumerations name nothing."""
