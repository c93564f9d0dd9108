"""Each part of vLLM that `rljob_runtime.engines.vllm.internals` uses below the public interface is still there.

No engine is started: a failure here names what an upgrade has changed, before `test_vllm.py` shows what comes of it.
"""

from __future__ import annotations

import inspect
import re
from dataclasses import fields
from typing import Any

import pytest

from rljob_cli.generate.dashboard import dashboard

pytestmark = [pytest.mark.smoke, pytest.mark.filterwarnings("ignore")]  # of vLLM's own


def queries() -> list[str]:
    return [target["expr"] for panel in dashboard()["panels"] for target in panel.get("targets", ())]


def parameters(function: Any) -> list[str]:
    return list(inspect.signature(function).parameters)


def test_requests_are_added_and_aborted_by_the_id_that_vllm_gives_them() -> None:
    from vllm.v1.engine.async_llm import AsyncLLM
    from vllm.v1.engine.output_processor import RequestOutputCollector

    assert parameters(AsyncLLM.add_request)[1:4] == ["request_id", "prompt", "params"]
    assert "internal" in parameters(AsyncLLM.abort)
    assert {"get", "get_nowait"} <= set(dir(RequestOutputCollector))
    assert "self.request_id = " in inspect.getsource(RequestOutputCollector.__init__)


def test_running_requests_have_version_labels() -> None:
    from vllm.outputs import CompletionOutput
    from vllm.v1.engine.output_processor import OutputProcessor, RequestState

    assert "self.request_states: " in inspect.getsource(OutputProcessor.__init__)
    assert "self.weight_version_starts: list[tuple[str, int]]" in inspect.getsource(RequestState.__init__)
    assert "weight_versions" in {field.name for field in fields(CompletionOutput)}


def test_the_configuration_says_which_model_runner_draws() -> None:
    from vllm.config import VllmConfig

    assert isinstance(VllmConfig.use_v2_model_runner, property)


def test_an_engine_has_an_output_handler_and_a_messaging_context() -> None:
    from vllm.v1.engine.async_llm import AsyncLLM
    from vllm.v1.engine.core_client import BackgroundResources, MPClient

    assert "self.output_handler: asyncio.Task" in inspect.getsource(AsyncLLM.__init__)
    assert "self.resources = BackgroundResources(" in inspect.getsource(MPClient.__init__)
    assert "ctx" in {field.name for field in fields(BackgroundResources)}


def test_weights_are_reloaded_layer_by_layer() -> None:
    from vllm.model_executor.model_loader import reload
    from vllm.model_executor.model_loader.reload import layerwise

    assert len(parameters(reload.initialize_layerwise_reload)) >= 1
    assert len(parameters(reload.finalize_layerwise_reload)) >= 2
    assert layerwise.logger.name == "vllm.model_executor.model_loader.reload.layerwise"


def test_layers_say_that_their_weights_are_rearranged() -> None:
    from vllm.model_executor.layers.quantization.base_config import QuantizeMethodBase

    assert hasattr(QuantizeMethodBase, "process_weights_after_loading")


def test_a_cpu_runner_has_a_sampler_and_a_batch_that_can_be_read() -> None:
    from vllm.v1.worker.cpu_model_runner import CPUModelRunner
    from vllm.v1.worker.gpu_input_batch import InputBatch

    made = "".join(
        inspect.getsource(kind.__init__)
        for kind in CPUModelRunner.__mro__
        if "__init__" in vars(kind) and kind is not object
    )
    for name in ("sampler", "input_batch", "requests", "use_async_scheduling", "speculative_config"):
        assert f"self.{name} " in made or f"self.{name}:" in made, name
    assert isinstance(InputBatch.req_ids, property)
    batch = inspect.getsource(InputBatch.__init__)
    for name in ("num_tokens_no_spec", "num_prompt_tokens"):
        assert f"self.{name} = " in batch, name


def test_a_sampler_returns_tokens_with_log_probabilities() -> None:
    from vllm.v1.outputs import LogprobsTensors, SamplerOutput

    assert {"sampled_token_ids", "logprobs_tensors"} <= {field.name for field in fields(SamplerOutput)}
    assert list(LogprobsTensors._fields)[:3] == ["logprob_token_ids", "logprobs", "selected_token_ranks"]


def test_the_worker_extension_resolves_as_vllm_resolves_it() -> None:
    from vllm.utils.import_utils import resolve_obj_by_qualname

    from rljob_runtime.engines.vllm.names import EXTENSION

    assert EXTENSION == "rljob_runtime.engines.vllm.RLJobWorker"
    assert resolve_obj_by_qualname(EXTENSION).__name__ == "RLJobWorker"


def test_the_metrics_of_the_dashboard_are_counted_where_the_role_serves_them() -> None:
    from vllm import AsyncEngineArgs
    from vllm.v1.metrics import loggers, prometheus

    named = {name for query in queries() for name in re.findall(r"vllm:\w+", query)}
    source = inspect.getsource(loggers)
    assert len(named) == 4
    assert [name for name in named if f'"{name.removesuffix("_total")}"' not in source] == []
    assert "return REGISTRY" in inspect.getsource(prometheus.get_prometheus_registry)
    assert "disable_log_stats" in {field.name for field in fields(AsyncEngineArgs)}
