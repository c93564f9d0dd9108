"""What a first job is to be, from flags and from what the model's folder and the data are."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rljob_cli.answer_length import usual_max_tokens
from rljob_cli.init.manifest_text import JobPlan, PromptSourceName
from rljob_core.errors import SpecError

_ROW_LIMIT = 16 * 1024 * 1024


def plan_of(
    *,
    file: Path,
    name: str,
    model: str,
    data: str,
    heldout: str,
    steps: int,
    gpus: int,
    gpu_resource: str,
    on_cluster: bool,
    lora: int,
) -> JobPlan:
    """The plan of a job.

    Args:
        file: that will hold the manifest: relative paths start at its folder.
        name: of the job; empty: the file's name.
        model: path of the model's folder, as seen from here, or a URI.
        data: task of reasoning-gym, or path of a .jsonl or .parquet file, as seen from here.
        heldout: held-out prompts, as `data`; empty: none.
        steps, gpus, gpu_resource, on_cluster, lora: as in `JobPlan`.

    Raises:
        SpecError: a path does not exist, or a file of data cannot be read.
    """
    if on_cluster and not gpus:
        raise SpecError("--cluster", "say how many GPUs the job may use: add --gpus N")
    if not re.fullmatch(r"[a-z0-9][a-z0-9.-]*/[A-Za-z0-9][A-Za-z0-9._-]*", gpu_resource):
        raise SpecError(
            "--gpu-resource", "must be a name that nodes offer, such as nvidia.com/gpu or amd.com/gpu"
        )
    source = _source(data, "--data")
    heldout_source = _source(heldout, "--heldout") if heldout else source
    row = _first_row(Path(data)) if source == "jsonl" else {}
    template, reward = _prompt(source, row, chats=_has_chat_template(model))
    if reward == "verifier" and heldout_source != source:
        reward = "exact_match"  # rows of a file have no verifier
    return JobPlan(
        name=name or _name(file),
        model=_from(file, model),
        source=source,
        dataset=data if source == "reasoning-gym" else _from(file, data),
        heldout_source=heldout_source,
        heldout=heldout if heldout_source == "reasoning-gym" or not heldout else _from(file, heldout),
        template=template,
        reward=reward,
        steps=steps,
        gpus=gpus,
        gpu_resource=gpu_resource,
        on_cluster=on_cluster,
        lora=lora,
        max_tokens=usual_max_tokens(model, 512 if gpus else 64),
    )


def _name(file: Path) -> str:
    name = re.sub(r"[^a-z0-9]+", "-", file.stem.lower()).strip("-")
    return name if re.match(r"[a-z]", name) else f"job-{name}".rstrip("-")


def _source(data: str, flag: str) -> PromptSourceName:
    """The kind of a file that exists, or of a task."""
    suffix = Path(data).suffix.lower()
    if suffix in {".jsonl", ".parquet"}:
        if not Path(data).is_file():
            raise SpecError(flag, f"there is no file {data}")
        return "jsonl" if suffix == ".jsonl" else "parquet"
    if suffix or "/" in data:
        raise SpecError(
            flag, f"{data}: give a .jsonl or a .parquet file, or the name of a task of reasoning-gym"
        )
    if find_spec("reasoning_gym") is not None:
        from rljob_runtime.data.gym import check_task

        check_task(data, flag)
    return "reasoning-gym"


def _first_row(file: Path) -> Mapping[str, Any]:
    try:
        with file.open("rb") as stream:
            text = stream.readline(_ROW_LIMIT)
        row = json.loads(text)
    except (OSError, ValueError) as error:
        raise SpecError("--data", f"{file}, line 1: is no JSON object ({error})") from error
    if not isinstance(row, dict):
        raise SpecError("--data", f"{file}, line 1: is no JSON object")
    return row


def _prompt(source: str, row: Mapping[str, Any], *, chats: bool) -> tuple[str, str]:
    """The template of prompts and the reward that fit the data."""
    if source == "reasoning-gym":
        return ("" if chats else "{{ question }}"), "verifier"
    reward = "exact_match" if "answer" in row or not row else "my_rewards:score"
    if "messages" in row or (chats and "question" in row):
        return "", reward
    field = next((name for name in ("question", "prompt", "problem", "input", "text") if name in row), None)
    field = field or next((name for name, value in row.items() if isinstance(value, str)), "question")
    return f"{{{{ {field} }}}}", reward


def _has_chat_template(model: str) -> bool:
    """Whether the model's folder has a chat template; a model that is not on this machine counts as having one.

    Raises:
        SpecError: the folder does not exist, or holds no model.
    """
    if "://" in model and not model.startswith("file://"):
        return True
    folder = Path(model.removeprefix("file://"))
    if not (folder / "config.json").is_file():
        raise SpecError("--model", f"{folder} holds no Hugging Face model (there is no config.json in it)")
    if any((folder / name).is_file() for name in ("chat_template.jinja", "chat_template.json")):
        return True
    try:
        return bool(
            json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8")).get("chat_template")
        )
    except (OSError, ValueError, AttributeError):
        return False


def _from(file: Path, path: str) -> str:
    """A path as the manifest names it: relative to its folder, if it lies below; a URI as it is."""
    if "://" in path:
        return path
    folder, whole = file.resolve().parent, Path(path).resolve()
    return str(whole.relative_to(folder)) if whole.is_relative_to(folder) else str(whole)
