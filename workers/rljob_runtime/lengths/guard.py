"""A guard around a length predictor: no error of it stops a job, and each kind is named once."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TypeVar

from rljob_core.lengths import Estimate, GroupLengths, LengthPredictor, Prompt
from rljob_core.spec import LONGEST_RESPONSE
from rljob_core.words import error_in_words

log = logging.getLogger(__name__)

T = TypeVar("T")

_NAMED = 32
"""Kinds of failures that are logged at most."""
_ERROR_CHARACTERS = 400


class GuardedPredictor:
    """A `LengthPredictor` that never raises, and whose estimates are all usable: finite, positive, none too long.

    Where the predictor raises, gives no estimate, or one that is no distribution, the fallback's estimate is given
    instead: as a ranker it is then as good as the fallback, which takes over (`rljob_core.lengths.PrequentialChoice`).

    Args:
        name: the predictor's, for messages.
        create: creates it; may raise.
        fallback: gives estimates in its place. The guard lets it neither observe nor fit.
    """

    def __init__(self, name: str, create: Callable[[], LengthPredictor], fallback: LengthPredictor) -> None:
        self._name = name
        self._fallback = fallback
        self._named = set[tuple[str, str]]()
        self.failures = 0
        """Calls that have failed, and calls of `predict` that gave estimates of which some are not usable."""
        self.newest_failure = ""
        """What the newest of them was, for people; empty if there was none."""
        self._predictor = self._call("cannot be created", create)

    def predict(self, prompts: Sequence[Prompt]) -> list[Estimate]:
        """Return an estimate for one answer to each prompt, in their order."""
        instead = self._fallback.predict(prompts)
        predictor = self._predictor
        if predictor is None:
            return list(instead)
        found = self._call("cannot predict", lambda: list(predictor.predict(prompts)))
        if found is None:
            return list(instead)
        if len(found) != len(prompts):
            self._failed("gave a wrong number of estimates", f"{len(found)} for {len(prompts)} prompts")
            return list(instead)
        usable = [_usable(one) for one in found]
        wrong = [place for place, one in enumerate(usable) if one is None]
        if wrong:
            detail = f"{_shown(found[wrong[0]])}, and {len(wrong)} like this of {len(found)}"
            self._failed("gave what is no estimate", detail)
        return [other if one is None else one for one, other in zip(usable, instead, strict=True)]

    def observe(self, prompt: Prompt, lengths: GroupLengths) -> None:
        """Let the predictor take in the lengths of a group."""
        predictor = self._predictor
        if predictor is not None:
            self._call("cannot observe", lambda: predictor.observe(prompt, lengths))

    def fit(self) -> None:
        """Let the predictor learn."""
        if self._predictor is not None:
            self._call("cannot be fitted", self._predictor.fit)

    def _call(self, what: str, method: Callable[[], T]) -> T | None:
        try:
            return method()
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # a plug-in may raise anything, and call sys.exit
            detail = error_in_words(error)[:_ERROR_CHARACTERS]
            self._failed(what, detail, kind=type(error).__name__)
            return None

    def _failed(self, what: str, detail: str, *, kind: str = "") -> None:
        self.failures += 1
        self.newest_failure = f"{what}: {detail}"
        if (what, kind) not in self._named and len(self._named) < _NAMED:
            self._named.add((what, kind))
            log.warning("length predictor %s %s; means take its place", self._name, self.newest_failure)


def _usable(found: object) -> Estimate | None:
    """It as an estimate in plain floats; None if it is none."""
    if not isinstance(found, Estimate):
        return None
    try:
        estimate = Estimate(float(found.tokens), float(found.spread))
    except Exception:  # its fields may be anything
        return None
    if not estimate.is_usable:
        return None
    return Estimate(min(max(1.0, estimate.tokens), float(LONGEST_RESPONSE)), estimate.spread)


def _shown(found: object) -> str:
    try:
        return repr(found)[:_ERROR_CHARACTERS]
    except Exception:
        return type(found).__name__
