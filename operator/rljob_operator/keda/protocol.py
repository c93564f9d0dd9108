"""The messages of KEDA's gRPC service `externalscaler.ExternalScaler`, made from descriptors when they are imported.

So there is no generated code. https://keda.sh/docs/latest/concepts/external-scalers/ describes the protocol. KEDA's
streams of metric specs, which are optional, have no method here: ours never change.
"""

from __future__ import annotations

from typing import Any

from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

_PACKAGE = "externalscaler"
SERVICE = f"{_PACKAGE}.ExternalScaler"

_F = FieldDescriptorProto
_SCALARS = {"bool": _F.TYPE_BOOL, "double": _F.TYPE_DOUBLE, "int64": _F.TYPE_INT64, "string": _F.TYPE_STRING}
_MESSAGES = {
    "ScaledObjectRef": ("name: string", "namespace: string", "scalerMetadata: *ScalerMetadataEntry"),
    "IsActiveResponse": ("result: bool",),
    "GetMetricSpecResponse": ("metricSpecs: *MetricSpec",),
    "MetricSpec": ("metricName: string", "targetSize: int64", "targetSizeFloat: double"),
    "GetMetricsRequest": ("scaledObjectRef: ScaledObjectRef", "metricName: string"),
    "GetMetricsResponse": ("metricValues: *MetricValue",),
    "MetricValue": ("metricName: string", "metricValue: int64", "metricValueFloat: double"),
}
"""Fields by message, in the order of their numbers; `*` marks one that may be repeated."""


def _field(number: int, text: str) -> FieldDescriptorProto:
    name, _, kind = text.partition(": ")
    field = _F(name=name, number=number, label=_F.LABEL_REPEATED if kind[0] == "*" else _F.LABEL_OPTIONAL)
    kind = kind.removeprefix("*")
    if kind in _SCALARS:
        field.type = _SCALARS[kind]
    else:
        field.type = _F.TYPE_MESSAGE
        nested = "ScaledObjectRef." if kind == "ScalerMetadataEntry" else ""
        field.type_name = f".{_PACKAGE}.{nested}{kind}"
    return field


def _message(name: str, *fields: str) -> DescriptorProto:
    return DescriptorProto(name=name, field=[_field(number, text) for number, text in enumerate(fields, 1)])


def _file() -> FileDescriptorProto:
    made = FileDescriptorProto(name=f"{_PACKAGE}.proto", package=_PACKAGE, syntax="proto3")
    made.message_type.extend(_message(name, *fields) for name, fields in _MESSAGES.items())
    # On the wire, a map is repeated entries of a key and a value.
    entry = _message("ScalerMetadataEntry", "key: string", "value: string")
    entry.options.map_entry = True
    made.message_type[0].nested_type.append(entry)
    return made


_POOL = DescriptorPool()
_POOL.Add(_file())


def _class(name: str) -> Any:
    return GetMessageClass(_POOL.FindMessageTypeByName(f"{_PACKAGE}.{name}"))


ScaledObjectRef = _class("ScaledObjectRef")
IsActiveResponse = _class("IsActiveResponse")
GetMetricSpecResponse = _class("GetMetricSpecResponse")
MetricSpec = _class("MetricSpec")
GetMetricsRequest = _class("GetMetricsRequest")
GetMetricsResponse = _class("GetMetricsResponse")
MetricValue = _class("MetricValue")
