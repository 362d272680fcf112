"""Hands a script the torch that its process already has, in the moment in which it imports it."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
import types
from collections.abc import Callable, Sequence


class ReadyTorch(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Makes ``import torch`` find a module that is complete, as if it were loaded then.

    Args:
        taken: called when torch is imported, before the importer has it.
    """

    def __init__(self, taken: Callable[[], None]) -> None:
        self._taken = taken
        self._torch = sys.modules["torch"]
        self._spec = self._torch.__spec__

    def install(self) -> None:
        """Hides torch until it is imported; its submodules stay."""
        del sys.modules["torch"]
        sys.meta_path.insert(0, self)

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,
        target: types.ModuleType | None = None,
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != "torch":
            return None
        spec = importlib.machinery.ModuleSpec("torch", self, origin=self._torch.__file__)
        spec.submodule_search_locations = list(self._torch.__path__)
        return spec

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return self._torch

    def exec_module(self, module: types.ModuleType) -> None:
        sys.meta_path.remove(self)
        module.__spec__ = self._spec
        self._taken()
