"""The panels of the Grafana dashboard, and their queries by the names of the metrics in the code."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from rljob_runtime.telemetry.catalogue import (
    CoordinatorMetrics,
    RewardMetrics,
    RolloutMetrics,
    TrainerMetrics,
)
from rljob_runtime.telemetry.metric import Metric

_JOB = 'namespace=~"$namespace", rljob=~"$rljob"'
_BY_JOB = "namespace, rljob"
_RANGE = "$__rate_interval"


@dataclass(frozen=True, slots=True)
class Panel:
    """One graph.

    Attributes:
        title: what it shows.
        queries: PromQL, each with the names of its lines.
        unit: as Grafana calls it.
        stacked: whether the lines add up to a whole.
        help: how to read it.
    """

    title: str
    queries: tuple[tuple[str, str], ...]
    unit: str = "short"
    stacked: bool = False
    help: str = ""


@dataclass(frozen=True, slots=True)
class PanelRow:
    """Panels under one heading."""

    title: str
    panels: Sequence[Panel] = field(default_factory=tuple)


def _of(metric: Metric, more: str = "") -> str:
    return f"{metric.name}{{{_JOB}{', ' if more else ''}{more}}}"


def _value(metric: Metric, by: str = _BY_JOB) -> str:
    return f"max by ({by}) ({_of(metric)})"


def _sum(metric: Metric, by: str) -> str:
    return f"sum by ({by}) ({_of(metric)})"


def _rate(metric: Metric, by: str = _BY_JOB) -> str:
    return f"sum by ({by}) (rate({_of(metric)}[{_RANGE}]))"


def _share(metric: Metric, label: str) -> str:
    """Share of the time of all processes, by state."""
    return f"{_rate(metric, label)} / ignoring ({label}) group_left sum(rate({_of(metric)}[{_RANGE}]))"


def _quantile(metric: Metric, quantile: float) -> str:
    buckets = f"{metric.name}_bucket{{{_JOB}}}"
    return f"histogram_quantile({quantile}, sum by (le, {_BY_JOB}) (rate({buckets}[{_RANGE}])))"


def _quantiles(metric: Metric) -> tuple[tuple[str, str], ...]:
    return tuple((_quantile(metric, q), f"{{{{rljob}}}} p{q * 100:.0f}") for q in (0.5, 0.99))


_C, _E, _R, _T = CoordinatorMetrics, RolloutMetrics, RewardMetrics, TrainerMetrics

_READY_GROUPS = _of(_C.BUFFER_GROUPS, 'state="occupied"')
_BY_STREAM = f"{_BY_JOB}, stream"
_BYTES = _value(_C.STREAM_BYTES, _BY_STREAM)

ROWS = (
    PanelRow(
        "Learning",
        (
            Panel(
                "Reward",
                (
                    (_value(_C.REWARD_MEAN), "{{rljob}} training"),
                    (
                        _value(_C.HELDOUT_REWARD, f"{_BY_JOB}, sampling, set"),
                        "{{rljob}} held-out {{set}}, {{sampling}}",
                    ),
                ),
            ),
            Panel(
                "pass@k", ((_value(_C.HELDOUT_PASS, f"{_BY_JOB}, k, set"), "{{rljob}} {{set}} pass@{{k}}"),)
            ),
            Panel("Steps", ((_value(_C.STEP), "{{rljob}}"), (_value(_C.LAST_STEP), "{{rljob}} end"))),
            Panel("Loss", ((_value(_T.LOSS), "{{rljob}}"),)),
            Panel("KL", ((_value(_T.KL), "{{rljob}}"),)),
            Panel("Norm of the gradient", ((_value(_T.GRAD_NORM), "{{rljob}}"),)),
            Panel(
                "Clipped tokens and importance weights",
                (
                    (_value(_T.CLIP_RATIO), "{{rljob}} clipped"),
                    (_value(_T.IMPORTANCE_MEAN), "{{rljob}} mean weight"),
                ),
            ),
        ),
    ),
    PanelRow(
        "Throughput",
        (
            Panel(
                "Tokens generated per second, by pool",
                ((_rate(_E.TOKENS, f"{_BY_JOB}, pool"), "{{rljob}} {{pool}}"),),
            ),
            Panel("Tokens trained per second", ((_rate(_T.TOKENS), "{{rljob}}"),)),
            Panel("Steps per hour", ((f"{_rate(_T.STEPS)} * 3600", "{{rljob}}"),)),
            Panel("Length of responses, tokens", ((_value(_C.RESPONSE_TOKENS_MEAN), "{{rljob}}"),)),
            Panel("Price of the engines per hour", ((_value(_C.COST_PER_HOUR), "{{rljob}}"),)),
            Panel(
                "Cost of the engines",
                (
                    (_sum(_C.COST, f"{_BY_JOB}, pod"), "{{rljob}} {{pod}}"),
                    (f"sum by ({_BY_JOB}) (increase({_of(_C.COST)}[$__range]))", "{{rljob}} in the range"),
                ),
                help="In the currency of costPerHour. Each coordinator counts from its start; the last point of "
                "`in the range` is what the range that is shown has cost.",
            ),
            Panel("Engines", ((_value(_C.ENGINES), "{{rljob}}"),)),
        ),
    ),
    PanelRow(
        "Where the time goes",
        (
            Panel(
                "Engines, by state",
                ((_share(_E.SECONDS, "state"), "{{state}}"),),
                "percentunit",
                stacked=True,
            ),
            Panel(
                "Rewards, by state",
                ((_share(_R.SECONDS, "state"), "{{state}}"),),
                "percentunit",
                stacked=True,
            ),
            Panel(
                "Trainer, by state",
                ((_share(_T.SECONDS, "state"), "{{state}}"),),
                "percentunit",
                stacked=True,
            ),
            Panel(
                "Starved stages",
                ((_rate(_C.STARVED_SECONDS, f"{_BY_JOB}, stage"), "{{rljob}} {{stage}}"),),
                "percentunit",
                help="Share of the time in which a stage had nothing to do.",
            ),
            Panel("Step", _quantiles(_T.STEP_SECONDS), "s"),
            Panel("Publishing weights", _quantiles(_T.PUBLISH_SECONDS), "s"),
            Panel("Reading weights", _quantiles(_E.READ_SECONDS), "s"),
            Panel("Swapping weights", _quantiles(_E.SWAP_SECONDS), "s"),
            Panel("Score", _quantiles(_R.SCORE_SECONDS), "s"),
        ),
    ),
    PanelRow(
        "Staleness and buffers",
        (
            Panel("Staleness of what is trained, versions", _quantiles(_T.STALENESS)),
            Panel(
                "Groups in the buffers, by state",
                ((_sum(_C.BUFFER_GROUPS, "state"), "{{state}}"),),
                stacked=True,
            ),
            Panel(
                "Groups that are ready, by how far ahead their step is",
                ((f"sum by (ahead) ({_READY_GROUPS})", "{{ahead}} ahead"),),
                stacked=True,
            ),
            Panel("Open trajectories, by state", ((_sum(_C.OPEN, "state"), "{{state}}"),), stacked=True),
            Panel("Version of each engine's weights", ((_value(_E.VERSION, f"{_BY_JOB}, pod"), "{{pod}}"),)),
            Panel("Slots", ((_value(_C.SLOTS), "{{rljob}}"), (_value(_C.SLOTS_TAKEN), "{{rljob}} taken"))),
        ),
    ),
    PanelRow(
        "Failures",
        (
            Panel(
                "Attempts started again per minute, by reason",
                ((f"{_rate(_C.FAILED_ATTEMPTS, 'reason')} * 60", "{{reason}}"),),
            ),
            Panel("Aborted trajectories, by reason", ((_sum(_C.ABORTED, "reason"), "{{reason}}"),)),
            Panel(
                "Tokens that were not lost to moves and deaths", ((_value(_C.RESUMED_TOKENS), "{{rljob}}"),)
            ),
            Panel("Weights that were not loaded, by reason", ((_rate(_E.REJECTED, "reason"), "{{reason}}"),)),
            Panel(
                "Trainer's attempt and coordinators",
                (
                    (_value(_T.ATTEMPT), "{{rljob}} attempt"),
                    (_value(_C.WRITER_EPOCH), "{{rljob}} coordinators"),
                ),
            ),
            Panel("Sites away", ((_value(_C.SITES_AWAY), "{{rljob}}"),)),
        ),
    ),
    PanelRow(
        "Stores",
        (
            Panel("Appending to the ledger", _quantiles(_C.LEDGER_APPEND_SECONDS), "s"),
            Panel("Deciding", _quantiles(_C.DECIDE_SECONDS), "s"),
            Panel("Storing trajectories", _quantiles(_E.STORE_SECONDS), "s"),
            Panel("Streams", ((_BYTES, "{{rljob}} {{stream}}"),), "bytes"),
            Panel(
                "Streams, share of their limits",
                (
                    (
                        f"{_BYTES} / {_value(_C.STREAM_LIMIT_BYTES, _BY_STREAM)}",
                        "{{rljob}} {{stream}}",
                    ),
                ),
                "percentunit",
            ),
            Panel("Checkpoints", _quantiles(_T.CHECKPOINT_SECONDS), "s"),
        ),
    ),
    PanelRow(
        "Processes, and vLLM by its own metrics",
        (
            Panel("Resident memory", ((f"process_resident_memory_bytes{{{_JOB}}}", "{{pod}}"),), "bytes"),
            Panel("CPUs", ((f"rate(process_cpu_seconds_total{{{_JOB}}}[{_RANGE}])", "{{pod}}"),)),
            Panel(
                "vLLM: KV cache in use", ((f"vllm:kv_cache_usage_perc{{{_JOB}}}", "{{pod}}"),), "percentunit"
            ),
            Panel("vLLM: requests that wait", ((f"vllm:num_requests_waiting{{{_JOB}}}", "{{pod}}"),)),
            Panel("vLLM: requests that run", ((f"vllm:num_requests_running{{{_JOB}}}", "{{pod}}"),)),
            Panel(
                "vLLM: preemptions per minute",
                ((f"rate(vllm:num_preemptions_total{{{_JOB}}}[{_RANGE}]) * 60", "{{pod}}"),),
            ),
        ),
    ),
)
