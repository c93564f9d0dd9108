"""What an operator's pod is told by its environment."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from rljob_core.errors import SpecError
from rljob_operator.worker_pod import Site


@dataclass(frozen=True, slots=True)
class Settings:
    """How this operator runs.

    Attributes:
        namespaces: that it watches; empty for all of them.
        nats_credentials: path of its own credentials; None where the server asks for none.
        probe_port: of `/healthz`, `/readyz` and `/metrics`; 0 for any free one.
        workers: jobs reconciled at once.
    """

    site: Site
    namespaces: tuple[str, ...] = ()
    nats_credentials: str | None = None
    probe_host: str = "0.0.0.0"  # noqa: S104 kubelet asks from outside the pod
    probe_port: int = 8080
    workers: int = 16
    log_level: str = "INFO"
    log_format: str = "json"

    @classmethod
    def read(cls, environment: Mapping[str, str] = os.environ) -> Settings:
        """The settings that environment variables give.

        Raises:
            SpecError: one is missing or wrong.
        """

        def number(name: str, default: int) -> int:
            text = environment.get(name, str(default))
            if not text.isdecimal():
                raise SpecError(name, f"{text!r} is not a number: write one, such as {default}")
            return int(text)

        url = environment.get("RLJOB_NATS_URL")
        if not url:
            raise SpecError("RLJOB_NATS_URL", "is not set: give the NATS server's address, nats://host:4222")
        return cls(
            site=Site(
                nats_url=url,
                weights_uri="",
                checkpoint_uri="",
                trainer_log_uri="",
                image=environment.get("RLJOB_WORKER_IMAGE", "rljob-worker"),
            ),
            namespaces=tuple(
                n.strip() for n in environment.get("WATCH_NAMESPACES", "").split(",") if n.strip()
            ),
            nats_credentials=environment.get("RLJOB_NATS_CREDENTIALS") or None,
            probe_host=environment.get("RLJOB_PROBE_HOST", "0.0.0.0"),  # noqa: S104
            probe_port=number("RLJOB_PROBE_PORT", 8080),
            workers=number("RLJOB_WORKERS", 16),
            log_level=environment.get("RLJOB_LOG_LEVEL", "INFO"),
            log_format=environment.get("RLJOB_LOG_FORMAT", "json"),
        )
