"""Postpones the import of a module that another library imports, but seldom uses."""

from __future__ import annotations

import sys
import threading
from importlib import import_module
from types import ModuleType
from typing import Any

_replacing = threading.Lock()


class _PostponedModule(ModuleType):
    """Stands for a module in `sys.modules` until something uses one of its attributes.

    `importlib.util.LazyLoader` does not do: before Python 3.12, `import name` alone makes it load.
    """

    def __getattr__(self, attribute: str) -> Any:
        name = self.__name__
        with _replacing:
            if sys.modules.get(name) is self:
                del sys.modules[name]
        return getattr(import_module(name), attribute)


def postpone_import(name: str) -> None:
    """Let `import name` succeed at once, and import the module when an attribute of it is used for the first time.

    Args:
        name: of a module, which is not below another one.
    """
    if name not in sys.modules:
        sys.modules[name] = _PostponedModule(name)
