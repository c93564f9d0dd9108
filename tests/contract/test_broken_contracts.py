"""Each contract's checks detect the mistakes that they are for, and describe them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.night import some

from rljob_contract.backend import BACKEND, BackendSubject
from rljob_contract.check import Contract, Finding, examine, examine_blocking, without_time_limit
from rljob_contract.engine import ENGINE
from rljob_contract.engine_subject import EngineSubject
from rljob_contract.loss import LOSS
from rljob_contract.reward import REWARD, RewardSubject
from rljob_contract.samples import job_config
from rljob_core.errors import JobFailed, WeightsRejected
from rljob_core.messages import StepStats
from rljob_core.ports import Completed, EngineEvent, EngineLoad, Progress, Request, TrainingSample
from rljob_runtime.engines.stepped import SteppedEngine

VOCABULARY = 64
PATIENCE = 300.0  # seconds
SILENCE = "it did not finish within "


def heard(claim: str) -> None:
    """Nobody looks on."""


def found_by(findings: Sequence[Finding]) -> dict[str, str]:
    return {finding.name: finding.found for finding in findings if finding.found}


# ------------------------------------------------------------------------------------------------------- engines


class Bigrams(SteppedEngine):
    """A sound engine: the next token's logits are a row of a table."""

    def __init__(self) -> None:
        super().__init__(Path("none"), slots=2)
        self._table = np.zeros((VOCABULARY, VOCABULARY), np.float32)

    def take(self, tensors: Mapping[str, Any] | None) -> None:
        if tensors is not None and tensors.keys() != {"table"}:
            raise WeightsRejected("one table is the model")
        self._table = np.zeros_like(self._table) if tensors is None else np.asarray(tensors["table"])

    def logits(self, sequences: Sequence[NDArray[np.int32]]) -> NDArray[np.float32]:
        return self._table[[int(sequence[-1]) for sequence in sequences]]


class Altered(Bigrams):
    """Reports something else than it has made."""

    def alter(self, event: Completed) -> EngineEvent:
        return event

    async def events(self) -> Sequence[EngineEvent]:
        events = await super().events()
        return [self.alter(event) if isinstance(event, Completed) else event for event in events]


class WideTokens(Altered):
    def alter(self, event: Completed) -> EngineEvent:
        return replace(event, tokens=event.tokens.astype(np.int64))


class OneVersion(Altered):
    def alter(self, event: Completed) -> EngineEvent:
        return replace(event, versions=np.full_like(event.versions, event.versions[-1]))


class PositiveLogprobs(Altered):
    def alter(self, event: Completed) -> EngineEvent:
        return replace(event, logprobs=-event.logprobs)


class BeyondTheVocabulary(Altered):
    def alter(self, event: Completed) -> EngineEvent:
        return replace(event, tokens=event.tokens + np.int32(VOCABULARY))


class SaysTwice(Bigrams):
    async def events(self) -> Sequence[EngineEvent]:
        events = await super().events()
        return [*events, *events]


class OneRandomStream(Bigrams):
    """Draws from what all responses share."""

    def submit(self, requests: Sequence[Request]) -> None:
        self._numbers = getattr(self, "_numbers", 0) + 1
        super().submit([replace(request, seed=request.seed + self._numbers) for request in requests])


class NeverForgets(Bigrams):
    def cancel(self, ids: Sequence[str]) -> None:
        pass


class CountsItself(Bigrams):
    """Believes a swap before it was read."""

    async def swap(self, version: int, tensors: Iterable[tuple[str, Any]] | None, inflight: str) -> None:
        self.version = version
        await super().swap(version, tensors, inflight)


class NeverKeeps(Bigrams):
    async def swap(self, version: int, tensors: Iterable[tuple[str, Any]] | None, inflight: str) -> None:
        await super().swap(version, tensors, "Update")


class StartsAgain(Bigrams):
    """Inherits nothing."""

    def submit(self, requests: Sequence[Request]) -> None:
        super().submit([replace(request, inherited=None) for request in requests])


class ForgetsAtTheEnd(Bigrams):
    async def close(self) -> None:
        await super().close()
        self._running.clear()


class TellsAll(Bigrams):
    async def progress(self, least: Mapping[str, int]) -> Sequence[Progress]:
        return await super().progress(dict.fromkeys(least, 0))


class Greedy(Bigrams):
    """Runs all that it is given."""

    def load(self) -> EngineLoad:
        load = super().load()
        return EngineLoad(load.running + load.waiting, 0, load.tokens)


class IgnoresAgain(Bigrams):
    """Goes on with the first of two requests of one id."""

    def submit(self, requests: Sequence[Request]) -> None:
        super().submit([request for request in requests if request.id not in self._running])


class AsksForTokens(Bigrams):
    """Inherits more than it may."""

    def submit(self, requests: Sequence[Request]) -> None:
        super().submit(
            [
                replace(r, max_tokens=max(r.max_tokens, r.inherited_tokens + 1) if r.max_tokens else 0)
                for r in requests
            ]
        )


class NeverEnds(Bigrams):
    """Leaves those that wait for it waiting."""

    async def close(self) -> None:
        if self._task is not None:
            self._task.remove_done_callback(self._ended)
            self._task.cancel()


class BornOld(Bigrams):
    async def start(self) -> None:
        await super().start()
        self.version = 0


class Failing(Bigrams):
    def logits(self, sequences: Sequence[NDArray[np.int32]]) -> NDArray[np.float32]:
        raise RuntimeError("no memory")


class Silent(Bigrams):
    """Takes what is empty without a word."""

    def submit(self, requests: Sequence[Request]) -> None:
        super().submit([request for request in requests if len(request.tokens) and request.max_tokens])


ENGINES: list[tuple[type[Bigrams], str, str]] = [
    (WideTokens, "responses-have-what-was-asked-for", "tokens of 'b' are int64[1], not int32[1]"),
    (PositiveLogprobs, "responses-have-what-was-asked-for", "not a finite float32 and at most 0"),
    (
        BeyondTheVocabulary,
        "responses-have-what-was-asked-for",
        f"the model's token ids are 0 to {VOCABULARY - 1}",
    ),
    (SaysTwice, "responses-have-what-was-asked-for", "a second event came about 'b'"),
    (
        Failing,
        "responses-have-what-was-asked-for",
        "Stopped('EngineFailed', failure=True, detail='RuntimeError: no memory'",
    ),
    (BornOld, "responses-have-what-was-asked-for", "a new engine's version is 0, not -1"),
    (Greedy, "more-than-its-slots-wait-their-turn", "with 2 slots load() sees 6 running and 0 waiting"),
    (OneRandomStream, "a-response-depends-on-prompt-and-seed-alone", "alone it was "),
    (OneVersion, "update-goes-on-under-the-new-weights", "versions of 'b' are 3 x "),
    (NeverKeeps, "keep-ends-what-runs-and-then-swaps", "versions of 'old' are 0 x "),
    (NeverForgets, "what-is-cancelled-is-forgotten", "an event came about "),
    (NeverKeeps, "restart-stops-what-runs", "'0' was running: Completed with 1200 tokens"),
    (
        IgnoresAgain,
        "the-same-id-again-takes-the-place-of-the-first",
        "tokens of 'a' are int32[1200], not int32[7]",
    ),
    (
        AsksForTokens,
        "a-request-that-inherits-all-that-it-may-have-fails-alone",
        "'none left': Completed with 5 tokens",
    ),
    (NeverEnds, "a-closed-engine-says-so", SILENCE),
    (CountsItself, "weights-that-do-not-verify-change-nothing", "the version is 1, not 0 as before"),
    (StartsAgain, "another-engine-goes-on-as-if-nothing-had-happened", "versions"),
    (TellsAll, "progress-returns-running-responses-that-are-long-enough", "reports a response of "),
    (ForgetsAtTheEnd, "a-closed-engine-still-returns-its-progress", "of a, b it reports none"),
    (Silent, "an-empty-request-fails-alone", SILENCE),
]


async def engine_findings(
    kind: Callable[[], Bigrams], names: Sequence[str], *, patience: float = PATIENCE
) -> dict[str, str]:
    weights = {"table": np.zeros((VOCABULARY, VOCABULARY), np.float32)}
    subject = EngineSubject(kind, weights.items, longest=1200, endless=1200, vocabulary=VOCABULARY)
    try:
        checks = [check for check in ENGINE if check.name in names or not names]
        return found_by(await examine(checks, subject, begin=heard, patience=patience))
    finally:
        await subject.close()


async def test_a_sound_engine_passes() -> None:
    assert await engine_findings(Bigrams, []) == {}


@pytest.mark.parametrize(
    ("kind", "name", "words"), some(ENGINES, 4), ids=lambda value: getattr(value, "__name__", "")
)
async def test_an_engines_mistake_is_found(kind: type[Bigrams], name: str, words: str) -> None:
    patience = 3.0 if words == SILENCE else PATIENCE
    assert words in (await engine_findings(kind, [name], patience=patience)).get(name, "")


# ------------------------------------------------------------------------------------------------------ backends


class Counting:
    """A sound backend: adds up advantages, and steps by their mean."""

    def __init__(self) -> None:
        self.load(None)
        self.load_state(None)

    def load(self, tensors: Iterable[tuple[str, Any]] | None) -> None:
        held = {"w": np.zeros(2, np.float32)} if tensors is None else dict(tensors)
        if held.keys() != {"w"} or tuple(held["w"].shape) != (2,):
            raise WeightsRejected("the weights are w, two numbers")
        self.w = np.array(held["w"], np.float32)
        self.begin_step(0)

    def load_state(self, folder: str | None) -> None:
        if folder is None:
            self.momentum = 0.0
            return
        try:
            self.momentum = json.loads((Path(folder) / "state.json").read_text())
        except OSError as error:
            raise JobFailed(f"{folder} holds no state") from error

    def begin_step(self, step: int) -> None:
        self.step = step
        self.sums: list[float] = []
        self.staleness: list[int] = []

    def accumulate(self, samples: Sequence[TrainingSample]) -> None:
        self.sums += [abs(each.item.advantage) for each in samples]
        self.staleness += [self.step - each.trajectory.span.min for each in samples]

    def gradient(self) -> float:
        return sum(self.sums) / max(1, len(self.sums))

    def finish_step(self) -> StepStats:
        self.momentum = 0.5 * self.momentum + self.gradient()
        self.w = self.w + np.float32(self.momentum)
        stale = self.staleness or [0]
        return StepStats(
            loss=-float(self.w.sum()),
            tokens=len(self.sums),
            staleness_max=max(stale),
            staleness_mean=sum(stale) / len(stale),
        )

    def tensors(self) -> Iterator[tuple[str, Any]]:
        yield "w", self.w

    def random_state(self) -> str:
        return ""

    def save(self, folder: str) -> None:
        (Path(folder) / "state.json").write_text(json.dumps(self.momentum))


class StandsStill(Counting):
    def gradient(self) -> float:
        return 0.0


class Uphill(Counting):
    def finish_step(self) -> StepStats:
        stats = super().finish_step()
        return replace(stats, loss=-stats.loss)


class LastMicroBatch(Counting):
    def accumulate(self, samples: Sequence[TrainingSample]) -> None:
        self.sums = []
        super().accumulate(samples)


class DividesByNothing(Counting):
    def gradient(self) -> float:
        return sum(self.sums) / len(self.sums)


class Accumulates(Counting):
    def begin_step(self, step: int) -> None:
        kept = getattr(self, "sums", [])
        super().begin_step(step)
        self.sums = kept


class Random(Counting):
    def gradient(self) -> float:
        return super().gradient() * float(np.random.default_rng().uniform(0.5, 1))


class ForgetsMomentum(Counting):
    def load_state(self, folder: str | None) -> None:
        super().load_state(folder)
        self.momentum = 0.0


class KeepsMomentum(Counting):
    def load_state(self, folder: str | None) -> None:
        if folder is not None or not hasattr(self, "momentum"):
            super().load_state(folder)


class TakesAnything(Counting):
    def load(self, tensors: Iterable[tuple[str, Any]] | None) -> None:
        held = {} if tensors is None else dict(tensors)
        super().load({"w": held["w"]}.items() if "w" in held else None)


class Aliases(Counting):
    def load(self, tensors: Iterable[tuple[str, Any]] | None) -> None:
        held = None if tensors is None else dict(tensors)
        super().load(None if held is None else held.items())
        if held is not None:
            self.w = np.asarray(held["w"])

    def finish_step(self) -> StepStats:
        before = self.w
        stats = super().finish_step()
        before += 1
        return stats


class StartsFresh(Counting):
    def load_state(self, folder: str | None) -> None:
        if folder is None or (Path(folder) / "state.json").exists():
            super().load_state(folder)


class Fresh(Counting):
    def accumulate(self, samples: Sequence[TrainingSample]) -> None:
        super().accumulate(samples)
        self.staleness = [0]


BACKENDS: dict[type[Counting], tuple[str, str]] = {
    StandsStill: ("a-step-changes-the-weights", "all weights are what they were"),
    Uphill: ("the-loss-falls", "over six steps it went from "),
    LastMicroBatch: (
        "micro-batches-add-up-to-the-whole-batch",
        "in four micro-batches: the weights differ by ",
    ),
    DividesByNothing: ("a-step-without-samples-is-a-step", "it raised ZeroDivisionError: "),
    Random: ("the-same-start-and-samples-give-the-same-step", "the weights differ by "),
    Accumulates: ("begin-step-forgets-what-was-accumulated", "after begin_step(): the weights differ by "),
    Aliases: ("published-weights-load-again", "a step has changed tensors that load() was given: w"),
    KeepsMomentum: ("load-none-restores-the-initial-state", "in the step after load_state(None)"),
    ForgetsMomentum: (
        "a-restored-state-takes-the-very-same-next-step",
        "in the step after it: the weights differ",
    ),
    TakesAnything: ("weights-of-another-model-are-refused", "load() has taken a tensor too few"),
    StartsFresh: ("a-folder-without-a-checkpoint-is-refused", "load_state() has taken an empty folder"),
    Fresh: ("staleness-is-stated", "half of the samples are 1 stale: it says at most 0"),
}


def backend_findings(kind: Callable[[], Counting], folder: Path, names: Sequence[str]) -> dict[str, str]:
    checks = [check for check in BACKEND if check.name in names or not names]
    return found_by(examine_blocking(checks, BackendSubject(kind, lambda: folder), begin=heard))


def test_a_sound_backend_passes(tmp_path: Path) -> None:
    full, empty = tmp_path / "full", tmp_path / "empty"
    full.mkdir()
    empty.mkdir()
    names = [check.name for check in BACKEND if check.name != "a-folder-without-a-checkpoint-is-refused"]
    assert backend_findings(Counting, full, names) == {}
    assert backend_findings(Counting, empty, ["a-folder-without-a-checkpoint-is-refused"]) == {}


@pytest.mark.parametrize("kind", some(list(BACKENDS), 4), ids=lambda kind: kind.__name__)
def test_a_backends_mistake_is_found(kind: type[Counting], tmp_path: Path) -> None:
    name, words = BACKENDS[kind]
    assert words in backend_findings(kind, tmp_path, [name]).get(name, "")


# ------------------------------------------------------------------------------------------------------- rewards

REWARD_CODE = """
import time

def parses(*, completion, item):
    return float(completion.strip() == str(item["answer"]) or float(completion) == 1)

def infinite(*, completion, item):
    return float("1e999") if completion == "1e999" else 0

def hashes(*, completion, item):
    return hash(completion) % 7

calls = []

def counts(*, completion, item):
    calls.append(1)
    return len(calls)

def spoils(*, completion, item):
    item["answer"] = completion
    return len(completion)

def constant(*, completion, item):
    return 1

def hangs(*, completion, item):
    while not completion:
        time.sleep(1)
    return len(completion)
"""

REWARDS = {
    "parses": (
        "any-answer-gets-a-finite-number",
        "'': RewardRaised: broken_rewards:parses raised ValueError",
    ),
    "infinite": (
        "any-answer-gets-a-finite-number",
        "'1e999': RewardOutOfRange: broken_rewards:infinite returned inf",
    ),
    "hangs": (
        "any-answer-gets-a-finite-number",
        "'': RewardTimeout: broken_rewards:hangs ran longer than 1 s",
    ),
    "hashes": ("the-same-answer-has-the-same-score-everywhere", "answers have two scores"),
    "counts": ("the-same-answer-has-the-same-score-everywhere", "answers have two scores"),
    "spoils": ("scoring-changes-no-item", "has changed answer of the item"),
    "constant": ("answers-are-distinguished", "all of them have 1"),
}


@pytest.fixture
def rewards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[None]:
    (tmp_path / "broken_rewards.py").write_text(REWARD_CODE)
    monkeypatch.syspath_prepend(str(tmp_path))


@pytest.mark.usefixtures("rewards")
@pytest.mark.parametrize("name", some(list(REWARDS), 4))
async def test_a_rewards_mistake_is_found(name: str) -> None:
    clause, words = REWARDS[name]
    # Only of the one that hangs, the time shall run out: a busy machine takes seconds to begin a process.
    reward = {"functions": [f"broken_rewards:{name}"], "timeoutSeconds": 1 if name == "hangs" else 60}
    checks = [check for check in REWARD if check.name == clause]
    subject = RewardSubject(job_config(Path("model"), reward=reward))
    found = found_by(await examine(checks, subject, begin=heard, patience=600))
    assert words in found.get(clause, "")


# ------------------------------------------------------------------------------------------------------ contracts


@pytest.mark.parametrize(
    "contract", [ENGINE, BACKEND, LOSS, REWARD], ids=["engine", "backend", "loss", "reward"]
)
def test_each_clause_says_what_must_hold_and_what_to_do(contract: Contract[Any]) -> None:
    for check in contract:
        assert check.claim.endswith(")") or check.claim[-1].isalnum()
        assert len(check.claim) <= 110
        assert check.remedy.endswith(".")


def test_each_clause_has_a_mistake() -> None:
    assert {name for _, name, _ in ENGINES} == {check.name for check in ENGINE}
    assert {name for name, _ in BACKENDS.values()} == {check.name for check in BACKEND}
    assert {name for name, _ in REWARDS.values()} == {check.name for check in REWARD}


async def test_what_takes_its_time_does_not_use_up_a_checks_patience() -> None:
    contract = Contract[None]()

    @contract.check
    async def starts_slowly(subject: None) -> None:
        """It starts.

        Wait.
        """
        with without_time_limit():
            await asyncio.sleep(0.3)

    @contract.check
    async def says_nothing(subject: None) -> None:
        """It says something.

        Speak.
        """
        with without_time_limit():
            await asyncio.sleep(0.3)
        await asyncio.Event().wait()

    found = found_by(await examine(contract, None, begin=heard, patience=0.1))
    assert found == {"says-nothing": "it did not finish within 0.1 s"}
