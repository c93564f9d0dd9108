"""FSDP and DeepSpeed do what every backend must, and train whole jobs, adapters too; jobs change between them."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from gangs import Gangs
from safetensors import safe_open
from tests.night import some

from runs import LiveRun, audit

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "training.md").read_text(encoding="utf-8")

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

Run = Callable[..., LiveRun]


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    """The page's manifest, with fields of the specification set."""
    fragments: list[str] = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    (text,) = [fragment for fragment in fragments if "kind: RLJob" in fragment]
    manifest = tmp_path / "two-ranks.yaml"
    manifest.write_text(text.replace("uri: manifests/", f"uri: {ROOT}/manifests/"))
    runs: list[LiveRun] = []

    def begin(*flags: str, **fields: Any) -> LiveRun:
        chosen = [f"--set=spec.{path.replace('__', '.')}={json.dumps(v)}" for path, v in fields.items()]
        runs.append(LiveRun(manifest, tmp_path / "run", *chosen, *flags))
        return runs[-1]

    yield begin
    for each in runs:
        each.stop()


def succeeds(run: LiveRun) -> Path:
    """The job ends well, and the audit holds; its newest checkpoint."""
    assert run.wait(1500) == 0, run.said[-3000:] + run.logs()
    verdict = audit(run.output)
    assert verdict.returncode == 0, verdict.stdout + verdict.stderr
    return run.output / "checkpoints" / "latest"


def written_by(checkpoint: Path) -> int:
    """Ranks that wrote it; 0 while it is replaced."""
    with suppress(OSError), safe_open(checkpoint / "optimizer-00000.safetensors", framework="pt") as file:
        return int(file.metadata()["ranks"])
    return 0


def test_the_page_s_job_runs(run: Run) -> None:
    assert written_by(succeeds(run(steps=4))) == 2


def test_a_job_continues_with_other_backends_and_numbers_of_ranks(run: Run) -> None:
    settings: dict[str, Any] = {"trainer__checkpoint__everySteps": 1}
    first = run(steps=500, **settings)
    latest = first.output / "checkpoints" / "latest"
    first.until("a checkpoint of FSDP, of which each rank writes its part", lambda: written_by(latest) == 2)
    first.patch("trainer.backend=Torch", "trainer.numProcPerNode=1")
    first.until("a checkpoint of Torch on one rank", lambda: written_by(latest) == 1)
    first.process.send_signal(signal.SIGINT)
    first.wait()
    again = run(
        "--resume",
        steps=first.steps() + 5,
        trainer__backend="DeepSpeed",
        trainer__numProcPerNode=3,
        trainer__options={"threads": 1, "zeroStage": 2},
        **settings,
    )
    assert written_by(succeeds(again)) == 3
    assert "fresh optimizer" not in again.logs()


def test_adapters_over_all_stages_of_deepspeed(run: Run) -> None:
    checkpoint = succeeds(
        run(
            steps=4,
            trainer__backend="DeepSpeed",
            trainer__options={"threads": 1, "zeroStage": 3},
            model__lora={"rank": 8, "alpha": 16.0},
        )
    )
    assert (checkpoint / "adapter_model.safetensors").is_file()
    assert written_by(checkpoint) == 2


FSDP = [("FSDP", []), ("FSDP", ["dtype=bfloat16"])]
DEEPSPEED = [
    ("DeepSpeed", ["zeroStage=2"]),
    ("DeepSpeed", ["zeroStage=1"]),
    ("DeepSpeed", ["zeroStage=1", "dtype=bfloat16"]),
    ("DeepSpeed", ["zeroStage=3"]),
]


@pytest.mark.smoke
@pytest.mark.parametrize(
    ("name", "options"),
    [*some(FSDP, 1), *some(DEEPSPEED, 1)],
)
def test_it_keeps_the_contract_of_backends(
    gangs: Gangs, tmp_path: Path, name: str, options: list[str]
) -> None:
    said = tmp_path / "said"
    code = gangs.rljob(said, "check-backend", name, *[f"--set={option}" for option in options])
    assert code == 0, said.read_text()[-6000:]
