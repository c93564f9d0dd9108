"""Scored answers for tests of samples, and a log that keeps them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from rljob_core.failures import Failure
from rljob_core.messages import RewardResult
from rljob_core.trajectory import FinishReason, Segment, Source, Trajectory, VersionSpan
from rljob_runtime.samples.log import SampleLog
from rljob_runtime.samples.places import SampleFolder, SamplePlace
from rljob_runtime.samples.rows import ScoredAnswer, TokenTexts

BEGAN = 1_700_000_000.0
"""When the first answer was scored, in seconds since 1970."""


def decode(tokens: Sequence[int]) -> str:
    """Each token is a character."""
    return "".join(map(chr, tokens))


TEXTS = TokenTexts(decode, lambda token: f"<{token}>")


def answer(
    trajectory: str = "g0.0",
    *,
    attempt: int = 1,
    prompt: str = "1+1=",
    response: str = "2",
    versions: Sequence[int] = (),
    reward: float = 1.0,
    parts: dict[str, float] | None = None,
    failure: Failure | None = None,
    at: float = 0.0,
) -> ScoredAnswer:
    """An answer, scored so many seconds after the first."""
    made = list(versions) or [0] * len(response)
    asked, said = np.array([*map(ord, prompt)], np.int32), np.array([*map(ord, response)], np.int32)
    none = np.zeros(len(asked))
    segments = (
        Segment(
            Source.PROMPT, asked, none.astype(np.uint8), none.astype(np.float32), none.astype(np.int32) - 1
        ),
        Segment(
            Source.MODEL,
            said,
            np.ones(len(said), np.uint8),
            np.full(len(said), -0.5, np.float32),
            np.array(made, np.int32),
        ),
    )
    group, _, sibling = trajectory.rpartition(".")
    evaluation = group.startswith("e")
    found = Trajectory(
        id=trajectory,
        attempt=attempt,
        prompt=int(group.rpartition("-")[2] if evaluation else group[1:]),
        segments=segments,
        span=VersionSpan(min(made, default=0), max(made, default=0)),
        finish=FinishReason.STOP,
        engine="engine-0",
        sample="greedy" if evaluation and sibling == "1" else "sampled",
    )
    result = RewardResult(
        trajectory=trajectory,
        attempt=attempt,
        payload_digest=f"{trajectory}@{attempt}",
        reward=0.0 if failure else reward,
        parts={} if failure else parts or {"exact_match": reward},
        digest="",
        failure=failure,
        sample=found.sample,
    )
    return ScoredAnswer(found, result, BEGAN + at, BEGAN + at + 0.25)


def sample_log(
    place: SamplePlace | Path,
    writer: str = "reward-0.1",
    *,
    share: float = 1.0,
    keep_bytes: int = 1 << 30,
    waiting_bytes: int = 32 << 20,
    job: str = "0123",
) -> SampleLog:
    return SampleLog(
        SampleFolder(place) if isinstance(place, Path) else place,
        TEXTS,
        writer=writer,
        worker="reward-0",
        job=job,
        share=share,
        keep_bytes=keep_bytes,
        waiting_bytes=waiting_bytes,
    )


def keep(
    place: SamplePlace | Path, *answers: ScoredAnswer, writer: str = "reward-0.1", job: str = "0123"
) -> None:
    """Keep answers, and return when they are stored."""
    log = sample_log(place, writer, job=job)
    for one in answers:
        log.offer(one)
    log.close(60.0)
    assert log.counts.stored == len(answers), log.counts
