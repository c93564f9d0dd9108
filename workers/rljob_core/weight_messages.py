"""How versions of the weights are stored as messages, for all that reads, copies or sweeps them.

| suffix on the channel `WEIGHTS` | message |
|---|---|
| `chunk.<key>` | a part of a version's tensors; once they are deleted, one empty message |
| `part.<key>` | the beginning of a manifest that is too long for one message |
| `manifest.<key>` | the rest of the manifest, or all of it |
| `deleted.<key>` | empty: the version's tensors are deleted |

A version that is a delta needs those that it depends on, down to its anchor. The header `BEGINS` of a manifest's
message names the sequence of the first message that a reader of this version needs.
"""

from __future__ import annotations

from collections.abc import Container, Mapping

CHUNK, PART, MANIFEST, DELETED = "chunk", "part", "manifest", "deleted"
BEGINS = "Rljob-Begins"
_DIGITS = 19


def begins(headers: Mapping[str, str], *, own: int) -> int | None:
    """The sequence that `BEGINS` names; None if it names none that can be.

    Args:
        headers: of a manifest's message.
        own: its sequence.
    """
    text = headers.get(BEGINS, "")
    if not (text.isascii() and text.isdigit() and len(text) <= _DIGITS):
        return None
    return int(text) if 0 < int(text) <= own else None


def kept_keys(original: Mapping[str, int]) -> list[str]:
    """Keys of the versions whose tensors are stored.

    Args:
        original: number of messages of each suffix.
    """
    keys = (suffix.partition(".")[2] for suffix in original if suffix.startswith(f"{MANIFEST}."))
    return [key for key in keys if has_tensors(key, original)]


def has_tensors(key: str, suffixes: Container[str]) -> bool:
    """Whether a version has tensors, or a part of them, among messages of these suffixes."""
    return f"{CHUNK}.{key}" in suffixes and f"{DELETED}.{key}" not in suffixes


def lacking_at_copy(
    original: Mapping[str, int],
    copy: Mapping[str, int],
    manifests: Mapping[str, int],
    *,
    first: int,
    last: int,
) -> list[str]:
    """Keys of versions that a copy of the weights should have and has not, or not all of.

    A copy takes messages in order. What it lacks of those up to its last one, it has lost with its machine, or it began
    later.

    Args:
        original: number of messages of each suffix, counted after the copy's.
        copy: the same of the copy.
        manifests: sequences of the manifests of versions whose tensors are stored, by key.
        first: sequence of the first message that the copy needs.
        last: sequence of its last message.
    """

    def is_there(key: str) -> bool:
        counted = (f"{CHUNK}.{key}", f"{PART}.{key}")
        return f"{MANIFEST}.{key}" in copy and all(copy.get(s, 0) >= original.get(s, 0) for s in counted)

    return [key for key, sequence in manifests.items() if first <= sequence <= last and not is_there(key)]


def only_at_copy(original: Mapping[str, int], copy: Mapping[str, int]) -> list[str]:
    """Suffixes of which the original has nothing left: a copy does not hear that a stream was purged.

    The arguments are those of `lacking_at_copy`.
    """
    return [suffix for suffix in copy if suffix not in original]
