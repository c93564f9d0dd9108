"""The example of docs/autoscaling.md: pools grow to what the trainer needs, at the least cost."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from runs import LiveRun, audit

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

CHECKOUT = Path(__file__).parents[2]
PAGE = (CHECKOUT / "docs/autoscaling.md").read_text()
EXAMPLE = CHECKOUT / "manifests/examples/priced-pools.yaml"


def form(line: str) -> str:
    """The line as an expression: which pool grows to what follows from the speeds that this machine really shows."""
    escaped = re.escape(line).replace("\\.", ".")
    return re.sub(r"pool\\ \w+", r"pool\\ \\w+", re.sub(r"[\d,.]*\d", r"[\\d,.]+", escaped))


def test_the_page_shows_the_example_s_pools() -> None:
    (shown,) = re.findall(r"```yaml\nrollout:\n(.*?)```", PAGE, re.DOTALL)
    example = EXAMPLE.read_text()
    for line in shown.splitlines():
        assert line.strip() in example


@pytest.mark.nightly
def test_pools_grow_to_what_the_trainer_needs(tmp_path: Path) -> None:
    run = LiveRun(EXAMPLE, tmp_path / "run")
    try:
        assert run.wait() == 0, run.said[-3000:] + run.logs()
        said = run.said
    finally:
        run.stop()
    (shown,) = re.findall(r"^\$ rljob run .*?\n(.*?)```", PAGE, re.DOTALL | re.MULTILINE)
    said_on_the_page = [line for line in shown.splitlines() if "  PoolScaled" in line]
    assert said_on_the_page
    for line in said_on_the_page:
        assert re.search(f"^{form(line)}$", said, re.MULTILINE), (line, said)
    changes = re.findall(r"PoolScaled priced-pools: pool \w+: (\d+) → (\d+)", said)
    assert any(int(after) > int(before) for before, after in changes)
    status = json.loads((run.output / "status.json").read_text())["status"]
    speeds = {pool["name"]: pool["tokensPerSecond"] for pool in status["autoscaling"]["pools"]}
    assert speeds["fast"] > speeds["cheap"] > 0
    assert status["cost"]["spent"] > 0
    assert status["cost"]["perThousandTokens"] > 0
    verdict = audit(run.output)
    assert verdict.returncode == 0, verdict.stdout + verdict.stderr
