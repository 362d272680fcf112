"""Hands a script the torch that its process already has, in the moment in which it imports it."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
import types
from collections.abc import Callable, Collection, Sequence


class ReadyTorch(importlib.abc.MetaPathFinder):
    """Makes ``import torch`` find a module that is complete, as if it were loaded then.

    Args:
        taken: called when torch is imported, before the importer has it.
        others: packages that are hidden, too, until they or torch are imported.
    """

    def __init__(self, taken: Callable[[], None], others: Collection[str] = ()) -> None:
        self._taken = taken
        self._packages = {"torch", *others}
        self._hidden: dict[str, types.ModuleType] = {}

    def install(self) -> None:
        """Hides them with all their modules."""
        for name in [name for name in sys.modules if _package(name) in self._packages]:
            self._hidden[name] = sys.modules.pop(name)
        sys.meta_path.insert(0, self)

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,
        target: types.ModuleType | None = None,
    ) -> importlib.machinery.ModuleSpec | None:
        module = None if path is not None else self._hidden.get(fullname)
        spec = None if module is None else importlib.machinery.PathFinder.find_spec(fullname)
        if module is None or spec is None or spec.origin != module.__file__:
            return None  # the script has one of its own
        spec.loader = _Shown(module, self.show)
        return spec

    def show(self, name: str) -> None:
        """What torch has imported is there with torch; another package is there alone."""
        for each in [n for n in self._hidden if name in ("torch", _package(n))]:
            sys.modules[each] = self._hidden.pop(each)
        if name == "torch":
            sys.meta_path.remove(self)
            self._taken()


class _Shown(importlib.abc.Loader):
    """For one question after a module that is hidden."""

    def __init__(self, module: types.ModuleType, show: Callable[[str], None]) -> None:
        self._module, self._spec, self._show = module, module.__spec__, show

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return self._module

    def exec_module(self, module: types.ModuleType) -> None:
        module.__spec__ = self._spec
        self._show(module.__name__)


def _package(name: str) -> str:
    return name.partition(".")[0]
