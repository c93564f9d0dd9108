"""The registry of weight transports: every name has a row, and every row names a function that opens a transport."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import pytest
from pydantic import ValidationError
from tests.memory.store import MemoryServer, MemoryStore

from rljob_core.spec import WeightsSpec
from rljob_core.weight_transports import WEIGHT_TRANSPORTS, WeightTransportName
from rljob_runtime.weights.create import open_transport


def test_every_name_of_the_api_has_a_row() -> None:
    assert get_args(WeightTransportName) == tuple(WEIGHT_TRANSPORTS)


@pytest.mark.parametrize("name", WEIGHT_TRANSPORTS)
def test_every_transport_opens_and_is_empty(name: WeightTransportName, tmp_path: Path) -> None:
    transport = open_transport(
        name, uri=str(tmp_path / "weights"), connect=lambda: MemoryStore(MemoryServer(), subject="j")
    )
    assert transport.listing() == {}
    transport.close()


@pytest.mark.parametrize("name", WEIGHT_TRANSPORTS)
def test_a_uri_is_refused_where_it_would_not_be_used(name: WeightTransportName) -> None:
    if WEIGHT_TRANSPORTS[name].needs_uri:
        assert WeightsSpec(transport=name, uri="/weights").needs_uri
        return
    with pytest.raises(ValidationError, match="remove uri"):
        WeightsSpec(transport=name, uri="/weights")


def test_a_transport_on_the_streams_says_that_it_needs_them() -> None:
    with pytest.raises(ValueError, match="Nats needs a connection"):
        open_transport("Nats")
