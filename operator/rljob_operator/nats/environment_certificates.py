"""Certificates by which a job's environment pods and its rollout workers know each other.

An authority for each job, of keys that follow from the operator's signing seed and the job's uid, as its NATS
credentials do (`certificates`): every run makes the same files, nothing is stored, and what belongs to another job
proves nothing. They do not expire; another generation of the job's credentials revokes them, as another signing seed
does.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from cryptography.x509.oid import ExtendedKeyUsageOID

from rljob_core import worker_protocol
from rljob_operator.nats.certificates import authority_certificate, derived_key, signed_certificate
from rljob_operator.nats.credentials import JobKeys

_PURPOSE = b"rljob-episodes"
_AUTHORITY, _WORKER = "rljob-environment", "rollout"


@dataclass(frozen=True, slots=True)
class EnvironmentKeys:
    """What one end has, as files by their names.

    Attributes:
        pods: of the environment pods; with them nobody can connect to a pod.
        workers: of the rollout workers; with them nobody can pass for a pod.
    """

    pods: dict[str, str]
    workers: dict[str, str]


@lru_cache(maxsize=64)  # one reconcile needs them several times
def environment_keys(keys: JobKeys) -> EnvironmentKeys:
    """The keys of both ends of a job's environment connections."""
    labels = (keys.namespace, keys.job, keys.uid, str(keys.generation))
    seed = keys.issuer.signing_seed
    signing = derived_key(seed, _PURPOSE, *labels, "authority")
    authority = authority_certificate(signing, _AUTHORITY)
    ends = {
        worker_protocol.ENVIRONMENT_HOST: ExtendedKeyUsageOID.SERVER_AUTH,
        _WORKER: ExtendedKeyUsageOID.CLIENT_AUTH,
    }
    pods, workers = (
        _files(
            authority,
            *signed_certificate(
                derived_key(seed, _PURPOSE, *labels, name),
                name,
                [name],
                [usage],
                signing=signing,
                issuer=_AUTHORITY,
            ),
        )
        for name, usage in ends.items()
    )
    return EnvironmentKeys(pods, workers)


def _files(authority: str, certificate: str, key: str) -> dict[str, str]:
    return {
        worker_protocol.ENVIRONMENT_AUTHORITY: authority,
        worker_protocol.ENVIRONMENT_CERTIFICATE: certificate,
        worker_protocol.ENVIRONMENT_KEY: key,
    }
