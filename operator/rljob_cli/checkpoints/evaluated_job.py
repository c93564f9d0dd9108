"""The job by whose settings a checkpoint is evaluated: that of its run, of a manifest, or a plain one."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rljob_cli.answer_length import usual_max_tokens
from rljob_cli.job_checks.downloads import download
from rljob_cli.manifest.load import change_job, load_job
from rljob_cli.run_folder.folder import RunFolder
from rljob_cli.run_folder.job_file import stored_job
from rljob_core.config import JobConfig
from rljob_core.errors import SpecError
from rljob_core.remote_uri import job_with_paths
from rljob_core.spec import EvaluationSpec, RLJob
from rljob_operator.children.resolved_job import resolve_job
from rljob_runtime.data.prompts import evaluation_data
from rljob_runtime.process.import_path import find_modules_in


@dataclass(frozen=True, slots=True)
class EvaluatedSet:
    """What a checkpoint is asked of one held-out set.

    Attributes:
        name: of the set.
        config: a job's, whose `data` are the prompts.
        samples: prompts; None: as many as there are, up to `USUAL_SAMPLES`.
        group_size: sampled answers to each.
        pass_reward: an answer with at least this reward passes.
    """

    name: str
    config: JobConfig
    samples: int | None
    group_size: int
    pass_reward: float


def evaluated_sets(
    checkpoint: Path,
    *,
    job: Path | None,
    model: Path,
    data: str,
    overrides: Sequence[str],
) -> list[EvaluatedSet]:
    """What to ask a checkpoint, as the evaluations of its job ask.

    Args:
        checkpoint: as the user gave it: if it is a run's folder, or in one, the run's manifest counts.
        job: a manifest, or a run's folder, whose settings count instead.
        model: folder of the model.
        data: file of rows, or task of reasoning-gym; empty: the job's held-out sets, else its training data.
        overrides: `--set`.

    Raises:
        SpecError, InvalidManifest: something is missing or wrong.
    """
    found = _job(job if job is not None else _run_of(checkpoint), given=job is not None)
    if found is None:
        if not data:
            raise SpecError(
                "--data",
                "say what to answer: a .jsonl or .parquet file, or a task of reasoning-gym; or add --job",
            )
        found = _plain(model)
    spec = found.spec
    evaluation = spec.evaluation or EvaluationSpec()
    if data:
        evaluation = evaluation.model_copy(update={"sets": []})
    sets = list[EvaluatedSet]()
    for one in evaluation.held_out:
        prompts = spec.data if spec.evaluation is None else evaluation_data(spec.data, one.data)
        chosen: dict[str, Any] = prompts.model_dump(mode="json", by_alias=True)
        if data:
            chosen |= _source(data)
        settings = {"data": chosen, "evaluation": None, "model": {"uri": str(model)}, "steps": 1}
        texts = [f"{path}={json.dumps(value)}" for path, value in settings.items()]
        changed = change_job(found, [*texts, *overrides], Path.cwd())
        config = resolve_job(changed, RunFolder(Path.cwd()).defaults(nats_url="")).config
        sets.append(EvaluatedSet(one.name, config, one.samples, one.group_size, evaluation.pass_reward))
    return sets


def _run_of(checkpoint: Path) -> Path:
    """The folder of the run that a checkpoint is in; the checkpoint itself if it is in none."""
    whole = checkpoint.resolve()
    return next((path for path in (whole, *whole.parents[:2]) if RunFolder(path).job.is_file()), checkpoint)


def _job(path: Path, *, given: bool) -> RLJob | None:
    if path.is_file():
        find_modules_in([str(path.resolve().parent)])
        job = load_job(path)
        return job_with_paths(job, download(job.spec, {}))
    identity = RunFolder(path).identity() if path.is_dir() else None
    if identity is None:
        if given:
            raise SpecError("--job", f"{path} is neither a manifest nor the folder of a run")
        return None
    find_modules_in([identity.origin or "."])
    job = stored_job(identity)
    return job_with_paths(job, download(job.spec, identity.downloads))


def _plain(model: Path) -> RLJob:
    """A job with the defaults, for a model that belongs to none."""
    find_modules_in([str(Path.cwd())])
    content = {
        "apiVersion": "rljob.dev/v1alpha1",
        "kind": "RLJob",
        "metadata": {"name": "evaluation"},
        "spec": {
            "steps": 1,
            "model": {"uri": str(model)},
            "data": {"dataset": "chain_sum"},
            "rollout": {
                "pools": [{"name": "here"}],
                "sampling": {"maxTokens": usual_max_tokens(str(model), 512)},
            },
        },
    }
    return RLJob.model_validate(content, by_alias=True, by_name=False)


def _source(data: str) -> dict[str, Any]:
    suffix = Path(data).suffix.lower()
    if suffix in {".jsonl", ".parquet"}:
        return {"source": suffix.removeprefix("."), "dataset": str(Path(data).resolve()), "options": {}}
    if suffix or "/" in data:
        raise SpecError(
            "--data", f"{data}: give a .jsonl or a .parquet file, or the name of a task of reasoning-gym"
        )
    return {"source": "reasoning-gym", "dataset": data, "options": {}}


def described(config: JobConfig) -> str:
    """The data, rewards and engine, in a line."""
    spec = config.spec
    return f"{spec.data.dataset}; {', '.join(spec.reward.functions)}; engine {spec.rollout.engine.name}"
