"""The check that the published metrics, in the job's stream and in metrics.jsonl, tell what the ledger tells.

A line may be missing: it is published after its record, and a power cut may take it. It may not be invented. Lines of
records that the ledger has lost are honest: those of versions that were begun again, and of evaluations by coordinators
that were replaced, of versions that existed then. A coordinator whose record is lost writes no other: it is replaced.
If its claim is lost, too, its successor counts as many coordinators, but its writer epoch has another number.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from math import isclose
from statistics import fmean

from rljob_cli.audit.audited_run import AuditedRun, CheckOutcome
from rljob_cli.audit.evaluations import is_due
from rljob_cli.audit.evidence import Violation, damage
from rljob_cli.audit.ledger_items import Committed
from rljob_core.advantage import deviation
from rljob_core.held_out import HeldOutScore
from rljob_core.messages import StepMetrics
from rljob_core.metrics_history import kind_of
from rljob_core.records import EPOCH_STRIDE, PipelineSet

_WORDS = {
    "reward_mean": "mean reward",
    "reward_std": "deviation of rewards",
    "reward_mean_trained": "mean reward of what it trained on",
    "reward_std_trained": "deviation of rewards of what it trained on",
    "response_tokens_mean": "mean length",
    "staleness_mean": "mean staleness",
    "staleness_max": "largest staleness",
}
_STATS = ("staleness_mean", "staleness_max")


def evaluations(run: AuditedRun) -> CheckOutcome:
    """Check the ledger's evaluations, and each line of the metrics stream and of metrics.jsonl."""
    found = list(run.history.misjudged)
    commits = {commit.record.version: commit for commit in run.history.commits}
    committed = frozenset(commit.record.manifest for commit in commits.values())
    claimed = frozenset(claim.number for _, claim in run.history.records.claims)
    lost = _lost_coordinators(run, claimed)
    judge = _Judge(run, step_statistics(run), commits, committed, claimed, lost)
    stated = {"the metrics stream": run.evidence.metrics, "metrics.jsonl": run.evidence.metrics_file}
    for source, lines in stated.items():
        for line in lines:
            found += judge.contradictions(line, source)
    found += _unlike_copies(run)
    return len(run.history.evaluated) + sum(map(len, stated.values())), found


def _figures(scores: Mapping[str, HeldOutScore]) -> dict[str, float | None]:
    """The figures of an evaluation in words, by those of its sets; the first one has no name."""
    found: dict[str, float | None] = {}
    for name, score in scores.items():
        of = f" of {name}" if name else ""
        figures = {
            "sampled held-out reward": score.sampled,
            "greedy held-out reward": score.greedy,
            "interval of the sampled held-out reward": score.sampled_ci95,
            "interval of the greedy held-out reward": score.greedy_ci95,
            "number of answers without a score": score.failed,
            **{f"pass@{k}": rate for k, rate in score.pass_at.items()},
        }
        found |= {f"{figure}{of}": value for figure, value in figures.items()}
    return found


def step_statistics(run: AuditedRun) -> dict[int, dict[str, float]]:
    """By version, the statistics that follow from the ledger; none of a step for which it has lost records."""
    found = {}
    for commit in run.history.commits:
        trained = [c.rewarded.reward for c in commit.consumed if c.rewarded is not None]
        payloads = [(c.step, c.generated) for c in commit.consumed if c.generated is not None]
        if commit.restored or not commit.consumed or len(trained) + len(payloads) < 2 * len(commit.consumed):
            continue
        staleness = [step - payload.span.min for step, payload in payloads]
        scored = [*trained, *commit.untrained]
        found[commit.record.version] = {
            "reward_mean": fmean(scored),
            "reward_std": deviation(scored),
            "reward_mean_trained": fmean(trained),
            "reward_std_trained": deviation(trained),
            "response_tokens_mean": fmean(payload.response_tokens for _, payload in payloads),
            "staleness_mean": fmean(staleness),
            "staleness_max": float(max(staleness)),
        }
    return found


def _lost_coordinators(run: AuditedRun, claimed: frozenset[int]) -> frozenset[int]:
    """Numbers of the coordinators that trainers worked under, and whose claims the ledger has lost."""
    seen = {line.epoch for line in run.evidence.fed}
    seen |= {m.proposal.epoch for m in run.evidence.manifests if m.proposal is not None}
    return frozenset(number // EPOCH_STRIDE for number in seen - claimed)


@dataclass(frozen=True, slots=True)
class _Judge:
    """Compares lines of metrics with the ledger.

    Attributes:
        statistics: by version, what its step's line must say.
        commits: the versions.
        committed: digests of their manifests.
        claimed: numbers of the writer epochs that the ledger knows.
        lost: how many coordinators the job had had, at each one whose claim is lost.
    """

    run: AuditedRun
    statistics: dict[int, dict[str, float]]
    commits: dict[int, Committed]
    committed: frozenset[str]
    claimed: frozenset[int]
    lost: frozenset[int]

    def contradictions(self, line: StepMetrics, source: str) -> Iterator[Violation]:
        """What a line says and the ledger does not."""
        if line.reward_mean is not None:
            yield from self._of_step(line, source)
        if line.is_evaluation:
            yield from self._of_evaluation(line, source)
        yield from self._of_moment(line, source)
        history = self.run.history
        if (
            line.finished
            and line.finished not in history.ends
            and not self._may_be_lost(line, history.writers)
        ):
            yield from self._unknown("the job", f"has ended as {line.finished}", source)

    def _of_moment(self, line: StepMetrics, source: str) -> Iterator[Violation]:
        """What a line says of the whole job and the ledger did not have just after the record that the line tells."""
        if not line.writer:
            return
        history, kind = self.run.history, kind_of(line)
        name = ("the job" if kind == "end" else f"version {line.version}",)
        if line.epoch != line.writer // EPOCH_STRIDE:
            text = f"was published by writer epoch {line.writer}, but says epoch {line.epoch} in {source}"
            yield Violation(name, text)
        moment = history.moments.get((kind, 0 if kind == "end" else line.version))
        if moment is None:
            if line.pipeline is not None and not self._may_have_been(line.pipeline):
                yield from self._unknown(*name, f"had the pipeline {_shown(line.pipeline)}", source)
            return
        if line.writer != moment.writer:
            # A coordinator publishes what an earlier one recorded and could not publish any more. Its claim may be lost
            # since, if another coordinator came later.
            known = line.writer in self.claimed or self._has_lost_its_claim(line, history.writers)
            honest = line.writer > moment.writer and known
            honest = honest or self._was_made_before(line)
            honest = honest or self._may_be_lost(line, moment.writer // EPOCH_STRIDE)
            if kind != "end" and not honest:
                text = f"was recorded by writer epoch {moment.writer}, and published by {line.writer}, in {source}"
                yield Violation(name, text)
            return
        stated: dict[str, object] = {
            "trajectories": _counted(line.trajectories),
            "aborted": _counted(line.aborted),
            "attempts_failed": _counted(line.attempts_failed),
            "trainer_attempt": line.trainer_attempt,
            "pipeline": line.pipeline,
        }
        if kind == "end":
            stated["failure"] = line.failure
        for field, said in stated.items():
            if said != (right := moment.told[field]):
                yield Violation(
                    name, f"its {field} is {_shown(right)} by the ledger, and {_shown(said)} in {source}"
                )

    def _may_have_been(self, pipeline: PipelineSet) -> bool:
        return pipeline in self.run.history.pipelines.settings or len(self.claimed) != 1

    def _of_step(self, line: StepMetrics, source: str) -> Iterator[Violation]:
        version, history = line.version, self.run.history
        if self._was_made_before(line):
            return
        if not 0 < version <= history.version:
            yield from self._unknown(f"version {version}", "was committed", source)
            return
        stats = {name: getattr(line.stats, name) for name in _STATS} if line.stats is not None else {}
        stated = {name: getattr(line, name, None) for name in self.statistics.get(version, {})} | stats
        yield from self._differences(version, self.statistics.get(version, {}), stated, source)

    def _was_made_before(self, line: StepMetrics) -> bool:
        """Whether it may be of an earlier version of this number, which the ledger has lost or the user revoked."""
        version = line.version
        commit = self.commits.get(version)
        if commit is not None and line.epoch >= commit.record.epoch // EPOCH_STRIDE:
            return False
        others = (m for m in self.run.evidence.manifests if m.digest not in self.committed)
        return self._is_revoked(version) or any(m.version == version for m in others)

    def _is_revoked(self, version: int) -> bool:
        return any(commit.record.version == version for commit in self.run.history.revoked)

    def _of_evaluation(self, line: StepMetrics, source: str) -> Iterator[Violation]:
        history, name = self.run.history, f"version {line.version}"
        record = history.evaluated.get(line.version)
        if record is None:
            if history.specs and not any(is_due(line.version, spec) for spec in history.specs):
                yield Violation((name,), f"was evaluated, by {source}, but no evaluation of it was due")
            elif not self._may_be_forgotten(line):
                yield from self._unknown(name, "was evaluated", source)
            return
        if self._may_be_lost(line, history.evaluators[line.version]) and not self._is_too_early(line):
            return
        scores = dict(zip(("", *record.sets), record.scores, strict=True))
        said = dict(zip(("", *line.heldout_sets), line.held_out.values(), strict=True))
        known, stated = _figures(scores), _figures(said)
        for figure, right, published in (
            ("number of answers with tokens of later versions", record.mixed, line.heldout_mixed),
            ("newest version of any answer", record.newest, line.heldout_newest),
        ):
            known[figure], stated[figure] = right, published
        invented = dict.fromkeys(stated.keys() - known.keys())
        yield from self._differences(line.version, {**known, **invented}, stated, source)
        for of in scores.keys() & said.keys():
            errors = scores[of].error or "nothing", said[of].error or "nothing"
            if errors[0] != errors[1]:
                text = f"its first answer without a score{of and f', of {of},'} failed of {errors[0]} by the ledger"
                yield Violation((name,), f"{text}, and of {errors[1]} in {source}")

    def _may_be_forgotten(self, line: StepMetrics) -> bool:
        """Whether the evaluation may have been recorded, although the ledger has none of this version."""
        if line.version > self.run.history.version:
            return self._is_revoked(line.version)
        return self._may_be_lost(line, self.run.history.writers) and not self._is_too_early(line)

    def _is_too_early(self, line: StepMetrics) -> bool:
        """Whether the version was committed under a later coordinator than the line's, and never before."""
        commit = self.commits.get(line.version)
        if commit is None or line.epoch >= commit.record.epoch // EPOCH_STRIDE:
            return False
        return not self._was_made_before(line)

    def _may_be_lost(self, line: StepMetrics, writer: int) -> bool:
        """Whether a coordinator before this one may have published the line, and the ledger lost its record."""
        if self._has_lost_its_claim(line, writer):
            return True
        if len(self.run.history.records.claims) <= 1:
            return False
        return line.epoch < writer or (line.epoch == writer and writer in self.lost)

    def _has_lost_its_claim(self, line: StepMetrics, epoch: int) -> bool:
        """Whether a writer that the ledger does not know may have published the line, no later than in this epoch."""
        unknown = (
            line.writer and line.writer not in self.claimed and line.writer // EPOCH_STRIDE == line.epoch
        )
        return bool(unknown) and line.epoch <= epoch

    def _differences(
        self, version: int, known: Mapping[str, float | None], stated: dict[str, float | None], source: str
    ) -> Iterator[Violation]:
        for name, right in known.items():
            said = stated.get(name)
            if said is not None and (right is None or not isclose(said, right, rel_tol=1e-9, abs_tol=1e-12)):
                known_as = "none" if right is None else f"{right:g}"
                text = f"its {_WORDS.get(name, name)} is {known_as} by the ledger, and {said:g} in {source}"
                yield Violation((f"version {version}",), text)

    def _unknown(self, name: str, what: str, source: str) -> Iterator[Violation]:
        """What the ledger does not know at all: it may have lost its end."""
        if not self.run.evidence.live:
            told = f"{what}, by {source}, but"
            later = f"{told} the ledger has lost it: `rljob run --resume` restores or repeats it"
            yield self.run.history.beyond_end((name,), f"{told} not by the ledger", later)


def _unlike_copies(run: AuditedRun) -> Iterator[Violation]:
    """Compare metrics.jsonl with the stream that it was copied from, also in what the ledger does not have.

    Where coordinators were replaced, the server may have lost a line that the file has, and got another one.
    """
    evidence = run.evidence
    if evidence.live:
        return
    single = len(run.history.records.claims) <= 1
    copied: dict[tuple[object, ...], list[StepMetrics]] = {}
    for line in evidence.metrics:
        copied.setdefault(_identity(line, single=single), []).append(line)
    for row in evidence.metrics_file:
        lines = copied.get(_identity(row, single=single), [])
        unlike = [_unlike_fields(row, line) for line in lines]
        if unlike and all(unlike):
            fewest = min(unlike, key=len)
            text = f"was altered in its line of metrics: stream and metrics.jsonl have another {', '.join(fewest)}"
            yield damage((f"version {row.version}",), text)


def _identity(line: StepMetrics, *, single: bool) -> tuple[object, ...]:
    return kind_of(line), line.version, None if single else line.writer


def _unlike_fields(row: StepMetrics, line: StepMetrics) -> list[str]:
    """The fields in which a row of metrics.jsonl differs from the line of the stream that it may be a copy of."""
    # The row of an evaluation has these of its version.
    own = {"seconds", "tokens_generated"} if kind_of(row) == "evaluation" else set()
    names = [field.name for field in fields(StepMetrics) if field.name not in own]
    return [name for name in names if not _is_same(getattr(row, name), getattr(line, name))]


def _is_same(one: object, other: object) -> bool:
    return one == other or repr(one) == repr(other)  # of numbers that are none, too


def _counted(counts: Mapping[str, int]) -> dict[str, int]:
    return {name: count for name, count in counts.items() if count}


def _shown(value: object) -> object:
    if isinstance(value, PipelineSet):
        return f"{value.mode} {value.max_staleness} from step {value.step}"
    if isinstance(value, dict):
        return ", ".join(f"{name} {count}" for name, count in sorted(value.items())) or "none"
    return "none" if value in (None, "") else value
