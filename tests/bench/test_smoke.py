"""Every benchmark runs at its smallest size, so that none stops working unnoticed; the peer it compares with, too.

Of those that take minutes, a commit runs two.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from bench.__main__ import NAMES

from bench import (
    cost,
    dispatch,
    engine,
    episodes,
    learning,
    overlap,
    peer,
    replicas,
    simulator,
    sites,
    store,
    tls,
    two_sites,
)

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.timeout(1800)


def test_every_benchmark_is_run_by_a_test() -> None:
    text = "".join(path.read_text() for path in Path(__file__).parent.glob("test_*.py"))
    assert [name for name in NAMES if f"{name}.main(" not in text and f"{name}.measure(" not in text] == []


def test_store_beside_its_peer(capsys: pytest.CaptureFixture[str]) -> None:
    found = store.main(store.SMOKE)
    assert [(case["batch"], case["response_tokens"]) for case in found["cases"]] == [(64, 256), (1, 256)]
    assert all(case["peer_per_second"] > 0 and case["waiting_ratio"] > 0 for case in found["cases"])
    assert "TransferQueue" in capsys.readouterr().out


def test_replicas_beside_one_server(capsys: pytest.CaptureFixture[str]) -> None:
    cases = replicas.main(replicas.SMOKE)["cases"]
    assert [case["replicas"] for case in cases] == [1, 3]
    assert all(case["taken_per_second"] > 0 for case in cases)
    assert "append ms" in capsys.readouterr().out


def test_encrypted_beside_plain(capsys: pytest.CaptureFixture[str]) -> None:
    cases = tls.main(tls.SMOKE)["cases"]
    assert [case["messages"] for case in cases] == [*tls.PAYLOADS, tls.SMALL]
    assert all(case["plain_per_second"] > 0 and case["tls_per_second"] > 0 for case in cases)
    assert "ratio" in capsys.readouterr().out


def test_sites_over_cuts_and_kills(capsys: pytest.CaptureFixture[str]) -> None:
    found = sites.main(sites.SIZES["smoke"])
    assert (found["lost"], found["twice"], found["disordered"]) == (0, 0, 0)
    assert {fault["what"] for fault in found["faults"]} >= {"hub", "site"}
    assert "straight over the link" in capsys.readouterr().out


def test_engine_beside_generate(capsys: pytest.CaptureFixture[str]) -> None:
    found = engine.main(engine.SMOKE)
    assert [case["slots"] for case in found["cases"]] == [4, 8, 4, 4]
    assert all(case["ratio"] > 0 for case in found["cases"])
    assert "model.generate" in capsys.readouterr().out


def test_overlap_compares_modes(capsys: pytest.CaptureFixture[str]) -> None:
    rows = overlap.main(overlap.SMOKE)["rows"]
    assert [row["mode"] for row in rows] == ["Synchronous", "BoundedAsync"]
    assert all(row["of_bound"] > 0 for row in rows)
    assert "speed-up" in capsys.readouterr().out


@pytest.mark.nightly
def test_episodes_that_wait_and_the_gateway(capsys: pytest.CaptureFixture[str]) -> None:
    found = episodes.main(episodes.SMOKE)
    assert [row["episodes_per_slot"] for row in found["rows"]] == [1, 1, 2, 4]
    assert all(row["seconds_per_step"] > 0 for row in found["rows"])
    assert all(rate > 0 for rate in found["gateway"].values())
    assert "over keeping" in capsys.readouterr().out


@pytest.mark.nightly
def test_dispatch_on_unequal_engines(capsys: pytest.CaptureFixture[str]) -> None:
    (row,) = dispatch.main(dispatch.SMOKE)["rows"]
    assert row["seconds_per_step"] > 0
    assert "speed-up" in capsys.readouterr().out


def test_engines_at_two_sites_beside_one(capsys: pytest.CaptureFixture[str]) -> None:
    one, two = two_sites.main(two_sites.SMOKE)["rows"]
    assert one["tokens_per_second"] > 0
    assert two["over"] > 0
    assert two["staleness_max"] <= 2
    assert "simulated" in capsys.readouterr().out


def test_cost_of_chosen_and_of_fixed_engines(capsys: pytest.CaptureFixture[str]) -> None:
    rows = cost.main(cost.SMOKE)["rows"]
    assert rows[-1]["engines"] == "Internal, with spot"
    assert all(row["tokens_per_dollar"] > 0 for row in rows)
    assert "tokens/$" in capsys.readouterr().out


def test_a_simulated_job_beside_the_real_one(capsys: pytest.CaptureFixture[str]) -> None:
    (row,) = simulator.main(simulator.SMOKE)["rows"]
    assert row["seconds"] > 0
    assert row["simulated"] > 0
    assert "ratio" in capsys.readouterr().out


@pytest.mark.nightly
def test_learning_scores_a_run_and_a_control(capsys: pytest.CaptureFixture[str]) -> None:
    rows = learning.main(learning.SMOKE)["rows"]
    assert [row["run"] for row in rows] == ["BoundedAsync", "shuffled rewards"]
    assert all(0 <= row["plain_after"] <= 1 and row["steps"] == 2 for row in rows)
    assert "staleness" in capsys.readouterr().out


@pytest.mark.nightly
def test_the_demo_beside_trl(capsys: pytest.CaptureFixture[str]) -> None:
    found = peer.main(peer.SMOKE)
    assert found["ratio"] > 0
    said = capsys.readouterr().out
    assert "TRL takes" in said
    assert "to held-out reward 0.0" in said
    for (run,) in found["reached"].values():
        assert (run["step"], run["tokens"] > 0, run["seconds"] > 0) in {(0, False, True), (1, True, True)}, (
            run
        )


def test_command_keeps_the_results_of_each_size_apart(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "bench", "--smoke", "protocol"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    written = Path(done.stdout.split("written to ")[-1].strip())
    assert written.name == "results-smoke.json"
    assert json.loads(written.read_text())["protocol"]["core"] > 0


def test_command_refuses_an_unknown_name() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "bench", "stores"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "no benchmark is called 'stores'" in done.stderr


@pytest.mark.nightly
def test_operator_at_a_small_scale() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "bench.control_plane", "--smoke"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    for title in (
        "the operator's start",
        "2 jobs, 20 pods",
        "3 jobs, 30 pods",
        "jobs at rest",
        "a new operator",
    ):
        assert title in done.stdout
