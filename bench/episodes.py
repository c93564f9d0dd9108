"""Episodes of several turns: what it brings that they leave their slots while they wait, and what the gateway costs.

Whole jobs with real processes, NATS and the real protocol; the engine is emulated (it sleeps).

1. *Waiting.* An environment takes log-normal seconds for a reaction, with a median of that of a response and a 99th
   percentile of twenty times as much; episodes have three turns. `Synchronous`, then episodes that keep their slots
   while they wait (`episodesPerSlot: 1`; the engine still holds a quarter more than it has slots), then those that do
   not.
2. *The gateway.* The tokens per second of a job without an environment beside those of a job whose responses are asked
   for by a program, one question each, through OpenAI's chat completions (`agent`); as many at a time in both.

The first steps fill the pipeline and are left out.
"""

from __future__ import annotations

import math
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.jobs import MODEL, run_job, steps_of

STEP_SECONDS = 0.02
SIGMA = math.log(20) / 2.326
"""So that the 99th percentile of a log-normal number is twenty times its median."""
TURNS = 3
GATEWAY_SLOTS = 64

MANIFEST = """\
apiVersion: rljob.dev/v1alpha1
kind: RLJob
metadata: {{name: episodes}}
spec:
  steps: {steps}
  model: {{uri: {model}}}
  data: {{dataset: chain_sum, options: {{min_terms: 2, max_terms: 2, min_digits: 1, max_digits: 2}},
         promptTemplate: "{{{{ metadata.expression | replace(' ', '') }}}}=", promptsPerStep: {prompts}, groupSize: 8}}
  reward: {{functions: [{reward}]}}
  pipeline: {pipeline}
  rollout:
    engine: {{name: Emulated, options: {{slots: {slots}, stepSeconds: {step}, lengths: {{median: {tokens},
             sigma: 0.2, promptSigma: 0.0, min: {least}, max: {most}}}}}}}
    sampling: {{maxTokens: {room}}}
    {environment}
    pools: [{{name: emulated, replicas: {engines}}}]
  trainer: {{backend: Emulated, microBatchTokens: 2000, checkpoint: {{everySteps: 1000}},
            options: {{secondsPerToken: 0.0}}}}
"""


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is measured.

    Attributes:
        steps, skip: of a job of episodes, and how many at the beginning are left out.
        prompts: in a step, with 8 episodes each.
        slots: of each of two engines.
        tokens: of a response in an episode, on average; 25 take half a second.
        gateway_tokens: of a response that is asked for through the gateway, on average.
        gateway_steps: of the jobs with and without it, the first of which is left out.
    """

    steps: int = 10
    skip: int = 4
    prompts: int = 8
    slots: int = 8
    tokens: int = 25
    gateway_tokens: int = 1000
    gateway_steps: int = 6


FULL = Sizes()
SMOKE = Sizes(steps=3, skip=1, prompts=2, slots=4, tokens=4, gateway_tokens=20, gateway_steps=2)
SIZES = {"full": FULL, "quick": Sizes(steps=7, skip=3, gateway_tokens=500, gateway_steps=4), "smoke": SMOKE}


def measured(skip: int, **values: Any) -> tuple[float, float]:
    """Run a job; its seconds for a step and its model's tokens per second, after the first `skip` steps."""
    with tempfile.TemporaryDirectory() as temporary:
        manifest, folder = Path(temporary) / "episodes.yaml", Path(temporary) / "run"
        manifest.write_text(MANIFEST.format(model=MODEL, step=STEP_SECONDS, **values))
        run_job(manifest, folder, audit=False)
        lines = steps_of(folder)
    seconds = lines[-1]["seconds"] - lines[skip - 1]["seconds"]
    tokens = sum(line["response_tokens_mean"] for line in lines[skip:]) * 8 * values["prompts"]
    return seconds / (len(lines) - skip), tokens / seconds


def waiting(sizes: Sizes) -> list[dict[str, Any]]:
    """Seconds for a step of each way to wait for an environment."""
    rows: list[dict[str, Any]] = []
    ahead = "{mode: BoundedAsync, maxStaleness: 2, window: 0}"
    print(f"{'waiting for environments':<40} {'s/step':>7} {'episodes/s':>10} {'over keeping':>12}")
    for name, pipeline, per_slot in (
        ("keeps its slot", ahead, 1),
        ("Synchronous", "{mode: Synchronous}", 1),
        ("leaves its slot, 2 open for each", ahead, 2),
        ("leaves its slot, 4 open for each", ahead, 4),
    ):
        median = STEP_SECONDS * sizes.tokens
        environment = (
            f"environment: {{name: 'bench.slow_environment:SlowEnvironment', maxTurns: {TURNS}, timeoutSeconds: 600, "
            f"episodesPerSlot: {per_slot}, options: {{median: {median}, sigma: {SIGMA}}}}}"
        )
        seconds, _ = measured(
            sizes.skip, steps=sizes.steps, prompts=sizes.prompts, reward="environment", pipeline=pipeline,
            slots=sizes.slots, tokens=sizes.tokens, least=sizes.tokens // 2, most=2 * sizes.tokens, room=400,
            environment=environment, engines=2,
        )  # fmt: skip
        rows.append({"name": name, "seconds_per_step": seconds, "episodes_per_slot": per_slot})
        rate = 8 * sizes.prompts / seconds
        ratio = rows[0]["seconds_per_step"] / seconds
        print(f"{name:<40} {seconds:>7.2f} {rate:>10.1f} {ratio:>11.2f}x", flush=True)
    return rows


def gateway(sizes: Sizes) -> dict[str, Any]:
    """Tokens per second without an environment, and through the gateway."""
    program = "{command: [python, -m, bench.one_question, '{prompt}'], plainText: true}"
    agent = f"environment: {{name: agent, maxTurns: 1, timeoutSeconds: 120, options: {program}}}"
    found: dict[str, Any] = {}
    print(f"\n{'tokens':<40} {'s/step':>7} {'tokens/s':>10} {'of direct':>12}")
    for name, reward, environment in (("direct", "exact_match", ""), ("gateway", "environment", agent)):
        seconds, tokens = measured(
            1, steps=sizes.gateway_steps, prompts=GATEWAY_SLOTS // 8, reward=reward,
            pipeline="{mode: BoundedAsync, maxStaleness: 1, window: 0}", slots=GATEWAY_SLOTS,
            tokens=sizes.gateway_tokens, least=sizes.gateway_tokens // 2, most=2 * sizes.gateway_tokens,
            room=2 * sizes.gateway_tokens, environment=environment, engines=1,
        )  # fmt: skip
        found[f"{name}_tokens_per_second"] = tokens
        ratio = tokens / found["direct_tokens_per_second"]
        print(f"{name:<40} {seconds:>7.2f} {tokens:>10.0f} {ratio:>12.2f}", flush=True)
    return found


def main(sizes: Sizes = FULL) -> dict[str, Any]:
    """Print both tables."""
    return {"rows": waiting(sizes), "gateway": gateway(sizes)}
