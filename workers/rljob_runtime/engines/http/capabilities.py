"""Finds out what a completions server can do, by asking it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

import numpy as np

from rljob_core.errors import ResourceMissing, SpecError
from rljob_core.ports import Request
from rljob_runtime.engines.factory import OPTIONS
from rljob_runtime.engines.http.options import HttpEngineOptions
from rljob_runtime.engines.http.server import (
    Piece,
    RequestRefused,
    Server,
    ServerBroken,
    ServerUnavailable,
)
from rljob_runtime.engines.random_stream import stream
from rljob_runtime.engines.vllm.names import DRAWN, SEED

#: A server's label while weights are being replaced.
LOADING = "loading"
#: What shapes a distribution besides: a server fills in what is not said from the model's generation_config.json.
_NOTHING_ELSE = {
    "top_k": -1,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
}
#: Seconds that a check of a server may take; its first token may take some.
_CHECK_SECONDS = 10.0
#: Tokens that a server draws for a check of its distribution, and the likeliest ones that it lists of each.
#: A vLLM server that is asked to list more than its model has tokens ends: the tiny models of tests have 16.
_DRAWN, _LISTED = 128, 16
#: A log-probability below this is of a token that cannot be drawn: vLLM writes minus infinity as -9999.
_NEVER = -1000.0
#: Standard deviations from its expectation that a count may have. One in 10^8 honest servers deviates more.
_DEVIATIONS = 6.0
#: A count of less variance than this decides nothing.
_LEAST_VARIANCE = 4.0


class LogprobKind(Enum):
    """The distribution that a server's log-probabilities are of."""

    OURS = "of the tempered distribution before truncation, by our sampler"
    RAW = "of the untempered distribution"
    PROCESSED = "of the tempered distribution after truncation"
    UNKNOWN = "not known"


@dataclass(frozen=True, slots=True)
class ServerCapabilities:
    """What a server serves, and with which log-probabilities.

    Attributes:
        name: the server's name of the model.
        context: prompt and response together at most, in tokens; None if it does not say.
        logprobs_are: of which distribution its log-probabilities are.
        seeds: whether its requests may carry seeds.
    """

    name: str
    context: int | None
    logprobs_are: LogprobKind
    seeds: bool

    def unsupported(self, request: Request) -> str:
        """Why the server's log-probabilities of these samples are not those that training needs; empty if they are."""
        tempered, truncated = request.temperature not in (0, 1), request.temperature > 0 and request.top_p < 1
        if tempered and self.logprobs_are in (LogprobKind.RAW, LogprobKind.UNKNOWN):
            return (
                "the server sends log-probabilities before temperature, and training needs those after: "
                "start it with --logprobs-mode processed_logprobs, or set spec.rollout.sampling.temperature to 1"
            )
        if truncated and self.logprobs_are in (LogprobKind.PROCESSED, LogprobKind.UNKNOWN):
            return (
                "the server sends log-probabilities after truncation by topP, and training needs those "
                "before: set spec.rollout.sampling.topP to 1"
            )
        return ""

    def body(
        self,
        prompt: list[int],
        *,
        seed: int,
        drawn: int,
        left: int,
        temperature: float,
        top_p: float,
        stop: Iterable[int],
    ) -> dict[str, Any]:
        """A request for a completion.

        Args:
            prompt: token ids to continue from, the response's own included.
            seed: of the response.
            drawn: tokens that it has already.
            left: tokens that it may still have.
            temperature, top_p: of the sampling.
            stop: tokens that end it.
        """
        ours = self.logprobs_are is LogprobKind.OURS
        body: dict[str, Any] = {
            "model": self.name,
            "prompt": prompt,
            "max_tokens": left,
            "temperature": temperature,
            "top_p": top_p,
            **_NOTHING_ELSE,
            "logprobs": 0 if ours else 1,
            "stop_token_ids": sorted(stop),
            "ignore_eos": True,
            "return_token_ids": True,
            "return_tokens_as_token_ids": True,
        }
        if ours:
            body["vllm_xargs"] = {SEED: str(seed), DRAWN: drawn}
        elif self.seeds:
            body["seed"] = int(stream(seed, drawn) >> np.uint64(1))
        return body


async def discover_capabilities(server: Server, options: HttpEngineOptions) -> ServerCapabilities:
    """All of it, with our sampler in the server's workers if they have our extension.

    A vLLM server whose weights we replace is resumed, if it was left paused.

    Raises:
        SpecError: it has no such model, does not report or take versions, completes without token ids or
            log-probabilities, or does not sample as it is asked to.
        RequestRefused, ServerBroken, ServerUnavailable: it does not answer as a completions server, or not now.
    """
    capabilities = await _with_name(server, options)
    if await _check_versions(server, options):
        # Another engine died while it replaced the weights, so which ones are loaded is not known: the label says so.
        await relabel(server, LOADING)
        await server.ask("POST", "/resume")
    capabilities = await _with_logprob_kind(server, capabilities)
    if capabilities.logprobs_are is not LogprobKind.OURS:
        await _check_distribution(server, capabilities)
    return capabilities


async def rediscover_capabilities(server: Server, options: HttpEngineOptions) -> ServerCapabilities:
    """As `discover_capabilities`, of a server that may have been restarted since.

    A paused server is not resumed, since we may be replacing its weights at this moment.

    Raises:
        SpecError, RequestRefused, ServerBroken, ServerUnavailable: as `discover_capabilities`.
    """
    return await _with_logprob_kind(server, await _with_name(server, options))


async def check_server(options: HttpEngineOptions) -> None:
    """Check that a server that answers now has what training needs: asks it for some tokens, and changes nothing.

    The caller may be elsewhere than the workers, without the key, or early. So a server that does not answer, or not to
    this caller, is not refused: the engine checks again when it starts.

    Raises:
        SpecError: as `discover_capabilities`.
    """
    server = Server(
        options.url, key_variable=options.api_key_variable, patience=_CHECK_SECONDS, connections=1
    )
    try:
        async with asyncio.timeout(_CHECK_SECONDS):
            await server.open()
            capabilities = await _with_name(server, options, patient=False)
            if not await _check_versions(server, options):
                await _probe(server, capabilities, temperature=0.0)
                await _check_distribution(server, capabilities)
    except (ResourceMissing, RequestRefused, ServerBroken, ServerUnavailable, TimeoutError):
        return
    finally:
        await server.close()


async def _with_logprob_kind(server: Server, capabilities: ServerCapabilities) -> ServerCapabilities:
    """The capabilities completed by which log-probabilities the server sends."""
    with suppress(RequestRefused):  # vLLM without our extension answers 500, and always will
        answer = await server.ask("POST", "/collective_rpc", {"method": "rljob_sampler"}, patient=False)
        if all(str(found) == "True" for found in answer["results"]):
            capabilities = replace(capabilities, logprobs_are=LogprobKind.OURS)
    plain = await _probe(server, capabilities, temperature=0.0)
    if capabilities.logprobs_are is LogprobKind.OURS:
        return capabilities
    # The likeliest token is less likely in a flatter distribution.
    flat = await _probe(server, capabilities, temperature=2.0)
    if plain is None or flat is None:
        return capabilities
    kind = LogprobKind.RAW if abs(plain - flat) < 1e-4 else LogprobKind.PROCESSED
    return replace(capabilities, logprobs_are=kind)


async def _with_name(
    server: Server, options: HttpEngineOptions, *, patient: bool = True
) -> ServerCapabilities:
    answer = await server.ask("GET", "/v1/models", patient=patient)
    try:
        models = {str(entry["id"]): entry for entry in answer["data"]}
    except (KeyError, TypeError) as error:
        raise RequestRefused(
            200, f"what it answers at /v1/models lists no models: {answer!r:.100}"
        ) from error
    name = options.model
    if not name and len(models) == 1:
        name = next(iter(models))
    if name not in models:
        asked = f"no {name!r}" if name else "no one to take unnamed"
        raise SpecError(
            f"{OPTIONS}.model",
            f"the server has {', '.join(models) or 'none'}, and {asked}: write what it has",
        )
    context = models[name].get("max_model_len")
    return ServerCapabilities(
        name, context if isinstance(context, int) else None, LogprobKind.UNKNOWN, options.seeds
    )


async def _check_versions(server: Server, options: HttpEngineOptions) -> bool:
    """Whether the server is paused, if that is ours to end.

    Raises:
        SpecError: it does not tell its version, or does not take others.
    """
    try:
        await label(server, options)
        if options.weights == "Reload" and not options.reload_path:
            return bool((await server.ask("GET", "/is_paused"))["is_paused"])
    except (RequestRefused, KeyError, TypeError) as error:
        hint = "start vLLM's server with VLLM_SERVER_DEV_MODE=1, or name another server's paths in "
        raise SpecError(
            f"{OPTIONS}.weights",
            f"the server does not tell or take versions of weights ({error}): {hint}reloadPath and versionPath",
        ) from error
    return False


async def label(server: Server, options: HttpEngineOptions) -> str:
    """What the server calls the weights that it has."""
    return str((await server.ask("GET", options.version_path))["weight_version"])


async def relabel(server: Server, name: str, *, patient: bool = True) -> None:
    """Tell vLLM's server what to call the weights that it has."""
    await server.ask("POST", "/update_weight_version", {"new_version": name}, patient=patient)


async def _probe(server: Server, capabilities: ServerCapabilities, *, temperature: float) -> float | None:
    """Log-probability of the likeliest token behind a prompt, if the server sends it.

    Raises:
        SpecError: it sends no log-probabilities, or no token ids.
        ServerBroken: it was paused, or ended, meanwhile.
    """
    body = capabilities.body([1, 2, 3], seed=0, drawn=0, left=1, temperature=temperature, top_p=1.0, stop=())
    found = await _completed(server, body)
    return next((piece.top[0][0] for piece in found if piece.top), None)


async def _check_distribution(server: Server, capabilities: ServerCapabilities) -> None:
    """Check that a server draws tokens from the distribution whose log-probabilities it sends.

    One that adds top_k, min_p or penalties of its own, from the model's generation config for instance, draws from
    another one, and training would correct for what did not happen.

    Raises:
        SpecError: it does not.
        ServerBroken: it was paused, or ended, meanwhile.
    """
    left = min(_DRAWN, (capabilities.context or _DRAWN + 3) - 3)
    body = capabilities.body([1, 2, 3], seed=0, drawn=0, left=left, temperature=1.0, top_p=1.0, stop=())
    try:
        found = await _completed(server, body | {"logprobs": _LISTED})
    except RequestRefused:  # it lists fewer
        found = await _completed(server, body)
    pieces = [piece for piece in found if len(piece.top) == len(piece.tokens)]
    drawn = [logprob for piece in pieces for logprob in piece.logprobs]
    top = [each for piece in pieces for each in piece.top]
    if why := draws_otherwise(drawn, top):
        raise SpecError(
            f"{OPTIONS}.url",
            f"the server does not sample as it is asked to (temperature 1, nothing truncated, no penalties): {why}. "
            "Does it take top_k, min_p or penalties from the model's generation_config.json? Start vLLM's server with "
            "--generation-config vllm",
        )


def draws_otherwise(drawn: Sequence[float], top: Sequence[Sequence[float]]) -> str:
    """Why tokens were not drawn from the distributions whose log-probabilities are known; empty if they may have been.

    Whether a token is among the k likeliest has the expectation p, the sum of their probabilities, whatever was drawn
    before. So over all tokens, the sum of (1 if it is, else 0) - p has the expectation 0 and the variance of the sum of
    p (1 - p): it is a martingale.

    Args:
        drawn: log-probability of each token.
        top: those of the likeliest tokens at its position, the likeliest first.
    """
    if not drawn:
        return ""
    listed = min(_LISTED, *map(len, top))
    likeliest = np.array([each[:listed] for each in top], dtype=np.float64)
    if (likeliest < _NEVER).any():
        return f"some of the {listed} likeliest tokens cannot be drawn"
    for k in range(1, listed + 1):
        least = likeliest[:, k - 1] - 1e-6
        among = np.asarray(drawn) >= least
        expected = np.where(likeliest >= least[:, None], np.exp(likeliest), 0.0).sum(axis=1).clip(max=1.0)
        variance = (expected * (1 - expected)).sum()
        off = among.sum() - expected.sum()
        if variance >= _LEAST_VARIANCE and abs(off) > _DEVIATIONS * variance**0.5:
            which = "the likeliest one" if k == 1 else f"among the {k} likeliest ones"
            return (
                f"{among.sum()} of {len(drawn)} tokens were {which}, where {expected.sum():.0f} are expected"
            )
    return ""


async def _completed(server: Server, body: dict[str, Any]) -> list[Piece]:
    """A completion.

    Raises:
        SpecError: it has no log-probabilities, no token ids, or no token at all.
        ServerBroken: the server was paused, or ended, meanwhile.
    """
    async with server.completion(body) as pieces:
        found = [piece async for piece in pieces]
    if any(piece.finish == "abort" for piece in found):
        raise ServerBroken(f"{server.url} broke a completion off")
    if not any(piece.tokens for piece in found):
        raise SpecError(f"{OPTIONS}.url", "the server completes a prompt with no token at all")
    return found
