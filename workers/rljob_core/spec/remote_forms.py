"""What URIs of models and data sets on a hub or in an object store look like, and lists of servers."""

from __future__ import annotations

import re
from typing import Any

from rljob_core.spec.base import Rule

_NAME = r"[A-Za-z0-9][A-Za-z0-9._-]*"
_REVISION = r"(@[A-Za-z0-9][A-Za-z0-9._%-]*)?"
SCHEMES = ("hf://", "s3://", "gs://")
"""Of what is downloaded."""
HUB_MODEL = f"hf://{_NAME}/{_NAME}{_REVISION}"
"""Of a model's URI."""
HUB_DATA = f"hf://datasets/{_NAME}/{_NAME}{_REVISION}/[^@]+"
"""Of a data set's URI."""
_BUCKET = r"(s3|gs)://[a-z0-9][a-z0-9._-]*/.+"
_MODEL = f"^({HUB_MODEL}|{_BUCKET})$"
_DATA = f"^({HUB_DATA}|{_BUCKET})$"


def _fits(pattern: str, text: str) -> bool:
    return not text.startswith(SCHEMES) or re.fullmatch(pattern, text, re.ASCII) is not None


def _model_fits(model: Any) -> bool:
    return _fits(_MODEL, model.uri) and not model.uri.startswith("hf://datasets/")


def _data_fits(data: Any) -> bool:
    return data.dataset is None or _fits(_DATA, data.dataset)


MODEL_FORM = Rule(
    "uri",
    "!self.uri.matches('^(hf|s3|gs)://') || "
    f"self.uri.matches(r'{_MODEL}') && !self.uri.startsWith('hf://datasets/')",
    "must be hf://org/name, hf://org/name@revision (a slash in it as %2F), s3://bucket/folder or gs://bucket/folder",
    _model_fits,
)
DATA_FORM = Rule(
    "dataset",
    f"!has(self.dataset) || !self.dataset.matches('^(hf|s3|gs)://') || self.dataset.matches(r'{_DATA}')",
    "must be hf://datasets/org/name@revision/path, s3://bucket/path or gs://bucket/path; the path is that of a file, a "
    "folder, or a pattern such as data/train-*.parquet",
    _data_fits,
)
FILES_ONLY = Rule(
    "source",
    "!has(self.dataset) || !self.dataset.matches('^(hf|s3|gs)://') || has(self.source) && "
    "self.source != 'reasoning-gym'",
    "must be jsonl or parquet, as the data set's files are: reasoning-gym generates its own",
    lambda data: (
        data.dataset is None or not data.dataset.startswith(SCHEMES) or data.source in {"jsonl", "parquet"}
    ),
)


ONE_SCHEME = (
    "must have the same scheme before each server, as the first one's counts for all: for instance "
    "tls://a:4222,tls://b:4222"
)


def one_scheme(urls: str) -> bool:
    """Whether servers, with commas between them, have the same scheme: TLS is asked for of all or of none."""
    scheme, *_ = urls.split("://")
    return urls.count(",") == urls.count(f",{scheme}://")
