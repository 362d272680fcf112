"""Runs the user's program as plain ``python`` would: the four forms of M1."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import os
import runpy
import sys
import types
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """What to run: a script, a function of one, or a module.

    Attributes:
        kind: ``script``, ``function`` or ``module``.
        target: the path as the user gave it, or the module's name.
        function: name, for the kind ``function``.
        arguments: what the program finds in ``sys.argv[1:]``.
    """

    kind: str
    target: str
    function: str | None
    arguments: tuple[str, ...]

    def run(self, make_run: Callable[[], Any]) -> None:
        """Runs it to its end; whatever it raises comes through."""
        if self.kind == "module":
            self._run_module()
        elif self.kind == "function":
            self._run_function(make_run)
        else:
            self._run_script()

    def _run_script(self) -> None:
        """As ``python script.py``: argv, the script's folder first in the path, ``__main__``."""
        sys.argv = [self.target, *self.arguments]
        sys.path[0:1] = [os.path.dirname(os.path.abspath(self.target))]
        path = os.path.abspath(self.target)
        main = types.ModuleType("__main__")
        main.__dict__.update(
            __file__=path, __builtins__=__builtins__, __cached__=None, __annotations__={}
        )
        sys.modules["__main__"] = main
        with open(path, "rb") as file:
            source = file.read()
        code = compile(source, path, "exec", dont_inherit=True)
        exec(code, main.__dict__)

    def _run_module(self) -> None:
        """As ``python -m module``: the working directory first in the path."""
        sys.argv = [self.target, *self.arguments]
        sys.path[0:1] = [os.getcwd()]
        runpy.run_module(self.target, run_name="__main__", alter_sys=True)

    def _run_function(self, make_run: Callable[[], Any]) -> None:
        """Imports the script as a module and calls one function of it."""
        sys.argv = [self.target, *self.arguments]
        sys.path[0:1] = [os.path.dirname(os.path.abspath(self.target))]
        name = os.path.splitext(os.path.basename(self.target))[0]
        spec = importlib.util.spec_from_file_location(name, self.target)
        if spec is None or spec.loader is None:
            raise ImportError(f"{self.target}: cannot be imported: give a Python file")
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
        function = getattr(module, self.function or "", None)
        if function is None:
            raise AttributeError(f"{self.target} has no function '{self.function}'")
        parameters = inspect.signature(function).parameters.values()
        takes_run = any(p.default is p.empty and p.kind != p.VAR_KEYWORD for p in parameters)
        function(make_run()) if takes_run else function()
