"""Metrics are served without any effect on the role: not a taken port, not many or silent clients, not a scrape."""

from __future__ import annotations

import http.client
import json
import logging
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client import REGISTRY, Gauge
from prometheus_client.parser import text_string_to_metric_families
from tests.waiting import until

from rljob_core import worker_protocol
from rljob_runtime.telemetry import serve
from rljob_runtime.telemetry.catalogue import CATALOGUE, RolloutMetrics
from rljob_runtime.telemetry.recorder import Recorder
from rljob_runtime.telemetry.serve import FRESH_SECONDS, MOST_CONNECTIONS, MetricsServer, served


@pytest.fixture
def recorder() -> Recorder:
    return Recorder(CATALOGUE["rollout"])


@pytest.fixture
def server(recorder: Recorder) -> Iterator[MetricsServer]:
    found = MetricsServer(recorder, "127.0.0.1:0", {})
    yield found
    found.stop()


def get(address: str, path: str = "/metrics") -> tuple[int, str]:
    connection = http.client.HTTPConnection(address, timeout=60)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def samples(text: str) -> dict[str, float]:
    return {
        sample.name + "".join(f" {value}" for value in sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_what_is_recorded_is_served(recorder: Recorder, server: MetricsServer) -> None:
    recorder.add(RolloutMetrics.TOKENS, 7)
    recorder.add(RolloutMetrics.ENDED, 2, "completed")
    recorder.set(RolloutMetrics.SLOTS, 16)
    for seconds in (0.02, 0.2, 2000):
        recorder.observe(RolloutMetrics.SWAP_SECONDS, seconds)
    status, text = get(server.address)
    found = samples(text)
    assert status == 200
    assert found["rljob_rollout_tokens_total"] == 7
    assert found["rljob_rollout_trajectories_total completed"] == 2
    assert found["rljob_rollout_slots"] == 16
    buckets = [
        found[f"rljob_rollout_swap_seconds_bucket {bound}"] for bound in ("0.01", "0.03", "0.3", "+Inf")
    ]
    assert buckets == [0, 1, 2, 3]
    assert found["rljob_rollout_swap_seconds_count"] == 3
    assert found["rljob_rollout_swap_seconds_sum"] == pytest.approx(2000.22)
    assert found["process_resident_memory_bytes"] > 0
    assert get(server.address, "/")[0] == 404


def test_metrics_of_libraries_follow_and_cannot_hide_the_role_s(recorder: Recorder) -> None:
    class Broken:
        fails = False

        def collect(self) -> Iterator[Gauge]:
            if self.fails:
                raise ValueError("a library's collector")
            return iter(())

    library = Gauge("vllm:waiting", "Of a library.")
    server = MetricsServer(recorder, "127.0.0.1:0", {})
    other = MetricsServer(recorder, "127.0.0.1:0", {})
    try:
        assert samples(get(server.address)[1])["vllm:waiting"] == 0
        broken = Broken()
        REGISTRY.register(broken)
        broken.fails = True
        try:
            assert "rljob_rollout_tokens_total" in samples(get(other.address)[1])
        finally:
            REGISTRY.unregister(broken)
    finally:
        REGISTRY.unregister(library)
        server.stop()
        other.stop()


def test_a_port_that_is_taken_is_a_warning(
    recorder: Recorder,
    server: MetricsServer,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    for address in (server.address, "127.0.0.1:99999", "nowhere", "no.such.host.invalid:1"):
        monkeypatch.setenv(worker_protocol.METRICS_ADDRESS, address)
        with caplog.at_level(logging.WARNING), served(recorder, role="rollout", namespace="n", job="j"):
            assert not recorder.is_read
        assert f"metrics are not served at {address}" in caplog.text


def test_prometheus_finds_a_process_by_its_file(
    recorder: Recorder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(worker_protocol.METRICS_ADDRESS, "127.0.0.1:0")
    monkeypatch.setenv(worker_protocol.METRICS_TARGETS, str(tmp_path / "prometheus"))
    monkeypatch.setenv(worker_protocol.POD, "job-rollout-cpu-0")
    monkeypatch.setenv(worker_protocol.POOL, "cpu")
    with served(recorder, role="rollout", namespace="default", job="job"):
        assert recorder.is_read
        (file,) = (tmp_path / "prometheus").iterdir()
        (target,) = json.loads(file.read_text())
        labels = {
            "namespace": "default",
            "rljob": "job",
            "role": "rollout",
            "pool": "cpu",
            "pod": "job-rollout-cpu-0",
        }
        assert target["labels"] == labels
        assert get(target["targets"][0])[0] == 200
    assert list((tmp_path / "prometheus").iterdir()) == []


def test_a_folder_that_cannot_be_written_is_a_warning(
    recorder: Recorder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv(worker_protocol.METRICS_ADDRESS, "127.0.0.1:0")
    monkeypatch.setenv(worker_protocol.METRICS_TARGETS, str(tmp_path / "file/prometheus"))
    with served(recorder, role="rollout", namespace="default", job="job"):
        assert recorder.is_read


def test_clients_that_say_nothing_take_a_bounded_number_of_threads(
    server: MetricsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serve, "CONNECTION_SECONDS", 600.0)
    host, port = server.address.split(":")
    silent = [socket.create_connection((host, int(port))) for _ in range(MOST_CONNECTIONS + 8)]
    try:
        for refused in silent[MOST_CONNECTIONS:]:
            refused.settimeout(60)
            assert refused.recv(1) == b""
    finally:
        for connection in silent:
            connection.close()
    while True:  # until the server has noticed that they are gone
        try:
            assert get(server.address)[0] == 200
        except OSError:
            continue
        break


def test_a_client_that_says_nothing_is_sent_away(
    server: MetricsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serve, "CONNECTION_SECONDS", 0.1)
    host, port = server.address.split(":")
    with socket.create_connection((host, int(port)), timeout=60) as silent:
        assert silent.recv(1) == b""


def test_a_client_that_goes_on_saying_little_is_sent_away(
    server: MetricsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serve, "CONNECTION_SECONDS", 0.5)
    host, port = server.address.split(":")
    with socket.create_connection((host, int(port)), timeout=0.05) as slow:
        slow.sendall(b"GET /metrics HTTP/1.1\r\nA: ")

        def sent_away() -> bool:
            try:
                slow.sendall(b"a")
                return slow.recv(1) == b""
            except TimeoutError:
                return False
            except OSError:
                return True

        until(sent_away)
    monkeypatch.setattr(serve, "CONNECTION_SECONDS", 60.0)
    assert get(server.address)[0] == 200


def test_it_is_rendered_as_often_as_it_changes_and_not_as_often_as_somebody_asks(
    recorder: Recorder, server: MetricsServer
) -> None:
    rendered = []
    take = recorder.snapshot
    recorder.snapshot = lambda: rendered.append(1) or take()  # type: ignore[method-assign, func-returns-value]
    begun = recorder.now()
    for _ in range(50):
        get(server.address)
    assert len(rendered) <= (recorder.now() - begun) / FRESH_SECONDS + 1


def test_a_role_that_serves_nothing_does_not_load_the_library() -> None:
    program = """
import sys
from rljob_runtime.telemetry.catalogue import CATALOGUE
from rljob_runtime.telemetry.recorder import Recorder
from rljob_runtime.telemetry.serve import served
with served(Recorder(CATALOGUE["reward"]), role="reward", namespace="n", job="j"):
    assert "prometheus_client" not in sys.modules
"""
    subprocess.run(
        [sys.executable, "-c", program], check=True, timeout=600, env={"PYTHONPATH": ":".join(sys.path)}
    )


def test_both_families_of_addresses_are_served(recorder: Recorder) -> None:
    server = MetricsServer(recorder, ":0", {})
    try:
        port = server.address.rpartition(":")[2]
        assert get(f"127.0.0.1:{port}")[0] == 200
    finally:
        server.stop()
