"""Says what a run's folder still holds when its streams, and the ledger with them, are gone; and how to continue."""

from __future__ import annotations

from contextlib import closing

from rljob_cli.run_folder.folder import RunFolder
from rljob_core.errors import SpecError
from rljob_core.spec import RLJob
from rljob_operator.children.resolved_job import resolve_job
from rljob_runtime.locations import local_path
from rljob_runtime.roles.offline_rollback import FLAG, versions_without_ledger
from rljob_runtime.training.checkpoints import open_checkpoints
from rljob_runtime.training.trainer_log_folder import trainer_log_folder
from rljob_runtime.weights.create import open_store


def way_on(folder: RunFolder, job: RLJob) -> SpecError | None:
    """The refusal to resume a job whose ledger is gone: what is left of the job, and what continues it.

    None if there is no trace of training: the run ended before its streams were made, and can just start.

    Nothing is changed. Manifests of the weights say what the lost commits were, so that `--from-version` can make the
    ledger again; the user has to ask for it, as it cannot say what was planned and not trained.
    """
    config = resolve_job(job, folder.defaults("")).config
    checkpoints = open_checkpoints(
        config.checkpoint_uri, model_path=local_path(config.spec.model.uri, field="spec.model.uri")
    )
    gone = f"the ledger of this job, {folder.nats / 'store'}, is gone"
    saved = checkpoints.keys()
    versions: list[int] = []
    if config.spec.weights.needs_uri:
        with closing(open_store(config.spec.weights.transport, uri=config.weights_uri)) as weights:
            versions = versions_without_ledger(config, weights)
    if versions:
        states = f", with optimizer state in {', '.join(saved)}" if saved else ", and no optimizer state"
        words = (
            f"{gone}. Of its versions, {_listed(versions)} are there{states}. Add {FLAG} {versions[-1]} to continue: "
            "the ledger is made again from the versions' manifests, nothing that was trained is trained again, "
            "and what was under way is lost"
        )
    elif saved:
        words = (
            f"{gone}, and so are the weights of its versions. Its newest checkpoint exists: another job can start "
            f"from it, with --output {folder.path}-2 --set spec.model.uri={checkpoints.place(saved[-1])} instead of "
            "--resume"
        )
    elif _has_log(config.trainer_log_uri):
        words = (
            f"{gone}, and there are neither versions of the weights nor checkpoints: there is nothing to continue. "
            f"Start the job again with --output {folder.path}-2 instead of --resume"
        )
    else:
        return None
    return SpecError("--resume", words)


def _has_log(uri: str) -> bool:
    with trainer_log_folder(uri) as log:
        return any(log.glob("*.jsonl"))


def _listed(versions: list[int]) -> str:
    if len(versions) > 1 and versions == list(range(versions[0], versions[-1] + 1)):
        return f"{versions[0]} to {versions[-1]}"
    return ", ".join(map(str, versions))
