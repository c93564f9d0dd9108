"""Reads files of samples, of which any may be damaged, deleted meanwhile, or of another release."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from rljob_core.errors import RLJobError
from rljob_core.words import error_in_words
from rljob_runtime.samples.columnar import column
from rljob_runtime.samples.places import SamplePlace
from rljob_runtime.samples.rows import FORMAT, FORMAT_KEY, JOB_KEY, SCHEMA


class _Unknown(Exception):
    """The file is none of samples, of another release, or of another job."""


@contextmanager
def sample_file(place: SamplePlace, name: str, job: str = "") -> Iterator[pq.ParquetFile]:
    """Open a file of samples, within `explained`; with a job's UID, only if the file is of that job."""
    # Arrow's own threads would read ahead; one that lets go of a file of Python's aborts a process that is ending.
    with place.open(name) as source, pq.ParquetFile(source, pre_buffer=False) as file:
        metadata = file.schema_arrow.metadata or {}
        written = metadata.get(FORMAT_KEY)
        if written is None:
            raise _Unknown("holds no samples of rljob")
        if written != FORMAT:
            raise _Unknown("was written by another release of rljob: read it with that release")
        if job and (other := metadata.get(JOB_KEY, b"").decode(errors="replace")) != job:
            raise _Unknown(f"is of another job (UID {other[:64]!r}) and was left out")
        yield file


@dataclass(slots=True)
class FileProblem:
    """What is wrong with a file.

    Attributes:
        sentence: it in words; empty if nothing is.
        lasting: whether the file's content is wrong, so that it is no use to read it again.
    """

    sentence: str = ""
    lasting: bool = False


@contextmanager
def explained(name: str, problems: list[str]) -> Iterator[FileProblem]:
    """Turn errors of the block, which reads a file, into a sentence more among the problems.

    A file that does not exist was deleted meanwhile, which is no problem.
    """
    found = FileProblem()
    try:
        yield found
    except FileNotFoundError:
        return
    except _Unknown as error:
        found.sentence, found.lasting = f"{name} {error}", True
    except (pa.ArrowException, RLJobError, OSError, ValueError, KeyError, TypeError) as error:
        # pyarrow calls a damaged file an OSError, too, without a number of the system's.
        if isinstance(error, RLJobError) or (isinstance(error, OSError) and error.errno is not None):
            found.sentence = f"{name} cannot be read and was left out: {error_in_words(error)}"
        else:
            found.sentence = f"{name} is damaged and was left out: {error_in_words(error)}"
            found.lasting = True
    if found.sentence:
        problems.append(found.sentence)


def read_rows(
    place: SamplePlace, name: str, rows: Sequence[int], problems: list[str]
) -> dict[int, dict[str, Any]]:
    """Some rows of a file, by their number; of the file, no more is read than the row groups that have them."""
    with explained(name, problems), sample_file(place, name) as file:
        counts = [file.metadata.row_group(n).num_rows for n in range(file.num_row_groups)]
        starts = np.concatenate([[0], np.cumsum(counts)])
        wanted = np.asarray(sorted(row for row in rows if row < starts[-1]))
        found = dict[int, dict[str, Any]]()
        of_group = np.searchsorted(starts, wanted, side="right") - 1
        for group in sorted(set(of_group.tolist())):
            chosen = wanted[of_group == group]
            part = file.read_row_group(group, use_threads=False).take(
                column(pa.int64(), chosen - starts[group])
            )
            found.update(zip(chosen.tolist(), part.to_pylist(), strict=True))
        return found
    return {}


def prompts_in(place: SamplePlace, name: str, problems: list[str]) -> pa.Table:
    """The columns `evaluated`, `prompt_index` and `prompt` of a file; no rows if it cannot be read."""
    columns = ["evaluated", "prompt_index", "prompt"]
    with explained(name, problems), sample_file(place, name) as file:
        return file.read(columns=columns, use_threads=False)
    return SCHEMA.empty_table().select(columns)
