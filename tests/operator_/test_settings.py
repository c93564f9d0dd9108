"""The operator reads its settings from environment variables, and refuses invalid ones."""

from __future__ import annotations

import itertools
import subprocess
import sys
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest

from rljob_core.errors import SpecError
from rljob_operator.nats.accounts import Seeds, issuer
from rljob_operator.nats.credentials import operator_credentials
from rljob_operator.settings import Settings

URL = {"RLJOB_NATS_URL": "nats://nats:4222"}
_NUMBERS = itertools.count(1)
ISSUER = issuer(Seeds.complete({}, lambda size: bytes([next(_NUMBERS)]) * size))


def test_an_address_is_enough() -> None:
    settings = Settings.read(URL)
    assert settings == Settings(defaults=settings.defaults)
    assert settings.defaults.nats_url == "nats://nats:4222"
    assert (settings.defaults.weights_uri, settings.defaults.checkpoint_uri) == ("", "")
    assert (settings.defaults.issuer, settings.defaults.template, settings.defaults.per_job) == (
        None,
        {},
        True,
    )


def test_the_port_of_workers_metrics() -> None:
    assert Settings.read(URL).defaults.metrics_port == 9464
    assert Settings.read({**URL, "RLJOB_WORKER_METRICS_PORT": "0"}).defaults.metrics_port == 0
    with pytest.raises(
        SpecError, match="RLJOB_WORKER_METRICS_PORT: 70000 must be at least 0 and at most 65535"
    ):
        Settings.read({**URL, "RLJOB_WORKER_METRICS_PORT": "70000"})


def test_the_namespaces_of_scrapers() -> None:
    assert Settings.read(URL).defaults.scraper_namespaces == ()
    read = Settings.read({**URL, "RLJOB_SCRAPER_NAMESPACES": "monitoring, ops"})
    assert read.defaults.scraper_namespaces == ("monitoring", "ops")
    with pytest.raises(SpecError, match="RLJOB_SCRAPER_NAMESPACES: 'My_Ns' is not the name of a namespace"):
        Settings.read({**URL, "RLJOB_SCRAPER_NAMESPACES": "My_Ns"})


def test_the_rules_for_jobs_are_in_a_folder() -> None:
    assert Settings.read(URL).job_rules is None
    assert Settings.read({**URL, "RLJOB_JOB_RULES": "/rules"}).job_rules == "/rules"


@pytest.mark.parametrize("storage", ["pvc://shared", "pvc://shared/", "pvc://shared//"])
def test_storage_is_a_folder_for_each_purpose(storage: str) -> None:
    defaults = Settings.read({**URL, "RLJOB_STORAGE": storage}).defaults
    assert (defaults.weights_uri, defaults.checkpoint_uri) == (
        "pvc://shared/weights",
        "pvc://shared/checkpoints",
    )
    assert defaults.trainer_log_uri == "", "beside the checkpoints"


@pytest.mark.parametrize(
    ("variable", "value", "attribute", "read"),
    [
        ("WATCH_NAMESPACES", "a, b ,,c", "namespaces", ("a", "b", "c")),
        ("WATCH_NAMESPACES", "", "namespaces", ()),
        ("RLJOB_SITE", "east-1", "site", "east-1"),
        ("RLJOB_SITE", "", "site", ""),
        ("RLJOB_NOTICE_TAINTS", "aws/spot-itn, gke/ending", "notice_taints", ("aws/spot-itn", "gke/ending")),
        ("RLJOB_NOTICE_TAINTS", "", "notice_taints", ()),
        ("RLJOB_PROBE_PORT", "0", "probe_port", 0),
        ("RLJOB_PROBE_HOST", "127.0.0.1", "probe_host", "127.0.0.1"),
        ("RLJOB_WORKERS", "3", "workers", 3),
        ("RLJOB_LOG_LEVEL", "DEBUG", "log_level", "DEBUG"),
        ("RLJOB_LOG_FORMAT", "text", "log_format", "text"),
        ("RLJOB_NATS_CREDENTIALS_HOURS", "24", "defaults.token_seconds", 86_400),
        ("RLJOB_GANG_SECONDS", "500", "defaults.gang_seconds", 500),
        ("RLJOB_NATS_CREDENTIALS", "/x/user.creds", "nats_credentials", "/x/user.creds"),
        ("RLJOB_NATS_CREDENTIALS", "", "nats_credentials", None),
    ],
)
def test_what_a_variable_sets(variable: str, value: str, attribute: str, read: Any) -> None:
    assert attrgetter(attribute)(Settings.read({**URL, variable: value})) == read


@pytest.mark.parametrize(
    ("environment", "path", "words"),
    [
        ({}, "RLJOB_NATS_URL", "is not set"),
        ({"RLJOB_NATS_URL": ""}, "RLJOB_NATS_URL", "is not set"),
        (
            {"RLJOB_NATS_URL": "tls://nats:4222"},
            "RLJOB_NATS_CA",
            "is not set, and RLJOB_NATS_URL is tls://nats",
        ),
        (
            {"RLJOB_NATS_URL": "nats://a:4222,tls://b:4222"},
            "RLJOB_NATS_URL",
            "must have the same scheme before each server",
        ),
        ({**URL, "RLJOB_WORKERS": "many"}, "RLJOB_WORKERS", "'many' is not a number: write one, such as 8"),
        ({**URL, "RLJOB_WORKERS": "-1"}, "RLJOB_WORKERS", "is not a number"),
        ({**URL, "RLJOB_WORKERS": "0"}, "RLJOB_WORKERS", "at least 1"),
        ({**URL, "RLJOB_GANG_SECONDS": "0"}, "RLJOB_GANG_SECONDS", "at least 1"),
        (
            {**URL, "RLJOB_GANG_SECONDS": "501"},
            "RLJOB_GANG_SECONDS",
            "at most 500: ranks that wait for others",
        ),
        ({**URL, "RLJOB_NATS_CREDENTIALS_HOURS": "0"}, "RLJOB_NATS_CREDENTIALS_HOURS", "at least 1"),
        ({**URL, "RLJOB_SITE": "hub"}, "RLJOB_SITE", "is not the name of a Site"),
        ({**URL, "RLJOB_SITE": "East"}, "RLJOB_SITE", "is not the name of a Site"),
        ({**URL, "RLJOB_PROBE_PORT": ""}, "RLJOB_PROBE_PORT", "is not a number"),
        ({**URL, "RLJOB_PROBE_PORT": "70000"}, "RLJOB_PROBE_PORT", "at most 65535"),
        ({**URL, "RLJOB_LOG_LEVEL": "LOUD"}, "RLJOB_LOG_LEVEL", "must be one of INFO, DEBUG, WARNING"),
    ],
)
def test_what_is_wrong_is_named(environment: dict[str, str], path: str, words: str) -> None:
    with pytest.raises(SpecError) as caught:
        Settings.read(environment)
    assert caught.value.path == path
    assert words in str(caught.value)


# ---------------------------------------------------------------------------------------------- files


def read(folder: Path, variable: str, text: str | bytes) -> Settings:
    file = folder / "file"
    file.write_bytes(text.encode() if isinstance(text, str) else text)
    return Settings.read({**URL, variable: str(file)})


def test_an_issuer_is_what_its_secret_says(tmp_path: Path) -> None:
    settings = read(tmp_path, "RLJOB_NATS_ISSUER", ISSUER.text())
    assert settings.defaults.issuer == ISSUER
    assert settings.nats_credentials == operator_credentials(ISSUER)
    assert settings.nats_authority == ISSUER.trusted


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("no JSON", id="no JSON"),
        pytest.param("[]", id="a list"),
        pytest.param('"x"', id="a text"),
        pytest.param("{}", id="nothing in it"),
        pytest.param('{"signing_seed": "SA", "other": 1}', id="another field"),
        pytest.param(ISSUER.text().replace(ISSUER.signing_seed, "SAAB"), id="no seed"),
        pytest.param(b"\xff\xfe", id="no text"),
    ],
)
def test_an_issuer_that_is_none_is_refused_at_once(tmp_path: Path, text: str | bytes) -> None:
    with pytest.raises(SpecError) as caught:
        read(tmp_path, "RLJOB_NATS_ISSUER", text)
    assert caught.value.path == "RLJOB_NATS_ISSUER"


def test_a_missing_issuer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="cannot be read"):
        Settings.read({**URL, "RLJOB_NATS_ISSUER": str(tmp_path / "gone")})


def test_a_worker_template_is_laid_under_all_pods(tmp_path: Path) -> None:
    text = "spec:\n  nodeSelector: {gpu: l40s}\n  containers:\n  - name: worker\n    imagePullPolicy: Never\n"
    defaults = read(tmp_path, "RLJOB_WORKER_TEMPLATE", text).defaults
    assert defaults.template["spec"]["nodeSelector"] == {"gpu": "l40s"}


@pytest.mark.parametrize("text", ["", "# nothing\n", "{}"])
def test_a_worker_template_may_be_empty(tmp_path: Path, text: str) -> None:
    assert read(tmp_path, "RLJOB_WORKER_TEMPLATE", text).defaults.template == {}
    assert Settings.read({**URL, "RLJOB_WORKER_TEMPLATE": str(tmp_path / "gone")}).defaults.template == {}


def test_egress_rules_hold_for_all_workers(tmp_path: Path) -> None:
    text = "- to: [{ipBlock: {cidr: 10.9.0.0/16}}]\n  ports: [{port: 3128}]\n"
    (rule,) = read(tmp_path, "RLJOB_WORKER_EGRESS", text).defaults.egress
    assert rule == {"to": [{"ipBlock": {"cidr": "10.9.0.0/16"}}], "ports": [{"port": 3128}]}
    assert read(tmp_path, "RLJOB_WORKER_EGRESS", "# nothing\n").defaults.egress == ()
    assert Settings.read({**URL, "RLJOB_WORKER_EGRESS": str(tmp_path / "gone")}).defaults.egress == ()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("- [", "is not YAML"),
        ("to: []", "is not a list"),
        ("- 3", "is not a list"),
        ("- {from: []}", "is not a list"),
    ],
)
def test_egress_rules_that_are_none_are_refused(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(SpecError, match=words) as caught:
        read(tmp_path, "RLJOB_WORKER_EGRESS", text)
    assert caught.value.path == "RLJOB_WORKER_EGRESS"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a: [", "is not YAML"),
        ("- a", "is not a pod template"),
        ("text", "is not a pod template"),
        ("containers: []", "is not a pod template"),
        ("apiVersion: v1\nkind: Pod\nspec: {}", "is not a pod template"),
        ("spec: 3", "spec"),
        ("spec: {containers: 3}", "containers"),
        ("spec: {containers: [3]}", "containers"),
        ("spec: {containers: [{image: x}]}", "name"),
        ("spec: {tolerations: 3}", "tolerations"),
        ("metadata: []", "metadata"),
    ],
)
def test_a_worker_template_that_fits_no_pod_is_refused_when_the_operator_starts(
    tmp_path: Path, text: str, words: str
) -> None:
    with pytest.raises(SpecError, match=words) as caught:
        read(tmp_path, "RLJOB_WORKER_TEMPLATE", text)
    assert caught.value.path.startswith("RLJOB_WORKER_TEMPLATE")


def test_an_operator_without_an_issuer_loads_nothing_that_signs_certificates() -> None:
    program = f"""
import sys
from rljob_operator.main import Settings
Settings.read({URL})
print([name for name in sys.modules if name == "cryptography"])
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
