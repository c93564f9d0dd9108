"""The factory and the checks of the engine `HTTP`; importing it loads no aiohttp."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from urllib.parse import urlsplit

from rljob_core.config import JobConfig
from rljob_core.errors import SpecError
from rljob_core.ports import Engine
from rljob_runtime.engines.factory import NAME, OPTIONS, EngineFactory, check_length
from rljob_runtime.engines.http.options import HttpEngineOptions
from rljob_runtime.engines.stops import Decode
from rljob_runtime.model.settings import ModelSettings, check_tokenizer, model_settings

#: Host, port and path of a server.
_Address = tuple[str, int, str]
_ONE_SERVER_EACH = (
    "one server serves one replica; give each its own pool and url, or have something else give the server its weights "
    "(weights: Publish)"
)


def check_fit(model: ModelSettings, options: HttpEngineOptions) -> None:
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
        raise SpecError(NAME, "the engine HTTP needs aiohttp: install rljob[http]")


def check_pools(config: JobConfig) -> list[SpecError]:
    """Find the fields that give one server to two engines `HTTP` of which at least one replaces its weights.

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


def _create(model_path: Path, *, options: HttpEngineOptions, decode: Decode | None) -> Engine:
    from rljob_runtime.engines.http.engine import HttpEngine

    return HttpEngine(model_settings(model_path), options=options, decode=decode)


async def _check_server(options: HttpEngineOptions) -> None:
    from rljob_runtime.engines.http.capabilities import check_server

    await check_server(options)


HTTP = EngineFactory(
    _create, HttpEngineOptions, check_fit=check_fit, check_pools=check_pools, check_server=_check_server
)
