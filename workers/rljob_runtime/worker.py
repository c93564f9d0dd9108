"""Runs one role of a job in this process, from its configuration to its exit code.

Environment variables, exit codes and termination messages: see `rljob_core.worker_protocol`. SIGTERM asks a role to
return its unfinished work and end.
"""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import logging
import os
import secrets
import signal
from collections.abc import Awaitable, Callable
from contextlib import ExitStack, closing
from pathlib import Path
from typing import TYPE_CHECKING

from rljob_core import worker_protocol
from rljob_core.config import JobConfig
from rljob_core.errors import RLJobError
from rljob_core.failures import Failure, Reason
from rljob_core.messages import RoleFailed
from rljob_core.ports import MessageStore
from rljob_core.queue_definitions import shared_queues
from rljob_core.words import innermost
from rljob_runtime.locations import local_path, model_folder
from rljob_runtime.process.ready import mark_ready, unmark_ready
from rljob_runtime.process.stopping import done_before
from rljob_runtime.process.termination import crashed, terminate
from rljob_runtime.telemetry.catalogue import CATALOGUE
from rljob_runtime.telemetry.recorder import Recorder
from rljob_runtime.telemetry.serve import served

if TYPE_CHECKING:
    from rljob_runtime.data.prompts import HeldOutPrompts, PromptSource

# The user sees within ten seconds that the server does not answer. `rljob run` or the kubelet restarts the role.
_CONNECT_SECONDS = 7.0
_EXIT_INTERRUPTED = 130
# Whether the model's weights, and whether data sets are downloaded.
_FETCHES = {
    worker_protocol.FETCH_MODEL: (True, False),
    worker_protocol.FETCH_DATA: (False, True),
    worker_protocol.FETCH_ALL: (True, True),
}
_READS_MODEL = {"rollout", "reward", "trainer"}

log = logging.getLogger("rljob")

RoleFunction = Callable[[JobConfig, MessageStore, asyncio.Event, Recorder], Awaitable[None]]


async def _streams(
    config: JobConfig,
    store: MessageStore,
    stop: asyncio.Event,  # noqa: ARG001  as any role
    recorder: Recorder,  # noqa: ARG001
) -> None:
    """Create the queues, and let the streams, which opening the store has created, hold what the job needs now."""
    from rljob_runtime.roles.pipeline_updates import make_room

    for queue in shared_queues(per_group=bool(config.spec.reward.per_group)):
        await store.queue(
            queue.channel,
            queue.suffix,
            name=queue.name,
            ack_wait=queue.ack_wait,
            max_pending=queue.max_pending,
        )
    await make_room(store, config)


async def _coordinator(
    config: JobConfig, store: MessageStore, stop: asyncio.Event, recorder: Recorder
) -> None:
    from rljob_runtime.process.config_watch import lost_sites, spec_changes
    from rljob_runtime.roles.coordinator import Coordinator
    from rljob_runtime.roles.coordinator.prompt_texts import PromptTexts, token_counter
    from rljob_runtime.roles.decision_log import DecisionLog
    from rljob_runtime.telemetry.otlp import exported
    from rljob_runtime.training.anchor_transfer import check_links
    from rljob_runtime.weights.create import create_weights

    for warning in check_links(config):
        log.warning("%s", warning)
    training, held_out = await asyncio.to_thread(_checked_prompts, config)
    count_tokens = token_counter(config)
    instance = f"{os.environ.get(worker_protocol.POD, 'coordinator')}.{secrets.token_hex(4)}"
    log_folder = os.environ.get(worker_protocol.DECISIONS)

    def render(prompt: int, evaluation: bool) -> str:
        return held_out.text(prompt) if evaluation else training.text(prompt)

    weights = create_weights(config, "coordinator")
    with ExitStack() as opened:
        opened.enter_context(closing(weights))
        decisions = None
        if log_folder:
            decisions = DecisionLog(Path(log_folder), instance=instance)
            opened.enter_context(closing(decisions))
        role = Coordinator(
            config,
            store,
            weights,
            PromptTexts(render),
            instance=instance,
            held_out=held_out.asked,
            count_tokens=count_tokens,
            changes=spec_changes(_config_path(), config.spec),
            lost_sites=lost_sites(_config_path()),
            decisions=decisions,
            recorder=recorder,
            traces=opened.enter_context(exported(namespace=config.namespace, job=config.job)),
        )
        await done_before(stop, role.run(mark_ready))


def _check_model(config: JobConfig) -> None:
    """Check that the model's folder holds a model, and not only adapters.

    Raises:
        SpecError: it holds adapters only.
        ResourceMissing: it holds no model.
    """
    from rljob_runtime.model.settings import check_whole

    check_whole(local_path(config.spec.model.uri, field="spec.model.uri"))
    model_folder(config)


def _checked_prompts(config: JobConfig) -> tuple[PromptSource, HeldOutPrompts]:
    """The prompts to train on and the held-out ones, all rows of which are checked."""
    from rljob_runtime.data.prompts import open_prompts
    from rljob_runtime.roles.coordinator.data_checks import ScanReport, check_data

    report = ScanReport(log.info)
    training, held_out = open_prompts(config, report)
    for warning in check_data(config, training, held_out):
        log.warning("%s", warning)
    return training, held_out


async def _rollout(config: JobConfig, store: MessageStore, stop: asyncio.Event, recorder: Recorder) -> None:
    from rljob_runtime.data.prompts import chat_tokenizer
    from rljob_runtime.engines.registry import create_engine
    from rljob_runtime.model.settings import model_settings
    from rljob_runtime.process.config_watch import pipeline_changes
    from rljob_runtime.roles.rollout import Rollout
    from rljob_runtime.roles.rollout.hang_watch import pauses_file
    from rljob_runtime.weights.create import create_weights

    pool = os.environ[worker_protocol.POOL]
    folder = model_folder(config)
    tokenizer = chat_tokenizer(folder, config.spec.data)
    engine = create_engine(
        config.spec.rollout.engine.name,
        model_path=folder,
        options=config.engine_options(pool),
        decode=tokenizer.decode,
    )
    weights = create_weights(config, "rollout")
    role = Rollout(
        config,
        store,
        weights,
        engine,
        tokenizer,
        vocabulary=model_settings(folder).vocabulary,
        pod=os.environ[worker_protocol.POD],
        pool=pool,
        nonce=os.environ.get(worker_protocol.NONCE, ""),
        pauses=pauses_file(config.spec.rollout.engine.name),
        changes=pipeline_changes(_config_path(), config.spec.pipeline),
        recorder=recorder,
    )
    with closing(weights):
        await role.run(stop, mark_ready)


async def _reward(config: JobConfig, store: MessageStore, stop: asyncio.Event, recorder: Recorder) -> None:
    from rljob_runtime.roles.reward import run_reward

    await run_reward(config, store, stop=stop, ready=mark_ready, recorder=recorder)


async def _trainer(config: JobConfig, store: MessageStore, stop: asyncio.Event, recorder: Recorder) -> None:
    from rljob_runtime.roles.trainer.setup import run_rank_zero

    await run_rank_zero(config, store, stop, mark_ready, recorder)


async def _tracker(config: JobConfig, store: MessageStore, stop: asyncio.Event, _: Recorder) -> None:
    from rljob_runtime.roles.tracker import run_tracker

    await run_tracker(config, store, stop, mark_ready)


ROLES: dict[str, RoleFunction] = {
    "streams": _streams,
    "coordinator": _coordinator,
    "rollout": _rollout,
    "reward": _reward,
    "trainer": _trainer,
    worker_protocol.TRACKER_ROLE: _tracker,
}


def _config_path() -> Path:
    return Path(os.environ[worker_protocol.CONFIG])


async def run_role(name: str, config: JobConfig) -> None:
    """Connect to the job's streams and run one role until it ends or SIGTERM."""
    from rljob_runtime.messaging.connect import role_store
    from rljob_runtime.messaging.nats.site_streams import until_joined

    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    create = not os.environ.get(worker_protocol.NATS_CREDENTIALS) or name == "streams"
    store = role_store(config, name, create=create, connect=_CONNECT_SECONDS)
    recorder = Recorder(CATALOGUE.get(name, ()))
    await store.open()
    try:
        site = config.spec.rollout.pool_sites.get(os.environ.get(worker_protocol.POOL, ""))
        if site and not await until_joined(store, site, stop):
            return
        with served(recorder, role=name, namespace=config.namespace, job=config.job):
            await ROLES[name](config, store, stop, recorder)
    except Exception as raised:
        error = innermost(raised)
        # A coordinator has nobody to tell but its successor, of which its failure says nothing.
        tells = name not in {"coordinator", worker_protocol.TRACKER_ROLE}
        if tells and isinstance(error, RLJobError) and error.reason.ends_job:
            await _report_failure(store, name, error.failure)
        raise
    finally:
        await store.close()


async def _report_failure(store: MessageStore, role: str, failure: Failure) -> None:
    from rljob_runtime.messaging.announce import publish_event

    with contextlib.suppress(Exception):
        attempt = int(os.environ[worker_protocol.ATTEMPT]) if role == "trainer" else 0
        await publish_event(store, RoleFailed(role, failure, attempt))


def run(name: str) -> int:
    """Run the role with that name to its end; returns the exit code."""
    faulthandler.enable()  # a signal that ends the process then leaves the Python stack in the log
    unmark_ready()  # a previous process in the same pod left it
    logging.basicConfig(
        level=os.environ.get(worker_protocol.LOG_LEVEL, "INFO"),
        format=f"%(asctime)s {name} %(levelname)s %(name)s: %(message)s",
    )
    try:
        config = JobConfig.model_validate_json(_config_path().read_bytes())
        if name in _FETCHES:
            from rljob_runtime.downloads.role import run_fetch

            run_fetch(config, *_FETCHES[name])
            return 0
        if name in _READS_MODEL:
            _check_model(config)  # before anything slow, so that a missing model is reported at once
        if name == "trainer" and int(os.environ.get("RANK", "0")) > 0:
            from rljob_runtime.roles.trainer.setup import run_follower

            run_follower(config)
        else:
            asyncio.run(run_role(name, config))
    except KeyboardInterrupt as raised:
        crashed(name, raised)
        return _EXIT_INTERRUPTED
    except BaseException as raised:  # the process boundary: every error becomes an exit code
        error = innermost(raised)
        if not isinstance(error, RLJobError) or error.reason is Reason.CRASHED:
            crashed(name, raised)
            return worker_protocol.EXIT_CRASHED
        return terminate(error.failure)
    return 0
