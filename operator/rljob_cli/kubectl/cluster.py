"""A cluster as the person sees it whose kubeconfig is used: jobs, their pods and logs, and ways to ports of pods."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from kubernetes import config
from kubernetes.client import ApiClient, CoreV1Api
from kubernetes.stream import portforward
from kubernetes.stream.ws_client import PortForward

from rljob_cli.kubectl.refusals import ABSENT, ClusterConflict, ClusterRefused, JobGone, in_words, refusal
from rljob_core.errors import SpecError
from rljob_core.spec import GROUP
from rljob_operator.cluster.port import Manifest, controller_uid
from rljob_operator.names import LABEL_JOB, LABEL_ROLE

_JOBS = f"/apis/{GROUP}/v1alpha1"
_SECONDS = 30.0
_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?", re.ASCII)


@dataclass(frozen=True, slots=True)
class ClusterChoice:
    """Which cluster and namespace, as kubectl's own options name them; empty for what the kubeconfig says."""

    namespace: str = ""
    context: str = ""
    kubeconfig: str = ""


class UserCluster:
    """One namespace of a cluster. Its methods block; all of them raise `ClusterRefused`.

    Args:
        choice: of the cluster and the namespace.

    Raises:
        SpecError: the kubeconfig cannot be read, or has no such context.
    """

    def __init__(self, choice: ClusterChoice) -> None:
        file, context = choice.kubeconfig or None, choice.context or None
        try:
            contexts, active = config.list_kube_config_contexts(config_file=file)
            chosen = active if context is None else next((c for c in contexts if c["name"] == context), None)
            if chosen is None:
                known = ", ".join(found["name"] for found in contexts) or "none"
                raise SpecError("--context", f"the kubeconfig has no context {context} (it has: {known})")
            self._client: ApiClient = config.new_client_from_config(config_file=file, context=context)
        except SpecError:
            raise
        except Exception as error:  # the client raises whatever it runs into in a file that is no kubeconfig
            words = " ".join(str(error).split()) or type(error).__name__
            raise SpecError("--kubeconfig", f"the kubeconfig cannot be read: {words}") from error
        self.namespace: str = choice.namespace or chosen["context"].get("namespace") or "default"

    # --------------------------------------------------------------------------------------------- jobs

    def job(self, name: str) -> Manifest:
        """The RLJob of that name.

        Raises:
            JobGone: there is none.
            SpecError: no RLJob can have that name.
        """
        check_name(name)
        found = self._found(f"{self._jobs}/{name}", f"get the RLJob {name}")
        if found is None:
            raise JobGone(name, f"there is no such RLJob in namespace {self.namespace} {self._known()}")
        return found

    def _known(self) -> str:
        known = ""
        with suppress(ClusterRefused):  # who may get one by name may not be allowed to list them
            known = ", ".join(self.job_names()) or "none"
        return f"(RLJobs there: {known}): write one of these, or --namespace" if known else ""

    def job_names(self) -> list[str]:
        """Names of all jobs."""
        found = self._json("GET", self._jobs, "list RLJobs")
        return sorted(job["metadata"]["name"] for job in found["items"])

    def patch_job(self, name: str, changes: Mapping[str, Any]) -> Manifest:
        """Merge changes into an RLJob, and return it.

        Raises:
            SpecError: the API server refuses the change.
            ClusterConflict: the changes name another version of the job.
        """
        return self._json("PATCH", f"{self._jobs}/{name}", f"change the RLJob {name}", body=changes)

    def pools(self, job: str) -> list[Manifest]:
        """The RolloutPools of a job."""
        path = f"{_JOBS}/namespaces/{self.namespace}/rolloutpools"
        return self._list(path, "list RolloutPools", labelSelector=f"{LABEL_JOB}={job}")

    @property
    def _jobs(self) -> str:
        return f"{_JOBS}/namespaces/{self.namespace}/rljobs"

    # --------------------------------------------------------------------------------------------- what it has

    def config_map(self, job: str, name: str) -> dict[str, str] | None:
        """The data of a ConfigMap that the operator has made for a job; None if there is none of that name.

        Raises:
            SpecError: it is somebody else's, which could name another server or another pod; or there is no such job.
        """
        path = f"/api/v1/namespaces/{self.namespace}/configmaps/{name}"
        found = self._found(path, f"get the ConfigMap {name}")
        if found is None:
            return None
        if controller_uid(found) != self.job(job)["metadata"]["uid"]:
            raise SpecError(
                job,
                f"the ConfigMap {name} is not this RLJob's, and is not read: the operator makes its own when nothing "
                "else has that name",
            )
        return dict(found.get("data", {}))

    def pods(self, job: str, role: str = "") -> list[Manifest]:
        """The pods of a job, or of one of its roles."""
        selector = f"{LABEL_JOB}={job}" + (f",{LABEL_ROLE}={role}" if role else "")
        return self.selected_pods(self.namespace, selector)

    def selected_pods(self, namespace: str, selector: str) -> list[Manifest]:
        """The pods in a namespace that a label selector selects."""
        path = f"/api/v1/namespaces/{namespace}/pods"
        return self._list(path, f"list pods in namespace {namespace}", labelSelector=selector)

    def pod(self, name: str) -> Manifest | None:
        """A pod of the namespace; None if there is none."""
        return self._found(f"/api/v1/namespaces/{self.namespace}/pods/{name}", f"get the pod {name}")

    def create_pod(self, manifest: Manifest) -> None:
        """Create a pod in the namespace."""
        path = f"/api/v1/namespaces/{self.namespace}/pods"
        self._json("POST", path, f"create the pod {manifest['metadata']['name']}", body=manifest)

    def delete_pod(self, name: str, uid: str) -> None:
        """Delete the pod of the namespace with that uid, if it exists."""
        path = f"/api/v1/namespaces/{self.namespace}/pods/{name}"
        only = {"preconditions": {"uid": uid}}
        with suppress(ClusterConflict):  # another one has the name
            self._request("DELETE", path, f"delete the pod {name}", body=only, absent=True)

    def warnings(self) -> list[Manifest]:
        """The events of the namespace that warn of something."""
        path = f"/api/v1/namespaces/{self.namespace}/events"
        return self._list(path, "list events", fieldSelector="type=Warning")

    def log(
        self, pod: str, container: str, *, follow: bool, previous: bool, tail: int | None
    ) -> Iterator[str]:
        """The lines of a container's log."""
        query = {"container": container, "follow": follow, "previous": previous}
        query |= {} if tail is None else {"tailLines": tail}
        path = f"/api/v1/namespaces/{self.namespace}/pods/{pod}/log"
        answer = self._request("GET", path, f"read the log of pod {pod}", query=query, follow=follow)
        with in_words(f"read the log of pod {pod}"):
            rest = b""
            for part in answer.stream(decode_content=True):
                *lines, rest = (rest + part).split(b"\n")
                yield from (line.decode(errors="replace") for line in lines)
            if rest:
                yield rest.decode(errors="replace")

    # --------------------------------------------------------------------------------------------- ways to pods

    def service(self, namespace: str, name: str) -> Manifest | None:
        """A Service; None if there is none."""
        path = f"/api/v1/namespaces/{namespace}/services/{name}"
        return self._found(path, f"get the Service {name} in namespace {namespace}")

    def forward(self, namespace: str, pod: str, port: int) -> PortForward:
        """A connection to a port of a pod."""
        # `portforward` replaces a method of the client for a moment: each call has one of its own.
        api = CoreV1Api(ApiClient(self._client.configuration))
        with in_words(f"forward a port of pod {pod} in namespace {namespace}"):
            return portforward(api.connect_get_namespaced_pod_portforward, pod, namespace, ports=str(port))

    # --------------------------------------------------------------------------------------------- requests

    def _list(self, path: str, what: str, **query: str) -> list[Manifest]:
        items: list[Manifest] = self._json("GET", path, what, query=query)["items"]
        return items

    def _found(self, path: str, what: str) -> Manifest | None:
        answer = self._request("GET", path, what, absent=True)
        return None if answer is None else json.loads(answer.data)

    def _json(
        self,
        method: str,
        path: str,
        what: str,
        *,
        query: Mapping[str, Any] | None = None,
        body: Mapping[str, Any] | None = None,
    ) -> Manifest:
        found: Manifest = json.loads(self._request(method, path, what, query=query, body=body).data)
        return found

    def _request(
        self,
        method: str,
        path: str,
        what: str,
        *,
        query: Mapping[str, Any] | None = None,
        body: Mapping[str, Any] | None = None,
        absent: bool = False,
        follow: bool = False,
    ) -> Any:
        """The answer, which urllib3 has; None if there is no such object and `absent`."""
        client = self._client
        headers = {"Accept": "application/json"}
        if body is not None:
            headers["Content-Type"] = (
                "application/merge-patch+json" if method == "PATCH" else "application/json"
            )
        texts = {
            name: str(value).lower() if isinstance(value, bool) else value
            for name, value in (query or {}).items()
        }
        url = f"{path}?{urlencode(texts)}" if texts else path
        with in_words(what):
            sent = client.param_serialize(
                method, url, header_params=headers, body=body, auth_settings=["BearerToken"]
            )
            answer = client.call_api(
                *sent, _request_timeout=(_SECONDS, None if follow else _SECONDS)
            ).response
            if answer.status == ABSENT and absent:
                return None
            if answer.status >= 400:
                raise refusal(what, answer.status, answer.data)
            return answer


def check_name(job: str) -> None:
    """Whether an RLJob can have that name, which becomes part of paths.

    Raises:
        SpecError: it cannot.
    """
    if not _NAME.fullmatch(job):
        raise SpecError(job, "cannot be the name of an RLJob: write it as kubectl get rljob lists it")
