"""The text of the manifest that `rljob init` writes: what a first job needs, with comments on what to change next."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

PromptSourceName = Literal["reasoning-gym", "jsonl", "parquet"]
"""`spec.data.source`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobPlan:
    """What a first job is to be.

    Attributes:
        name: of the job.
        model: path or URI of the model.
        source: of prompts.
        dataset: task or file.
        heldout_source: of held-out prompts.
        heldout: their task or file; empty: none, or generated ones.
        template: Jinja template of a prompt; empty: the model's chat template.
        reward: the function.
        steps: optimizer steps.
        gpus: to use; 0: processors only.
        gpu_resource: the name by which a pod asks for one, such as nvidia.com/gpu.
        on_cluster: GPUs are those of pods, else of this machine.
        lora: rank of adapters; 0 trains all weights.
        max_tokens: of a response.
    """

    name: str
    model: str
    source: PromptSourceName
    dataset: str
    heldout_source: PromptSourceName
    heldout: str
    template: str
    reward: str
    steps: int
    gpus: int
    gpu_resource: str
    on_cluster: bool
    lora: int
    max_tokens: int


def manifest_text(plan: JobPlan) -> str:
    """The manifest as YAML."""
    return "".join(f"{_aligned(line)}\n" for line in _lines(plan))


_COMMENTS_AT = 46


def _aligned(line: str) -> str:
    """A line with its comment where those of the others are, if the line is not longer."""
    content, mark, comment = line.partition(" # ")
    if not mark or not content.strip() or line.lstrip().startswith("#"):
        return line
    return f"{content.rstrip().ljust(_COMMENTS_AT)}  # {comment}"


def _lines(plan: JobPlan) -> Iterator[str]:
    yield "# Written by `rljob init`. Every field: `rljob explain spec`, `rljob explain spec.algorithm.loss`, …"
    if plan.on_cluster:
        yield "#   kubectl apply -f THIS_FILE && kubectl get rljob -w"
    else:
        yield "#   rljob validate THIS_FILE && rljob run THIS_FILE"
    yield "apiVersion: rljob.dev/v1alpha1"
    yield "kind: RLJob"
    yield f"metadata: {{name: {_text(plan.name)}}}"
    yield "spec:"
    yield f"  steps: {plan.steps} # optimizer steps"
    yield "  model:"
    yield f"    uri: {_text(plan.model)} # a folder in Hugging Face format"
    if plan.lora:
        yield f"    lora: {{rank: {plan.lora}, alpha: {2 * plan.lora}}} # train and publish adapters only"
    else:
        yield "    # lora: {rank: 16, alpha: 32}               # train adapters only: much less memory"
    yield from _data(plan)
    yield "  reward:"
    yield f'    functions: [{_text(plan.reward)}] # scores are added; your own: "my_module:function"'
    yield from _algorithm(plan)
    yield from _rollout(plan)
    yield from _trainer(plan)


def _data(plan: JobPlan) -> Iterator[str]:
    yield "  data:"
    yield f"    source: {plan.source}"
    yield f"    dataset: {_text(plan.dataset)}"
    if plan.template:
        yield f'    promptTemplate: {_text(plan.template)} # Jinja over a row\'s fields; "": the chat template'
    else:
        yield '    promptTemplate: "" # the model\'s own chat template'
    yield "    promptsPerStep: 16 # groups in a training step"
    yield "    groupSize: 8 # answers to each prompt; their rewards are compared"
    if plan.source == "reasoning-gym":
        yield "    # options: {min_terms: 2}                   # of the task: how hard it is"
    if plan.source == "reasoning-gym" or plan.heldout:
        yield "  evaluation: # on prompts that are not trained on"
        yield f"    everySteps: {max(1, min(20, plan.steps // 5))}"
        if plan.heldout_source == "reasoning-gym":
            yield "    samples: 100"
    else:
        yield "  # evaluation:                                 # on prompts of another file"
        yield "  #   everySteps: 20"
        yield "  #   data: {dataset: heldout.jsonl}"
    if plan.heldout:
        source = "" if plan.heldout_source == plan.source else f"source: {plan.heldout_source}, "
        yield f"    data: {{{source}dataset: {_text(plan.heldout)}}}"


def _algorithm(plan: JobPlan) -> Iterator[str]:
    rate = "1.0e-4" if plan.lora else "1.0e-6"
    yield "  algorithm:"
    yield "    loss: GRPO # DrGRPO, DAPO, GSPO, CISPO: docs/losses.md"
    yield f"    learningRate: {rate} # a tiny model takes 3.0e-4"
    yield "    kl: 0.0 # above 0: stay near the initial model"
    yield "    dropUniformGroups: true # groups whose answers all score the same teach nothing"
    yield "  pipeline:"
    yield "    mode: BoundedAsync # or Synchronous, Streaming (maxStaleness: 0)"
    yield "    maxStaleness: 2 # versions that a trained answer may be behind"


def _rollout(plan: JobPlan) -> Iterator[str]:
    yield "  rollout:"
    yield "    engine:"
    if plan.gpus:
        share = "0.4" if _is_shared(plan) else "0.9"
        yield "      name: vLLM"
        yield f"      options: {{slots: 128, dtype: bfloat16, gpuMemoryUtilization: {share}}}"
    else:
        yield "      name: Torch # vLLM: faster, on GPUs"
        yield "      options: {slots: 64, threads: 1}"
    yield "    sampling:"
    yield "      temperature: 1.0"
    yield f"      maxTokens: {plan.max_tokens} # of an answer"
    yield "    pools:"
    if not plan.gpus:
        yield "    - {name: cpu, replicas: 1}"
    elif plan.on_cluster:
        yield f"    - name: gpu\n      replicas: {max(1, plan.gpus - 1)}\n      template:"
        yield from _container("rollout", "        ", limit=plan.gpu_resource)
    elif _is_shared(plan):
        yield "    - {name: gpu, replicas: 1} # shares the GPU with the trainer"
    else:
        for number in range(1, plan.gpus):
            yield f"    - name: gpu{number}\n      template:"
            yield from _container("rollout", "        ", gpu=number)


def _trainer(plan: JobPlan) -> Iterator[str]:
    yield "  trainer:"
    yield "    backend: Torch # FSDP, DeepSpeed: models that need several GPUs"
    if plan.gpus:
        yield "    options: {device: cuda, dtype: bfloat16, activationCheckpointing: true}"
    else:
        yield "    options: {threads: 1}"
    yield "    microBatchTokens: 16384 # lower it if memory runs out"
    yield "    checkpoint: {everySteps: 10}"
    if plan.gpus and plan.on_cluster:
        yield "    template:"
        yield from _container("trainer", "      ", limit=plan.gpu_resource)
    elif plan.gpus and not _is_shared(plan):
        yield "    template:"
        yield from _container("trainer", "      ", gpu=0)


def _is_shared(plan: JobPlan) -> bool:
    return plan.gpus == 1 and not plan.on_cluster


def _container(name: str, indent: str, *, limit: str = "", gpu: int = 0) -> Iterator[str]:
    """A template in which a container asks for a GPU by a name, or sees the one of that number."""
    yield f"{indent}spec:"
    yield f"{indent}  containers:"
    yield f"{indent}  - name: {name}"
    if limit:
        yield f"{indent}    resources: {{limits: {{{limit}: 1}}}}"
    else:
        yield f'{indent}    env: [{{name: CUDA_VISIBLE_DEVICES, value: "{gpu}"}}]'


def _text(value: str) -> str:
    """A string as YAML: JSON's strings are YAML's."""
    return json.dumps(value, ensure_ascii=False)
