"""`rljob check-engine`, `check-backend` and the like: test whether a plug-in fulfils its contract."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Coroutine, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from rljob_cli.exits import EXIT_FAILED, exit_codes, run_async, scratch_folder, signals_interrupt
from rljob_cli.plugin_checks.inputs import (
    config_of,
    initial_weights,
    longest_response,
    model_or_tiny,
    parse_settings,
)

if TYPE_CHECKING:
    from rljob_contract.check import Finding

ModelFolder = Annotated[
    Path | None,
    typer.Option(
        help="Folder of a model, in Hugging Face format.", show_default="a tiny one, made on the spot"
    ),
]
PluginOptions = Annotated[
    list[str],
    typer.Option(
        "--set", metavar="option=value", help="An option of it; the value is YAML.", show_default=False
    ),
]
T = TypeVar("T")
Dtype = Literal["float64", "float32", "bfloat16"]
Patience = Annotated[
    float,
    typer.Option(
        min=1,
        help="Seconds after which a check that waits is given up; the start of engines has its own limit.",
    ),
]


def check_engine(
    name: Annotated[
        str, typer.Argument(help="As spec.rollout.engine.name would have it.", show_default=False)
    ],
    *,
    model: ModelFolder = None,
    backend: Annotated[
        str | None,
        typer.Option(
            help="Swap in the weights that this trainer backend publishes.",
            show_default="those in the model's folder",
        ),
    ] = None,
    options: PluginOptions = [],  # noqa: B006  typer's way
    patience: Patience = 300,
) -> None:
    """Check that an engine does what a job needs of it, on this machine.

    Requests are generated, cancelled, and moved from one engine to another; weights are swapped under each `inflight`,
    and must be in use from the next token on. No request ends by itself: give options under which the engine ends none.
    The exit code is 1 if a check fails; the output then says what to do.

    **Examples**

        rljob check-engine Torch --set slots=4

        rljob check-engine Mine --model models/qwen --backend Mine --set temperatureFloor=0.1
    """
    with exit_codes(), signals_interrupt() as heed, ExitStack() as held:
        from rljob_contract.engine import ENGINE
        from rljob_contract.engine_subject import EngineSubject
        from rljob_runtime.engines.registry import check_engine as check_options
        from rljob_runtime.engines.registry import create_engine, find_engine
        from rljob_runtime.model.settings import model_settings
        from rljob_runtime.training.registry import check_backend as check_backend_options

        given = {
            **find_engine(name).endless_options,
            **parse_settings(options, "spec.rollout.engine.options"),
        }
        check_options(name, given)
        if backend is not None:
            check_backend_options(config_of(Path(), trainer={"backend": backend}).spec)
        folder = held.enter_context(model_or_tiny(model))
        weights = initial_weights(folder, backend)

        async def findings(begin: Callable[[str], None]) -> list[Finding]:
            from rljob_contract.check import examine

            subject = EngineSubject(
                lambda: create_engine(name, model_path=folder, options=given),
                weights,
                longest=longest_response(folder, given),
                endless=longest_response(folder, given),
                vocabulary=model_settings(folder).vocabulary,
            )
            try:
                return await examine(ENGINE, subject, begin=begin, patience=patience)
            finally:
                await subject.close()

        _print_findings(f"engine {name}", _run_with_status(findings, heed))


def check_backend(
    name: Annotated[str, typer.Argument(help="As spec.trainer.backend would have it.", show_default=False)],
    *,
    model: ModelFolder = None,
    options: PluginOptions = [],  # noqa: B006  typer's way
    dtype: Annotated[
        Dtype | None,
        typer.Option(
            help="What it computes in, which says how much may come of rounding.",
            show_default="what its weights are published in",
        ),
    ] = None,
) -> None:
    """Check that a trainer backend does what a job needs of it, on one rank of this machine.

    Steps are taken as a whole and in micro-batches, interrupted, and continued from checkpoints: the results must be
    the same. The exit code is 1 if a check fails; the output then says what to do.

    **Examples**

        rljob check-backend Torch --set dtype=float64

        rljob check-backend Mine --model models/qwen
    """
    with exit_codes(), signals_interrupt() as heed, ExitStack() as held:
        from rljob_contract.backend import BACKEND, BackendSubject
        from rljob_contract.check import examine_blocking
        from rljob_runtime.training.registry import check_backend as check_options
        from rljob_runtime.training.registry import create_backend

        given = parse_settings(options, "spec.trainer.options")
        trainer = {"backend": name, "options": given}
        check_options(config_of(Path(), trainer=trainer).spec)
        folder, place = held.enter_context(model_or_tiny(model)), held.enter_context(scratch_folder())
        config = config_of(folder, trainer=trainer)
        subject = BackendSubject(
            lambda: create_backend(config, rank=0, world_size=1, model_path=folder),
            lambda: Path(tempfile.mkdtemp(dir=place)),
            dtype,
        )
        _print_findings(
            f"backend {name}",
            _with_status(lambda begin: examine_blocking(BACKEND, subject, begin=begin), heed),
        )


def check_loss(
    name: Annotated[str, typer.Argument(help="As spec.algorithm.loss would have it.", show_default=False)],
    *,
    algorithm: Annotated[
        list[str],
        typer.Option(
            "--set",
            metavar="field=value",
            help="A field of spec.algorithm, for constants like your job's.",
            show_default=False,
        ),
    ] = [],  # noqa: B006  typer's way
) -> None:
    """Check that a loss does what trainer backends need of it, on this machine.

    The gradient is compared with slopes of the value, and a batch with the same batch in parts, on random tokens in
    float64. The exit code is 1 if a check fails; the output then says what to do.

    **Examples**

        rljob check-loss GRPO

        rljob check-loss Mine --set clip=0.1 --set importanceSampling=None
    """
    with exit_codes(), signals_interrupt() as heed:
        from rljob_contract.check import examine_blocking
        from rljob_contract.loss import LOSS, LossSubject
        from rljob_runtime.training.losses.loss import LossSettings
        from rljob_runtime.training.losses.registry import find_loss

        given = {**parse_settings(algorithm, "spec.algorithm"), "loss": name}
        settings = LossSettings.of(config_of(Path(), algorithm=given).spec.algorithm)
        subject = LossSubject(find_loss(name), settings)
        _print_findings(
            f"loss {name}", _with_status(lambda begin: examine_blocking(LOSS, subject, begin=begin), heed)
        )


def check_reward(
    name: Annotated[str, typer.Argument(help="As spec.reward.functions would have it.", show_default=False)],
    *,
    data: Annotated[
        list[str],
        typer.Option(
            "--set",
            metavar="field=value",
            help="A field of spec.data, for items like your job's.",
            show_default="dataset=chain_sum",
        ),
    ] = [],  # noqa: B006  typer's way
    per_group: Annotated[
        bool, typer.Option("--per-group", help="It scores whole groups: spec.reward.perGroup names it, too.")
    ] = False,
    patience: Patience = 300,
) -> None:
    """Check that a reward does what a job needs of it, on this machine.

    Right answers and whatever else models say are scored by processes like a job's: each must get a finite number, the
    same one in every process. The exit code is 1 if a check fails; the output then says what to do.

    **Examples**

        rljob check-reward exact_match

        rljob check-reward brevity:brevity --set source=jsonl --set dataset=capitals.jsonl

        rljob check-reward judge:rank --per-group
    """
    with exit_codes(), signals_interrupt() as heed:
        from rljob_contract.check import examine
        from rljob_contract.reward import REWARD, RewardSubject
        from rljob_runtime.data.prompts import open_prompts
        from rljob_runtime.process.import_path import find_modules_in
        from rljob_runtime.rewards.registry import resolve

        find_modules_in([str(Path.cwd())])
        given = {"dataset": "chain_sum", **parse_settings(data, "spec.data")}
        grouped = [name] if per_group else []
        config = config_of(Path(), data=given, reward={"functions": [name], "perGroup": grouped})
        resolve([name], open_prompts(config)[0], per_group=grouped)
        subject = RewardSubject(config)
        findings = _run_with_status(
            lambda begin: examine(REWARD, subject, begin=begin, patience=patience), heed
        )
        _print_findings(f"reward {name}", findings)


def check_environment(
    name: Annotated[
        str, typer.Argument(help="As spec.rollout.environment.name would have it.", show_default=False)
    ],
    *,
    settings: Annotated[
        list[str],
        typer.Option(
            "--set",
            metavar="field=value",
            help="A field of spec.rollout.environment or, as data.field, of spec.data.",
            show_default="data.dataset=chain_sum",
        ),
    ] = [],  # noqa: B006  typer's way
    patience: Patience = 300,
) -> None:
    """Check that an environment does what a job needs of it, on this machine.

    Whatever models say is answered in episodes like a job's: each must go on or end, get a finite score, and be the
    same if it is played again. The exit code is 1 if a check fails; the output then says what to do.

    **Examples**

        rljob check-environment guessing:GuessingGame

        rljob check-environment guessing:GuessingGame --set options.highest=20 --set data.source=jsonl
    """
    with exit_codes(), signals_interrupt() as heed:
        from rljob_contract.check import examine
        from rljob_contract.environment import ENVIRONMENT, EnvironmentSubject
        from rljob_runtime.data.prompts import open_prompts
        from rljob_runtime.process.import_path import find_modules_in

        find_modules_in([str(Path.cwd())])
        ours = [text for text in settings if not text.startswith("data.")]
        data = [text.removeprefix("data.") for text in settings if text.startswith("data.")]
        given = parse_settings(ours, "spec.rollout.environment")
        config = config_of(
            Path(),
            data={"dataset": "chain_sum", **parse_settings(data, "spec.data")},
            reward={"functions": ["environment"]},
            rollout={"environment": {**given, "name": name}, "pools": [{"name": "a"}]},
        )
        open_prompts(config)
        subject = EnvironmentSubject(config)
        findings = _run_with_status(
            lambda begin: examine(ENVIRONMENT, subject, begin=begin, patience=patience), heed
        )
        _print_findings(f"environment {name}", findings)


# ------------------------------------------------------------------------------------------ what was found


def _run_with_status(
    findings: Callable[[Callable[[str], None]], Coroutine[Any, Any, T]], heed: Callable[[], None]
) -> T:
    """Run asynchronous checks as `_with_status` does, in an event loop of their own."""
    return _with_status(lambda begin: run_async(lambda: findings(begin)), heed)


def _with_status(findings: Callable[[Callable[[str], None]], T], heed: Callable[[], None]) -> T:
    """Run checks and return their findings; a terminal shows the claim of the running check.

    Args:
        heed: called before each check; raises if the user has interrupted the command.
    """
    with Console(stderr=True).status("") as status:

        def begin(claim: str) -> None:
            heed()
            status.update(Text(claim))

        return findings(begin)


def _print_findings(title: str, findings: Sequence[Finding]) -> None:
    """Print one row per check, what to do about each failed check, and the verdict; exit with 1 if one failed."""
    console = Console(emoji=False)  # as which `:name:` would be read
    table = Table(box=None, pad_edge=False, show_header=False)
    for finding in findings:
        failed = bool(finding.found)
        table.add_row(Text("✗", style="bold red") if failed else Text("✓", style="green"), finding.claim)
    console.print(table)
    broken = [finding for finding in findings if finding.found]
    for finding in broken:
        console.print(f"\n✗ {finding.claim}", style="bold red", markup=False, highlight=False)
        console.print(f"  found: {finding.found}", markup=False, highlight=False)
        console.print(f"  to do: {finding.remedy}", markup=False, highlight=False)
    verdict = (
        f"{len(broken)} of {len(findings)} checks fail" if broken else f"all {len(findings)} checks hold"
    )
    console.print(f"\n{title}: {verdict}", style="bold", markup=False, highlight=False)
    if broken:
        raise typer.Exit(EXIT_FAILED)
