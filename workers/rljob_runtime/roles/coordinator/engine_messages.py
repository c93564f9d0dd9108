"""A message of an engine's work queue while it is filled: a text is in it once for all siblings that go together."""

from __future__ import annotations

from rljob_core.messages import ENGINE_WORK, EngineWork, EngineWorkBatch, Generate
from rljob_core.messages.limits import MESSAGE_BYTES
from rljob_core.trajectory import group_of
from rljob_runtime.roles.coordinator.prompt_texts import ITEM_BYTES, PromptText

WORK_BYTES = 400_000
"""Bytes of one message at most, but that siblings of one long prompt go together."""
_NAME_BYTES = 64
"""What a trajectory that is cancelled or released takes of a message."""


class EngineMessage:
    """One message.

    Args:
        epoch: the coordinator's writer epoch.
    """

    def __init__(self, epoch: int) -> None:
        self._epoch = epoch
        self._items: list[EngineWork] = []
        self._texts: dict[str, str] = {}
        self._size = 0

    def __bool__(self) -> bool:
        return bool(self._items)

    def add(self, item: EngineWork, text: PromptText | None) -> bool:
        """Add work behind what there is; False if the message has no room for it. The first always finds some.

        Args:
            item: the work.
            text: of its prompt, if something is to be generated.
        """
        group = group_of(item.trajectory) if isinstance(item, Generate) else ""
        shares = group in self._texts
        size = ITEM_BYTES if isinstance(item, Generate) else _NAME_BYTES * len(item.trajectories)
        if text is not None and not shares:
            size += text.size
        if self._items and self._size + size > (MESSAGE_BYTES if shares else WORK_BYTES):
            return False
        if text is not None:
            self._texts[group] = text.text
        self._items.append(item)
        self._size += size
        return True

    def data(self) -> bytes:
        """What is sent."""
        return ENGINE_WORK.dump_json(EngineWorkBatch(self._epoch, tuple(self._items), self._texts))
