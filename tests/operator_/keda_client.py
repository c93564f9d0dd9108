"""What KEDA does with an external scaler, by stubs that are compiled from the protocol."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
from grpc_tools import protoc

_PROTOCOL = Path(__file__).with_name("externalscaler.proto")


def compiled(folder: Path) -> tuple[Any, Any]:
    """The modules of the protocol's messages and stubs."""
    arguments = [
        f"-I{_PROTOCOL.parent}",
        f"--python_out={folder}",
        f"--grpc_python_out={folder}",
        str(_PROTOCOL),
    ]
    assert protoc.main(["protoc", *arguments]) == 0
    sys.path.insert(0, str(folder))
    try:
        import externalscaler_pb2
        import externalscaler_pb2_grpc
    finally:
        sys.path.remove(str(folder))
    return externalscaler_pb2, externalscaler_pb2_grpc


class Keda:
    """A ScaledObject with one trigger of type `external`.

    Args:
        folder: for the compiled protocol.
        address: of the scaler.
        namespace, name: of the ScaledObject.
        metadata: of its trigger.
    """

    def __init__(self, folder: Path, address: str, namespace: str, name: str, **metadata: str) -> None:
        self._messages, stubs = compiled(folder)
        self._channel = grpc.insecure_channel(address)
        self._scaler = stubs.ExternalScalerStub(self._channel)
        self._object = self._messages.ScaledObjectRef(
            name=name, namespace=namespace, scalerMetadata={"scalerAddress": address, **metadata}
        )

    def __enter__(self) -> Keda:
        return self

    def __exit__(self, *_: object) -> None:
        self._channel.close()

    def is_active(self) -> bool:
        """Whether there is to be any replica."""
        return bool(self._scaler.IsActive(self._object, timeout=30).result)

    def next_activity(self) -> bool:
        """What the stream of activity says first."""
        with self.activity() as stream:
            return next(stream)

    @contextmanager
    def activity(self) -> Iterator[Iterator[bool]]:
        """The stream of activity, which is open meanwhile."""
        stream = self._scaler.StreamIsActive(self._object, timeout=30)
        try:
            yield (bool(said.result) for said in stream)
        finally:
            stream.cancel()

    def spec(self) -> dict[str, Any]:
        """The metric of the HorizontalPodAutoscaler that KEDA makes."""
        (spec,) = self._scaler.GetMetricSpec(self._object, timeout=30).metricSpecs
        target = spec.targetSizeFloat or spec.targetSize
        return {
            "type": "External",
            "external": {
                "metric": {"name": f"s0-{spec.metricName}"},
                "target": {"type": "AverageValue", "averageValue": f"{target * 1000:.0f}m"},
            },
        }

    def metric(self, name: str) -> float:
        """What KEDA's metrics API says of such a metric."""
        request = self._messages.GetMetricsRequest(
            scaledObjectRef=self._object, metricName=name.removeprefix("s0-")
        )
        (value,) = self._scaler.GetMetrics(request, timeout=30).metricValues
        return float(value.metricValueFloat or value.metricValue)
