"""The check that the trainer was sent the scores that the ledger has, and the advantages that follow from them."""

from __future__ import annotations

from math import isclose

from rljob_cli.audit.audited_run import AuditedRun, CheckOutcome
from rljob_cli.audit.evidence import Violation
from rljob_core.advantage import group_advantages
from rljob_core.trajectory import group_of


def trained_rewards(run: AuditedRun) -> CheckOutcome:
    """Check that the trainer was sent the ledger's rewards and the advantages that follow from them.

    Of a restored step, the ledger may have lost the rewards; the advantages then still follow from the rewards that the
    trainer was sent.
    """
    found: list[Violation] = []
    examined = 0
    fed = {(step, item.trajectory): item for step, item in run.fed_items}
    for commit in run.history.commits:
        groups: dict[str, list[tuple[str, float, float]]] = {}
        for consumed in commit.consumed:
            item = fed.get((consumed.step, consumed.trajectory))
            if item is None:
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


def _wrong_advantages(siblings: list[tuple[str, float, float]], *, scale_by_std: bool) -> list[Violation]:
    """What the trainer was sent of a group (id, reward, advantage) and does not follow from its rewards."""
    expected = group_advantages([reward for _, reward, _ in siblings], scale_by_std=scale_by_std)
    return [
        Violation((name,), f"was trained with the advantage {sent:g}, its rewards give {right:g}")
        for (name, _, sent), right in zip(siblings, expected, strict=True)
        if not isclose(sent, right, rel_tol=1e-6, abs_tol=1e-9)
    ]
