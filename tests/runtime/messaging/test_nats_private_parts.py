"""nats-py has the private parts that our client is built on; a release that lacks one fails here, by its name."""

from __future__ import annotations

import ast
import inspect
import logging
import re
import tomllib
from asyncio import sslproto
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import pytest
from e2e.harness.nats_server import EmbeddedServer
from nats.aio.client import Client
from nats.aio.subscription import Subscription
from nats.aio.transport import TcpTransport
from nats.protocol.parser import Parser
from packaging.requirements import Requirement

from rljob_operator.reconcile.nats_connection import is_no_warning_about_half_closed_tls
from rljob_runtime.messaging.nats.client import EagerClient

ROOT = Path(__file__).parents[3]
CLIENT = ROOT / "workers/rljob_runtime/messaging/nats/client.py"
MODULES = [CLIENT, CLIENT.with_name("wide_transport.py")]
RELEASE = f"nats-py {metadata.version('nats-py')}"


def parameters(function: object) -> list[str]:
    return list(inspect.signature(function).parameters)  # type: ignore[arg-type]


def lacks(part: str, use: str) -> str:
    return f"{RELEASE} has no {part} as {CLIENT.name} uses it: {use}"


def test_the_clients_state_is_where_it_was() -> None:
    state = vars(Client())
    assert "_transport" in state, lacks(
        "Client._transport", "it is replaced by a transport with larger buffers"
    )
    assert isinstance(state.get("_ps"), Parser), lacks(
        "Client._ps", "it is replaced by a parser that calls handlers"
    )
    assert "_error_cb" in state, lacks("Client._error_cb", "it hears that the token has expired")
    assert isinstance(state.get("_server_info"), dict), lacks("Client._server_info", "its server_id is read")


def test_methods_take_what_they_took() -> None:
    assert "force_flush" in parameters(Client._flush_pending), lacks(
        "Client._flush_pending(force_flush)", "it sends a subscription"
    )
    assert inspect.iscoroutinefunction(Client._flush_pending), lacks(
        "coroutine Client._flush_pending", "awaited"
    )
    for name, given in {"_process_err": "err_msg", "_process_op_err": "e"}.items():
        method = getattr(Client, name, lacks)
        found = inspect.iscoroutinefunction(method), parameters(method)
        assert found == (True, ["self", given]), lacks(
            f"coroutine Client.{name}({given})", "a client whose token has expired connects again"
        )
    assert parameters(TcpTransport.connect) == ["self", "uri", "buffer_size", "connect_timeout"], lacks(
        "TcpTransport.connect(uri, buffer_size, connect_timeout)", "it is extended by larger buffers"
    )
    connect_tls = ["self", "uri", "ssl_context", "buffer_size", "connect_timeout"]
    assert parameters(TcpTransport.connect_tls) == connect_tls, lacks(
        "TcpTransport.connect_tls(uri, ssl_context, buffer_size, connect_timeout)",
        "it is replaced by a handshake that keeps the larger reads",
    )
    assert parameters(TcpTransport.read) == ["self", "buffer_size"], lacks(
        "TcpTransport.read(buffer_size)", "it is extended by larger reads"
    )
    assert parameters(Parser.parse) == ["self", "data"], lacks(
        "Parser.parse(data)", "it parses what is no message"
    )
    assert inspect.iscoroutinefunction(Parser.parse), lacks("coroutine Parser.parse", "it is awaited")
    assert parameters(Parser.reset) == ["self"], lacks(
        "Parser.reset()", "nats-py calls it for a new connection"
    )


async def test_objects_have_what_is_read_of_them() -> None:
    assert vars(Subscription(Client(), id=7, subject="a")).get("_id") == 7, lacks(
        "Subscription._id", "it is the number by which the server names a subscription"
    )
    assert "_io_writer" in vars(TcpTransport()), lacks(
        "TcpTransport._io_writer", "its socket is set up and aborted"
    )
    assert "_io_reader" in vars(TcpTransport()), lacks(
        "TcpTransport._io_reader", "it is replaced after the TLS handshake"
    )


def test_the_docstring_lists_every_private_part_that_is_used() -> None:
    """Attributes of nats-py's objects with a leading underscore that the modules read, set or override."""
    client, *others = [ast.parse(path.read_text(encoding="utf-8")) for path in MODULES]
    theirs = {
        name
        for kind in (Client(), TcpTransport(), Subscription(Client(), id=7, subject="a"))
        for name in dir(kind)
        if name.startswith("_") and not name.startswith("__")
    }
    used = {
        node.attr if isinstance(node, ast.Attribute) else node.name
        for module in (client, *others)
        for node in ast.walk(module)
        if isinstance(node, ast.Attribute | ast.AsyncFunctionDef | ast.FunctionDef)
    }
    listed = set(re.findall(r"`\w+\.(_\w+)`", ast.get_docstring(client) or ""))
    assert used & theirs == listed


async def test_a_connection_keeps_our_transport_and_parser(nats_server: EmbeddedServer) -> None:
    client = EagerClient()
    transport, parser = client._transport, client._ps
    await client.connect(nats_server.url)
    try:
        assert client._transport is transport, lacks(
            "use for a given Client._transport", "it makes another one"
        )
        assert client._ps is parser, lacks("use for a given Client._ps", "it makes another one")
        assert transport._io_writer is not None, lacks("TcpTransport._io_writer", "it is None once connected")
        assert client.server_id, lacks("Client._server_info['server_id']", "it is empty once connected")
    finally:
        await client.close()


def test_the_operators_filter_drops_the_warning_that_nats_pys_protocol_causes() -> None:
    assert "asyncio.StreamReaderProtocol(reader)" in inspect.getsource(TcpTransport.connect_tls), (
        f"{RELEASE} reads TLS through another protocol: is_no_warning_about_half_closed_tls may be superfluous"
    )
    (warning,) = [
        node.value
        for node in ast.walk(ast.parse(inspect.getsource(sslproto)))
        if isinstance(node, ast.Constant) and "returning true from eof_received()" in str(node.value)
    ]
    assert not is_no_warning_about_half_closed_tls(logging.makeLogRecord({"msg": warning}))
    assert is_no_warning_about_half_closed_tls(logging.makeLogRecord({"msg": "Task was destroyed"}))


def test_only_a_release_that_was_tested_is_admitted() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    (bound,) = [r for r in map(Requirement, project["dependencies"]) if r.name == "nats-py"]
    major, minor, *_ = map(int, metadata.version("nats-py").split("."))
    assert bound.specifier.contains(f"{major}.{minor}.99")
    assert not bound.specifier.contains(f"{major}.{minor + 1}.0"), "its private parts have not been tested"


def sources() -> Iterator[Path]:
    return (p for part in ("workers", "operator", "bench", "e2e") for p in (ROOT / part).rglob("*.py"))


@pytest.mark.parametrize("module", ["nats.aio.transport", "nats.protocol"])
def test_no_other_module_imports_the_internals(module: str) -> None:
    for path in sources():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(module):
                assert path in MODULES, f"{path} imports {node.module}"
