"""FSDP and DeepSpeed on real ranks against Torch on one: the same steps; checkpoints that any of them goes on from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from gangs import Gangs, Results, distance, run_here
from tests.night import some
from transformers import AutoModelForCausalLM

from rljob_contract.tiny_models import tiny_model

pytestmark = [
    pytest.mark.timeout(1800),
    pytest.mark.xdist_group("gangs of backends"),
]  # else each process has its own

STEPS: list[tuple[int, list[int]]] = [(0, [7, 0, 9]), (1, [1]), (2, [6, 6])]
"""Trajectories per micro-batch and step: an empty micro-batch, and one that leaves a rank without work."""
LATER: list[tuple[int, list[int]]] = [(3, [8]), (4, [5, 4])]
ALGORITHM = {"kl": 0.02, "weightDecay": 0.1, "learningRate": 1e-3, "warmupSteps": 2}
LORA = {"rank": 4, "alpha": 8.0}

BACKENDS: dict[str, dict[str, Any]] = {
    "FSDP": {"backend": "FSDP"},
    "ZeRO-1": {"backend": "DeepSpeed", "options": {"zeroStage": 1}},
    "ZeRO-2": {"backend": "DeepSpeed", "options": {"zeroStage": 2}},
    "ZeRO-3": {"backend": "DeepSpeed", "options": {"zeroStage": 3}},
}


def trainer(kind: str = "Torch", **options: Any) -> dict[str, Any]:
    """A trainer's specification, with forwards so small that a rank has several."""
    chosen = BACKENDS.get(kind, {"backend": kind})
    known = {"threads": 1, "forwardTokens": 90, **chosen.get("options", {}), **options}
    return {**chosen, "options": known, "microBatchTokens": 4096}


def jobs(model: Path, folder: Path, kind: str, torch_folder: Path | None) -> list[dict[str, Any]]:
    """What every backend does; `torch_folder`: with checkpoints of the backend Torch to go on from."""
    common = {"model": str(model), "algorithm": ALGORITHM}
    lora = {**common, "lora": LORA, "trainer": trainer(kind, activationCheckpointing=True)}
    done: list[dict[str, Any]] = [
        {
            **common,
            "name": "whole",
            "trainer": trainer(kind),
            "abandoned": [5],
            "steps": STEPS,
            "save": str(folder / "saved"),
            "then": LATER,
        },
        {**lora, "name": "lora", "steps": STEPS, "save": str(folder / "saved-lora"), "then": LATER},
        {
            **common,
            "name": "narrow",
            "trainer": trainer(kind, dtype="bfloat16"),
            "steps": STEPS,
            "save": str(folder / "saved-narrow"),
            "then": LATER,
        },
    ]
    if torch_folder is not None:
        resumed = [("whole", "saved"), ("lora", "saved-lora"), ("narrow", "saved-narrow")]
        by_name = {job["name"]: job for job in done}
        for name, saved in resumed:
            job = {k: v for k, v in by_name[name].items() if k not in ("abandoned", "save", "then")}
            done.append({**job, **start(torch_folder / saved), "name": f"{name}-resumed", "steps": LATER})
    return done


def start(saved: Path) -> dict[str, str]:
    """What a job begins with."""
    return {"weights": f"{saved}.safetensors", "state": str(saved)}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    # Three ranks cannot divide it evenly.
    return tiny_model(tmp_path_factory.mktemp("model"), hidden=40)


@pytest.fixture(scope="module")
def alone(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Results:
    """Torch on one rank."""
    folder = tmp_path_factory.mktemp("alone") / "torch"
    return run_here(folder, jobs(model, folder, "Torch", None))


@pytest.fixture(scope="module", params=some(["FSDP", "ZeRO-2", "Torch", "ZeRO-1", "ZeRO-3"], 2))
def gang(
    request: pytest.FixtureRequest,
    gangs: Gangs,
    model: Path,
    alone: Results,
    tmp_path_factory: pytest.TempPathFactory,
) -> Results:
    """A backend on two ranks."""
    folder = tmp_path_factory.mktemp(request.param) / "two"
    return gangs.run(folder, jobs(model, folder, request.param, alone.folder), ranks=2)


def assert_alike(
    found: list[dict[str, float]], expected: list[dict[str, float]], *, rel: float = 1e-4
) -> None:
    """Figures step by step."""
    for step, (mine, theirs) in enumerate(zip(found, expected, strict=True)):
        assert mine == pytest.approx(theirs, rel=rel, abs=1e-6), step


# AdamW divides a gradient by its own size: where it is nearly zero, rounding decides about the step.


@pytest.mark.smoke
@pytest.mark.parametrize("name", ["whole", "lora"])
def test_the_same_steps_as_torch_alone(gang: Results, alone: Results, name: str) -> None:
    """After a step that was begun and given up, too."""
    assert_alike(gang.figures(name), alone.figures(name))
    assert distance(gang.weights(name), alone.weights(name)) < 1e-3


@pytest.mark.parametrize("name", ["whole", "lora"])
def test_continues_from_a_checkpoint_of_torch(gang: Results, alone: Results, name: str) -> None:
    assert_alike(gang.figures(f"{name}-resumed"), alone.figures(name)[len(STEPS) :])
    assert distance(gang.weights(f"{name}-resumed"), alone.weights(name)) < 1e-3


@pytest.mark.parametrize(("name", "saved"), [("whole", "saved"), ("lora", "saved-lora")])
def test_torch_continues_from_its_checkpoint(
    gang: Results, model: Path, tmp_path: Path, name: str, saved: str
) -> None:
    job = {
        "model": str(model),
        "algorithm": ALGORITHM,
        "trainer": trainer(),
        "lora": LORA if name == "lora" else None,
        "name": "resumed",
        **start(gang.folder / saved),
        "steps": LATER,
    }
    found = run_here(tmp_path / "resumed", [job])
    assert_alike(found.figures("resumed"), gang.figures(name)[len(STEPS) :])
    assert distance(found.weights("resumed"), gang.weights(name)) < 1e-3


def test_bfloat16_keeps_wide_weights_and_continues_with_them(gang: Results, alone: Results) -> None:
    wide, narrow = alone.figures("whole"), gang.figures("narrow")
    for mine, theirs in zip(narrow, wide, strict=True):
        assert mine["loss"] == pytest.approx(theirs["loss"], rel=0.05, abs=0.02)
        assert mine["grad_norm"] == pytest.approx(theirs["grad_norm"], rel=0.1)
    resumed = gang.figures("narrow-resumed")
    for mine, theirs in zip(resumed, alone.figures("narrow")[len(STEPS) :], strict=True):
        assert mine["loss"] == pytest.approx(theirs["loss"], rel=0.05, abs=0.02)
    assert {str(t.dtype) for t in gang.weights("narrow").values()} == {"torch.bfloat16"}


def test_transformers_loads_a_checkpoint(gang: Results) -> None:
    loaded = AutoModelForCausalLM.from_pretrained(gang.folder / "saved").state_dict()
    published = Results(gang.folder).weights("saved")
    assert all(loaded[name].equal(tensor) for name, tensor in published.items())


def test_three_ranks_of_fsdp_continue_from_two_of_deepspeed(
    gangs: Gangs, model: Path, alone: Results, tmp_path: Path
) -> None:
    common = {"model": str(model), "algorithm": ALGORITHM}
    saved = tmp_path / "saved"
    gangs.run(
        tmp_path / "two",
        [{**common, "name": "a", "trainer": trainer("ZeRO-3"), "steps": STEPS, "save": str(saved)}],
        ranks=2,
    )
    job = {**common, "name": "b", "trainer": trainer("FSDP"), **start(saved), "steps": LATER}
    found = gangs.run(tmp_path / "three", [job], ranks=3)
    assert_alike(found.figures("b"), alone.figures("whole")[len(STEPS) :])
    assert distance(found.weights("b"), alone.weights("whole")) < 1e-3


@pytest.mark.parametrize("kind", ["FSDP", "ZeRO-3"])
def test_a_full_disk_ends_all_ranks(kind: str, gangs: Gangs, model: Path, tmp_path: Path) -> None:
    """Whose parts of a tensor rank 0 no longer wants: it must not leave them waiting."""
    job = {
        "model": str(model),
        "name": "full",
        "trainer": trainer(kind),
        "steps": STEPS,
        "save": str(tmp_path / "saved"),
        "disk": 40_000,
    }
    assert (model / "model.safetensors").stat().st_size > job["disk"]
    with pytest.raises(AssertionError, match="File too large"):
        gangs.run(tmp_path / "gang", [job], ranks=2)


def test_one_rank_of_each(gangs: Gangs, model: Path, alone: Results, tmp_path: Path) -> None:
    """Alone, they have nobody to divide with."""
    for kind in ("FSDP", "ZeRO-3"):
        job = {
            "model": str(model),
            "algorithm": ALGORITHM,
            "name": "one",
            "trainer": trainer(kind),
            "steps": STEPS,
        }
        found = gangs.run(tmp_path / kind, [job], ranks=1)
        assert_alike(found.figures("one"), alone.figures("whole")[: len(STEPS)])


def test_in_float64_fsdp_is_torch_to_the_last_digits(gangs: Gangs, model: Path, tmp_path: Path) -> None:
    job = {"model": str(model), "algorithm": ALGORITHM, "name": "wide", "steps": STEPS}
    expected = run_here(tmp_path / "alone", [{**job, "trainer": trainer(dtype="float64")}])
    found = gangs.run(tmp_path / "two", [{**job, "trainer": trainer("FSDP", dtype="float64")}], ranks=2)
    assert_alike(found.figures("wide"), expected.figures("wide"), rel=1e-9)
    assert distance(found.weights("wide"), expected.weights("wide")) < 1e-9


def test_the_reference_may_stay_in_host_memory(gangs: Gangs, model: Path, tmp_path: Path) -> None:
    job = {"model": str(model), "algorithm": ALGORITHM, "name": "kept", "steps": STEPS}
    expected = run_here(tmp_path / "alone", [{**job, "trainer": trainer()}]).figures("kept")
    here = run_here(tmp_path / "here", [{**job, "trainer": trainer(offloadReference=True)}])
    assert here.figures("kept") == expected
    for kind in ("FSDP", "ZeRO-3"):
        options = trainer(kind, offloadReference=True)
        found = gangs.run(tmp_path / kind, [{**job, "trainer": options}], ranks=2).figures("kept")
        assert_alike(found, expected)
