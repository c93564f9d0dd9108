"""The weight transports that a job may name in `spec.weights.transport`, and what each needs of the specification.

To add one: add its name to `WeightTransportName` and its row to `WEIGHT_TRANSPORTS`, write the module that the row
names, and give it to the fixture `place` of `tests/contract/test_weight_store.py`. The API's schema, its rules and the
operator follow from the row.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

WeightTransportName = Literal["Files", "Nats"]


@dataclass(frozen=True, slots=True)
class WeightTransport:
    """One row of the registry.

    Attributes:
        summary: where this transport keeps weights and when to choose it; a sentence for the API's description.
        opened_by: `module:function` that opens it from a `rljob_runtime.weights.transport.JobStorage`. It is a string,
            so that the core and the operator import neither the module nor the libraries that it needs.
        keeps_them_in: the place that needs no `spec.weights.uri`, for messages; None where the transport keeps weights
            at that URI, which every pod of the trainer and of the engines must reach.
    """

    summary: str
    opened_by: str
    keeps_them_in: str | None = None

    @property
    def needs_uri(self) -> bool:
        """Whether weights are kept at `spec.weights.uri`, or at the operator's URI where the job gives none."""
        return self.keeps_them_in is None


WEIGHT_TRANSPORTS: dict[WeightTransportName, WeightTransport] = {
    "Files": WeightTransport(
        "a folder or an object store that trainer and engines share", "rljob_runtime.weights.files:open_files"
    ),
    "Nats": WeightTransport(
        "the server that carries the job's streams, for small models, or deltas between sites",
        "rljob_runtime.weights.nats:open_messages",
        keeps_them_in="the job's streams",
    ),
}
