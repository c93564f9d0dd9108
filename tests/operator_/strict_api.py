"""An API server asked from this very process, strictly, as kubectl asks it: a question costs no process."""

from __future__ import annotations

import base64
import http.client
import json
import re
import ssl
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlencode, urlsplit

Object = dict[str, Any]
ROOT = "/apis/rljob.dev/v1alpha1"


class ApiRefusal(Exception):
    """The API server's answer.

    Attributes:
        reasons: field and message of each; the field is empty where the server names none.
    """

    def __init__(self, status: Object) -> None:
        super().__init__(status["message"])
        unknown = re.findall(r'(unknown field) "(.*?)"', status["message"])
        causes = status.get("details", {}).get("causes", ())
        self.reasons = [(field, words) for words, field in unknown]
        self.reasons += [(cause.get("field", ""), cause["message"]) for cause in causes]


def client_context(kubeconfig: Path) -> tuple[str, ssl.SSLContext]:
    """Where the API server of a kubeconfig is, and what proves who is who.

    Args:
        kubeconfig: as the harness writes it: JSON, with all certificates inside.
    """
    config = json.loads(kubeconfig.read_text())
    cluster, user = config["clusters"][0]["cluster"], config["users"][0]["user"]
    authority = base64.b64decode(cluster["certificate-authority-data"]).decode()
    trust = ssl.create_default_context(cadata=authority)
    with tempfile.TemporaryDirectory() as folder:  # the ssl module reads certificates from files alone
        pair = [Path(folder) / "client.crt", Path(folder) / "client.key"]
        for file, field in zip(pair, ("client-certificate-data", "client-key-data"), strict=True):
            file.write_bytes(base64.b64decode(user[field]))
        trust.load_cert_chain(*pair)
    return cluster["server"], trust


class StrictApi:
    """RLJobs and RolloutPools of one namespace, and the cluster's Sites.

    Args:
        kubeconfig: as the harness writes it: JSON, with all certificates inside.
    """

    def __init__(self, kubeconfig: Path, namespace: str) -> None:
        address, trust = client_context(kubeconfig)
        server = urlsplit(address)
        self._connection = http.client.HTTPSConnection(server.netloc, timeout=600, context=trust)
        self._namespace = namespace

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def create(self, manifest: Object, *, dry_run: bool = True) -> Object:
        return self._ask("POST", manifest["kind"], "", manifest, dry_run=dry_run)

    def replace(self, manifest: Object) -> Object:
        """As `kubectl replace` would; nothing is changed."""
        return self._ask("PUT", manifest["kind"], manifest["metadata"]["name"], manifest)

    def patch(self, kind: str, name: str, changes: Object) -> Object:
        """As `kubectl patch --type=merge` would; nothing is changed."""
        return self._ask("PATCH", kind, name, changes, "application/merge-patch+json")

    def _ask(
        self,
        verb: str,
        kind: str,
        name: str,
        body: Mapping[str, Any],
        content_type: str = "application/json",
        *,
        dry_run: bool = True,
    ) -> Object:
        query = urlencode({"fieldValidation": "Strict", **({"dryRun": "All"} if dry_run else {})})
        place = ROOT if kind == "Site" else f"{ROOT}/namespaces/{self._namespace}"
        path = f"{place}/{kind.lower()}s/{name}".rstrip("/")
        self._connection.request(
            verb, f"{path}?{query}", json.dumps(body), headers={"Content-Type": content_type}
        )
        response = self._connection.getresponse()
        answer: Object = json.loads(response.read())
        self._connection.close()  # the server closes one that rests for a while; the next question opens another
        if response.status >= 400:
            raise ApiRefusal(answer)
        return answer
