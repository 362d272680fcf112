"""Waits for the script to import a module."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import sys
import types
from collections.abc import Callable, Sequence


class ModuleArrival(importlib.abc.MetaPathFinder):
    """Calls `arrived` once, right after the first import of a module is complete.

    A mere question whether it is there (``importlib.util.find_spec``, as many libraries ask at
    their own import) does not count.
    """

    def __init__(self, name: str, arrived: Callable[[], None]) -> None:
        self._name = name
        self._arrived = arrived
        self._is_asking = False

    def install(self) -> None:
        if self._name in sys.modules:
            self._arrived()
        else:
            sys.meta_path.insert(0, self)

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,
        target: types.ModuleType | None = None,
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != self._name or self._is_asking:
            return None
        self._is_asking = True
        try:
            spec = importlib.util.find_spec(fullname)
        finally:
            self._is_asking = False
        if spec is None or spec.loader is None:
            return spec
        loader = spec.loader
        execute = loader.exec_module

        def exec_module(module: types.ModuleType) -> None:
            sys.meta_path.remove(self)
            execute(module)
            self._arrived()

        loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec
