"""Data whose rows can be read when prompts are measured, and raise when they are sent: the coordinator goes on."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from role_jobs import check, finish, job, ledger
from role_tasks import Roles

from rljob_contract.tiny_models import tiny_model
from rljob_core.records import Evaluated, GroupAborted
from rljob_runtime.roles.coordinator.prompt_texts import PromptTexts, Render

TRAINED, HELD_OUT = 5, 2


def raising_later(render: Render) -> PromptTexts:
    """Texts that are not kept; one prompt of each kind raises whenever it is rendered again."""
    asked = Counter[tuple[int, bool]]()

    def text(prompt: int, evaluation: bool) -> str:
        asked[prompt, evaluation] += 1
        if prompt == (HELD_OUT if evaluation else TRAINED) and asked[prompt, evaluation] > 1:
            raise OSError(5, "Input/output error")
        return render(prompt, evaluation)

    return PromptTexts(text, room=0)


@pytest.mark.timeout(400)
async def test_a_prompt_that_raises_when_it_is_sent_is_given_up(tmp_path: Path) -> None:
    model = tiny_model(tmp_path / "model")
    config = job(tmp_path, model, mode="BoundedAsync")
    async with Roles(config, model, prompts=raising_later) as roles:
        await finish(roles)
        records = await ledger(roles.store)
        await check(roles)
    (ended,) = [r for r in records if isinstance(r, GroupAborted) and r.reason == "PromptExhausted"]
    assert ended.detail == (
        f"prompt {TRAINED} (g{TRAINED}): PromptUnsendable: OSError: [Errno 5] Input/output error: "
        "mend its row in its place"
    )
    assert set(ended.causes.values()) == {"PromptUnsendable"}
    assert len([r for r in records if isinstance(r, Evaluated)]) >= 2
