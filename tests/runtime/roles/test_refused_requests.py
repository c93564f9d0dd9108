"""An exception of the engine about one request costs that request's attempt, and no other's."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from dying_engine import install_dying_engine
from role_jobs import finish, job, ledger
from role_tasks import Roles

from rljob_contract.tiny_models import tiny_model
from rljob_core.config import JobConfig
from rljob_core.records import GroupAborted, GroupReserved, SiblingReset
from rljob_core.spec import RLJobSpec
from rljob_runtime.data.prompts import open_prompts

PROMPTS, POISON = 24, {5, 13}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(autouse=True)
def dying(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.syspath_prepend(str(install_dying_engine(tmp_path / "plugins")))
    yield
    sys.modules.pop("rljob_dying", None)


def poisoned(config: JobConfig, folder: Path) -> JobConfig:
    """The job over prompts of a file, with engines that raise at the word that two of them have."""
    texts = [f"{number} {'poison' if number in POISON else 'well'}" for number in range(PROMPTS)]
    rows = [json.dumps({"question": text, "answer": "1"}) for text in texts]
    (folder / "prompts.jsonl").write_text("\n".join(rows))
    values = config.model_dump(mode="json", by_alias=True)
    spec = values["spec"]
    spec["data"] |= {"source": "jsonl", "dataset": str(folder / "prompts.jsonl")}
    spec["evaluation"] = None
    options = {**spec["rollout"]["engine"]["options"], "words": {"poison": "raise"}}
    spec["rollout"]["engine"] = {"name": "Dying", "options": options}
    return JobConfig.model_validate(
        values | {"spec": RLJobSpec.model_validate(spec).model_dump(by_alias=True)}
    )


async def test_only_the_refused_prompts_are_given_up_and_no_engine_ends(tmp_path: Path, model: Path) -> None:
    config = poisoned(job(tmp_path, model, mode="BoundedAsync", maxStaleness=1), tmp_path)
    async with Roles(config, model) as roles:
        finished = asyncio.create_task(finish(roles))
        engines = {roles.tasks[pod] for pod in ("a-0", "a-1")}
        ended, _ = await asyncio.wait({finished, *engines}, return_when=asyncio.FIRST_COMPLETED)
        assert not ended & engines
        await finished
    records = await ledger(roles.store)
    prompts = {record.group: record.prompt for record in records if isinstance(record, GroupReserved)}
    aborted = [r for r in records if isinstance(r, GroupAborted) and r.reason != "JobFinished"]
    text = open_prompts(config)[0].text
    assert {text(prompts[record.group]) for record in aborted} == {f"{number} poison" for number in POISON}
    assert {record.reason for record in aborted} == {"PromptExhausted"}
    assert {cause for record in aborted for cause in record.causes.values()} == {"EngineRefused"}
    resets = [record for record in records if isinstance(record, SiblingReset)]
    assert {(record.reason, record.failure) for record in resets} == {("EngineRefused", True)}
    assert {record.detail for record in resets} == {"RuntimeError: no kernel for this prompt"}
