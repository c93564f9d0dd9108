"""A manifest that would run, beside a model that looks like one without having any weights worth loading."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

MANIFEST: dict[str, Any] = {
    "apiVersion": "rljob.dev/v1alpha1",
    "kind": "RLJob",
    "metadata": {"name": "sums"},
    "spec": {
        "steps": 4,
        "model": {"uri": "model"},
        "data": {"dataset": "chain_sum", "promptsPerStep": 2, "groupSize": 2},
        "rollout": {"sampling": {"maxTokens": 6}, "pools": [{"name": "cpu", "replicas": 1}]},
    },
}


def write_model(folder: Path, *, hidden: int = 8, **config: Any) -> Path:
    """A folder with configuration, tokenizer and a file of weights."""
    from tokenizers import Tokenizer, models

    folder.mkdir(parents=True)
    settings = {
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "hidden_size": hidden,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": 2,
        "max_position_embeddings": 1024,
        **config,
    }
    (folder / "config.json").write_text(json.dumps(settings))
    Tokenizer(models.WordLevel({"<end>": 0, "1": 1}, unk_token="<end>")).save(str(folder / "tokenizer.json"))
    (folder / "model.safetensors").write_bytes(b"weights")
    return folder


def write_job(folder: Path, **spec: Any) -> Path:
    """`job.yaml` with fields of the spec replaced (`None`: left out), and its model."""
    manifest = copy.deepcopy(MANIFEST)
    manifest["spec"].update(spec)
    manifest["spec"] = {key: value for key, value in manifest["spec"].items() if value is not None}
    if not (folder / "model").exists():
        write_model(folder / "model")
    file = folder / "job.yaml"
    with file.open("w") as stream:
        YAML(typ="safe", pure=True).dump(manifest, stream)
    return file
