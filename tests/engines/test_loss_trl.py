"""Our losses beside those of TRL's GRPOTrainer, on the same model and batch: value and gradient."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer

from rljob_contract.samples import job_config, random_samples
from rljob_contract.tiny_models import tiny_model
from rljob_core.ports import TrainingSample
from rljob_runtime.training.backends.torch import TorchBackend
from rljob_runtime.training.registry import create_backend

pytestmark = [pytest.mark.smoke, pytest.mark.filterwarnings("ignore")]  # of TRL's own

LONGEST, KL = 32, 0.04
#: What each is called there. CISPO's upper end is given as it is, not by how far above 1 it lies.
TRL: dict[str, dict[str, Any]] = {
    "GRPO": {"loss_type": "grpo"},
    "DrGRPO": {"loss_type": "dr_grpo"},
    "DAPO": {"loss_type": "dapo"},
    "GSPO": {"loss_type": "grpo", "importance_sampling_level": "sequence"},
    "CISPO": {"loss_type": "cispo", "epsilon_high": 1.3},
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def samples() -> list[TrainingSample]:
    """Of one turn each, with an advantage: TRL knows no other."""
    made = [s for s in random_samples(24, seed=3) if len(s.trajectory.segments) == 2 and s.item.advantage]
    assert len(made) > 10
    return made


def inputs(samples: list[TrainingSample], reference: Any) -> dict[str, Tensor]:
    """The batch as TRL has it: prompts padded on the left, responses on the right."""
    prompts = [s.trajectory.segments[0].tokens.tolist() for s in samples]
    responses = [s.trajectory.segments[1].tokens.tolist() for s in samples]
    width, length = max(map(len, prompts)), max(map(len, responses))

    def right(rows: list[list[Any]], filler: float = 0) -> Tensor:
        return torch.tensor([row + [filler] * (length - len(row)) for row in rows])

    prompt_ids = torch.tensor([[0] * (width - len(row)) + row for row in prompts])
    prompt_mask = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in prompts])
    completion_ids, completion_mask = right(responses), right([[1] * len(row) for row in responses])
    ids = torch.cat([prompt_ids, completion_ids], 1)
    with torch.no_grad():
        logits = reference(ids, attention_mask=torch.cat([prompt_mask, completion_mask], 1)).logits
    frozen = torch.log_softmax(logits[:, width - 1 : -1], -1).gather(-1, completion_ids.unsqueeze(-1))
    return {
        "prompt_ids": prompt_ids,
        "prompt_mask": prompt_mask,
        "completion_ids": completion_ids,
        "completion_mask": completion_mask,
        "advantages": torch.tensor([s.item.advantage for s in samples]),
        "old_per_token_logps": right([s.trajectory.segments[1].logprobs.tolist() for s in samples]),
        "ref_per_token_logps": frozen.squeeze(-1),
        "num_items_in_batch": completion_mask.sum(),
    }


@pytest.mark.parametrize("packing", ["SharedPrompt", "Padded"])
@pytest.mark.parametrize("loss", list(TRL))
def test_value_and_gradient_are_trls(
    model: Path, samples: list[TrainingSample], tmp_path: Path, loss: str, packing: str
) -> None:
    ours = create_backend(
        job_config(
            model,
            algorithm={
                "loss": loss,
                "kl": KL,
                "clip": 0.2,
                "clipHigh": 0.3,
                "importanceCap": 1e9,
                "maxGradNorm": 1e9,
            },
            sampling={"maxTokens": LONGEST},
            trainer={"options": {"threads": 1, "packing": packing}, "microBatchTokens": 256},
        ),
        rank=0,
        world_size=1,
        model_path=model,
    )
    assert isinstance(ours, TorchBackend)
    for step in range(2):  # the first moves the policy away from the reference
        ours.begin_step(step)
        ours.accumulate(samples)
        ours.normalise()
        if step == 0:
            ours.finish_step()
    moved = {name: tensor.clone() for name, tensor in ours.tensors()}
    found = {name: g.clone() for name, g in ours.gradients().items()}
    value = ours.finish_step().loss

    from trl import GRPOConfig, GRPOTrainer  # it warns when it is imported

    settings: dict[str, Any] = {"epsilon": 0.2, "epsilon_high": 0.3, **TRL[loss]}
    trainer = GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32),
        reward_funcs=lambda **_: 0.0,
        train_dataset=Dataset.from_dict({"prompt": ["a"] * len(samples)}),
        processing_class=AutoTokenizer.from_pretrained(model, padding_side="left"),
        args=GRPOConfig(
            output_dir=str(tmp_path),
            per_device_train_batch_size=len(samples),
            num_generations=len(samples),
            max_completion_length=LONGEST,
            beta=KL,
            report_to=[],
            use_cpu=True,
            bf16=False,
            use_bias_correction_kl=False,
            **settings,
        ),
    )
    reference = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()
    policy = trainer.model
    policy.load_state_dict(moved, strict=False)
    policy.train()
    trainer.current_gradient_accumulation_steps = 1
    theirs = trainer._compute_loss(policy, inputs(samples, reference))
    theirs.backward()
    expected = {n: p.grad for n, p in policy.named_parameters()}

    assert value == pytest.approx(theirs.item(), rel=1e-5, abs=1e-7)
    assert found.keys() == expected.keys()
    errors = {n: float((found[n] - g).norm() / g.norm()) for n, g in expected.items()}
    assert max(errors.values()) <= 1e-5, errors
