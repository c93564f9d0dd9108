"""`ExternalScaler`: the gRPC server that KEDA asks how many engines a RolloutPool should have.

KEDA lets a HorizontalPodAutoscaler divide the metric by its target, which is 1: so the metric is the number of engines.
Where nothing is decided, or the operator has just started, the call fails, and KEDA leaves the pool as it is.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc
from google.protobuf.message import DecodeError

from rljob_operator.decisions.wanted_engines import NotDecided, NotYetRead
from rljob_operator.keda import protocol

log = logging.getLogger(__name__)

METRIC = "replicas"
_TARGET = 1
_LOOK_SECONDS = 1.0
_LARGEST_REQUEST = 1 << 16
_MOST_CALLS = 4_000  # at once; each trigger of type `external-push` keeps one open
_CONNECTION_SECONDS = 1_800.0
_GRACE_SECONDS = 30.0  # for the calls of a connection that has become too old; KEDA opens its streams again


class ExternalScaler:
    """Answers KEDA.

    Args:
        wanted: returns the engines that the RolloutPool of a namespace and a name should have.
        most_calls: how many are answered at once; others are refused (RESOURCE_EXHAUSTED).
        connection_seconds: after which a connection is closed, so that those of clients that are gone do not pile up.
        grace_seconds: that its calls may take then.
    """

    def __init__(
        self,
        wanted: Callable[[str, str], int],
        *,
        most_calls: int = _MOST_CALLS,
        connection_seconds: float = _CONNECTION_SECONDS,
        grace_seconds: float = _GRACE_SECONDS,
    ) -> None:
        self._wanted = wanted
        self._most_calls = most_calls
        self._connection_seconds = connection_seconds
        self._grace_seconds = grace_seconds
        self._server: Any = None

    async def start(self, address: str) -> int:
        """Serve on `host:port`; returns the port, which is a free one if it was 0."""
        options = [
            ("grpc.so_reuseport", 0),
            ("grpc.max_receive_message_length", _LARGEST_REQUEST),
            ("grpc.max_connection_age_ms", round(self._connection_seconds * 1000)),
            ("grpc.max_connection_age_grace_ms", round(self._grace_seconds * 1000)),
        ]
        self._server = grpc.aio.server(options=options, maximum_concurrent_rpcs=self._most_calls)
        reference, request = protocol.ScaledObjectRef, protocol.GetMetricsRequest
        methods = {
            "IsActive": grpc.unary_unary_rpc_method_handler(self._is_active, *_codec(reference)),
            "StreamIsActive": grpc.unary_stream_rpc_method_handler(
                self._stream_is_active, *_codec(reference)
            ),
            "GetMetricSpec": grpc.unary_unary_rpc_method_handler(self._metric_spec, *_codec(reference)),
            "GetMetrics": grpc.unary_unary_rpc_method_handler(self._metrics, *_codec(request)),
        }
        handler = grpc.method_handlers_generic_handler(protocol.SERVICE, methods)
        self._server.add_generic_rpc_handlers((handler,))
        port = int(self._server.add_insecure_port(address))
        await self._server.start()
        return port

    async def stop(self) -> None:
        """End, with all calls."""
        if self._server is not None:
            await self._server.stop(None)

    async def _is_active(self, reference: Any, context: Any) -> Any:
        return protocol.IsActiveResponse(result=await self._asked(reference, context) > 0)

    async def _stream_is_active(self, reference: Any, context: Any) -> AsyncIterator[Any]:
        told = None
        while True:
            active = await self._asked(reference, context) > 0
            if active != told:
                told = active
                yield protocol.IsActiveResponse(result=active)
            await asyncio.sleep(_LOOK_SECONDS)

    async def _metric_spec(self, _: Any, __: Any) -> Any:
        spec = protocol.MetricSpec(metricName=METRIC, targetSize=_TARGET, targetSizeFloat=_TARGET)
        return protocol.GetMetricSpecResponse(metricSpecs=[spec])

    async def _metrics(self, request: Any, context: Any) -> Any:
        wanted = await self._asked(request and request.scaledObjectRef, context)
        value = protocol.MetricValue(
            metricName=request.metricName, metricValue=wanted, metricValueFloat=wanted
        )
        return protocol.GetMetricsResponse(metricValues=[value])

    async def _asked(self, reference: Any, context: Any) -> int:
        """The number for a ScaledObject, whose pool is in its own namespace; ends the call if there is none."""
        if reference is None:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "the request is no message of KEDA's")
        name = reference.scalerMetadata.get("rolloutPool") or reference.name
        try:
            return self._wanted(reference.namespace, name)
        except NotDecided as error:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error))
            raise
        except NotYetRead as error:
            await context.abort(grpc.StatusCode.UNAVAILABLE, str(error))
            raise


def _codec(request: Any) -> tuple[Any, Any]:
    """How a request is read, and an answer written."""

    def read(content: bytes) -> Any:
        try:
            return request.FromString(content)
        except DecodeError:
            return None  # what is raised here, gRPC logs with its traceback, for each call

    return read, lambda answer: answer.SerializeToString()
