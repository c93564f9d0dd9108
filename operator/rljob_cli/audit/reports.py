"""Checks of rewards, evaluations and reports: what a run says about itself is what its ledger and its trainer say."""

from __future__ import annotations

from collections.abc import Iterator
from math import isclose
from statistics import fmean

from rljob_cli.audit.case import Case, Refuted
from rljob_cli.audit.evidence import Verdict, Violation
from rljob_core.advantage import group_advantages
from rljob_core.trajectory import group_of


def trained_rewards(case: Case) -> Refuted:
    """Check that the trainer was sent the ledger's rewards and the advantages that follow from them.

    Logs of earlier releases have neither. Of a restored step, the ledger may have lost the rewards; the advantages then
    still follow from the rewards that the trainer was sent.
    """
    found: list[Violation] = []
    examined = 0
    fed = {(step, item.trajectory): item for step, item in case.fed_items if item.reward is not None}
    for commit in case.history.commits:
        groups: dict[str, list[tuple[str, float, float | None]]] = {}
        for consumed in commit.consumed:
            item = fed.get((consumed.step, consumed.trajectory))
            if item is None or item.reward is None:
                continue
            examined += 1
            groups.setdefault(group_of(consumed.trajectory), []).append(
                (consumed.trajectory, item.reward, item.advantage)
            )
            record = consumed.rewarded
            if record is not None and record.attempt == item.attempt and record.reward != item.reward:
                text = f"has the reward {record.reward:g} in the ledger, the trainer was sent {item.reward:g}"
                found.append(Violation((consumed.trajectory,), text))
        for siblings in groups.values():
            if commit.scales:
                wrong = [_wrong_advantages(siblings, scale_by_std=scale) for scale in sorted(commit.scales)]
                found += sorted(wrong, key=len)[0]
    return examined, found


def _wrong_advantages(
    siblings: list[tuple[str, float, float | None]], *, scale_by_std: bool
) -> list[Violation]:
    """What the trainer was sent of a group (id, reward, advantage) and does not follow from its rewards."""
    expected = group_advantages([reward for _, reward, _ in siblings], scale_by_std=scale_by_std)
    return [
        Violation((name,), f"was trained with the advantage {sent:g}, its rewards give {right:g}")
        for (name, _, sent), right in zip(siblings, expected, strict=True)
        if sent is not None and not isclose(sent, right, rel_tol=1e-6, abs_tol=1e-9)
    ]


def evaluations(case: Case) -> Refuted:
    """Check evaluations, mean rewards and largest staleness in the published metrics and metrics.jsonl."""
    found: list[Violation] = []
    examined = 0
    rewards, largest_staleness = dict(_mean_rewards(case)), dict(_largest_staleness(case))
    stated = {
        "the metrics stream": case.evidence.metrics,
        "metrics.jsonl": case.evidence.metrics_file,
    }
    for source, lines in stated.items():
        for version, mean in rewards.items():
            means = [
                line.reward_mean for line in lines if line.version == version and line.reward_mean is not None
            ]
            examined += bool(means)
            if means and not any(isclose(one, mean, rel_tol=1e-9, abs_tol=1e-12) for one in means):
                text = f"its mean reward is {mean:g} in the ledger, and {means[-1]:g} in {source}"
                found.append(Violation((f"version {version}",), text))
        for version, staleness in largest_staleness.items():
            seen = [
                line.stats.staleness_max
                for line in lines
                if line.version == version and line.stats is not None
            ]
            if seen and staleness not in seen:
                text = f"its largest staleness is {staleness} in the ledger, and {seen[-1]} in {source}"
                found.append(Violation((f"version {version}",), text))
        for version, record in case.history.evaluated.items():
            scores = [
                (line.heldout_sampled, line.heldout_greedy)
                for line in lines
                if line.version == version and line.heldout_sampled is not None
            ]
            examined += bool(scores)
            if scores and (record.sampled, record.greedy) not in scores:
                text = (
                    f"was evaluated to {record.sampled:g} sampled and {record.greedy:g} greedy, by the ledger; "
                    f"{source} has {scores[-1]}"
                )
                found.append(Violation((f"version {version}",), text))
    return examined, found


def _largest_staleness(case: Case) -> Iterator[tuple[int, int]]:
    for commit in case.history.commits:
        seen = [c.step - c.generated.span.min for c in commit.consumed if c.generated is not None]
        if seen and len(seen) == len(commit.consumed) and not commit.restored:
            yield commit.record.version, max(seen)


def _mean_rewards(case: Case) -> Iterator[tuple[int, float]]:
    for commit in case.history.commits:
        rewards = [c.rewarded.reward for c in commit.consumed if c.rewarded is not None]
        if rewards and len(rewards) == len(commit.consumed) and not commit.restored:
            yield commit.record.version, fmean(rewards)


def summary(case: Case) -> Refuted:
    """Check that summary.json, if it says how the job ended, says what the ledger says."""
    history, written = case.history, case.evidence.summary
    if written is None or written.get("exit") not in {"Succeeded", "Failed"}:
        return int(written is not None), []
    name = ("summary.json",)
    if history.finished is None:
        if written["exit"] == "Failed":  # a role may fail before the ledger knows
            return 1, []
        text = "says that the job has succeeded, but the ledger has no end: `rljob run --resume` finishes it"
        return 1, [Violation(name, text, Verdict.UNFINISHED)]
    found = []
    expected = {"exit": history.finished.outcome, "steps": history.version, **_counted(case)}
    for field, value in expected.items():
        stated: object = written
        for part in field.split("."):
            stated = stated.get(part) if isinstance(stated, dict) else None
        same = (
            isclose(stated, value)
            if isinstance(stated, float) and isinstance(value, float)
            else stated == value
        )
        if stated is not None and not same:
            found.append(Violation(name, f"says {field} {stated}, the ledger says {value}"))
    return len(expected), found


def _counted(case: Case) -> dict[str, object]:
    """The numbers in summary.json that follow from the ledger."""
    history = case.history
    values: dict[str, object] = {
        "trajectories.consumed": sum(len(commit.consumed) for commit in history.commits)
    }
    staleness = [largest for _, largest in _largest_staleness(case)]
    whole = not history.revoked and not any(commit.restored for commit in history.commits)
    if whole:
        values["trajectories.planned"] = sum(len(group.members) for group in history.groups.values())
    if whole and staleness:
        values["staleness_max"] = max(staleness)
    if history.pipelines.settings:
        newest = history.pipelines.settings[-1]
        values |= {"mode": newest.mode, "max_staleness": newest.max_staleness}
    for when, choose in (("before", min), ("after", max)):
        if history.evaluated:
            record = history.evaluated[choose(history.evaluated)]
            # A lost evaluation is repeated, with other scores; the summary may have those of the first one.
            lines = [line for line in case.evidence.metrics if line.version == record.version]
            if len({line.heldout_sampled for line in lines if line.heldout_sampled is not None}) <= 1:
                values |= {f"heldout_reward_{when}": record.sampled, f"heldout_greedy_{when}": record.greedy}
    return values
