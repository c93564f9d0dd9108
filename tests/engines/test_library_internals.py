"""Each part of torch, transformers, peft and DeepSpeed that is used below the public interface is still there."""

from __future__ import annotations

import inspect

import pytest
import torch

pytestmark = [pytest.mark.smoke, pytest.mark.filterwarnings("ignore")]  # of the libraries' own


def test_torch_has_flash_attention_on_a_cpu_with_its_backward() -> None:
    """Used by `training/packing/attention.py`."""
    assert torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
    assert torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward.default


def test_transformers_makes_models_without_initial_weights() -> None:
    """Used by `model/causal.py`."""
    from transformers.initialization import no_init_weights

    with no_init_weights():
        pass


def test_transformers_says_whose_attention_can_be_replaced() -> None:
    """Used by `model/causal.py`."""
    from transformers import Qwen2ForCausalLM

    assert Qwen2ForCausalLM._supports_attention_backend is True


def test_adapters_of_peft_are_turned_off_by_a_flag() -> None:
    """Used by `model/lora.py`."""
    from peft.tuners.tuners_utils import BaseTunerLayer

    assert BaseTunerLayer._disable_adapters is False
    assert "self._disable_adapters" in inspect.getsource(BaseTunerLayer.disable_adapters.fget)


def test_deepspeed_holds_gradients_scales_and_parts_where_we_look() -> None:
    """Used by `training/backends/deepspeed.py`."""
    import deepspeed
    from deepspeed.runtime.zero import partition_parameters, stage3, stage_1_and_2
    from deepspeed.utils import mixed_precision_linkage
    from deepspeed.utils.tensor_fragment import fragment_address, tensor_fragment

    early = inspect.getsource(stage_1_and_2.DeepSpeedZeroOptimizer)
    for name in ("averaged_gradients", "all_grad_tensors", "micro_step_id"):
        assert f"self.{name} = " in early, name
    for optimizer in (stage_1_and_2.DeepSpeedZeroOptimizer, stage3.DeepSpeedZeroOptimizer_Stage3):
        assert hasattr(optimizer, "override_loss_scale"), optimizer
    assert "self.fp32_partitioned_groups_flat" in inspect.getsource(stage3.DeepSpeedZeroOptimizer_Stage3)
    assert "_hp_mapping" in inspect.getsource(mixed_precision_linkage)
    mapped = {"lp_fragment_address", "hp_fragment_address", "param_group_index"}
    assert mapped <= set(tensor_fragment.__dataclass_fields__)
    assert {"numel", "start"} <= set(fragment_address.__dataclass_fields__)
    parts = inspect.getsource(partition_parameters)
    for name in ("ds_tensor", "ds_numel", "ds_shape"):
        assert f".{name} = " in parts, name
    assert "deepspeed_shm_comm" in deepspeed.ops.__compatible_ops__
