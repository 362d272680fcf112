"""Runs the user's program as plain ``python`` would: a script, a function of one, or a module.

Waits for the script to import torch, so that what it sets before (thread counts, allocator options)
counts as with plain ``python``.
"""

from __future__ import annotations

import builtins
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import os
import runpy
import sys
import types
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from importlib.machinery import SourceFileLoader
from typing import Any

from supervisor import own_process
from supervisor.errors import UsageError
from supervisor.function_arguments import bind, real_signature


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

    def again(self, line: Sequence[str]) -> tuple[list[str], Program] | None:
        """Returns python's options and the program if a command line runs this one; else None.

        A script that needs a variable before anything is imported executes itself with it.
        """
        words = list(line[1:])
        options: list[str] = []
        while words and words[0].startswith("-") and words[0] not in ("-m", "-c", "-"):
            takes = 2 if words[0] in ("-X", "-W") else 1
            options, words = options + words[:takes], words[takes:]
        if not _is_python(line[0]) or self.kind == "function":
            return None
        if self.kind == "module":
            if words[:2] != ["-m", self.target]:
                return None
            return options, replace(self, arguments=tuple(words[2:]))
        if not words or os.path.realpath(words[0]) != os.path.realpath(self.target):
            return None
        return options, replace(self, target=words[0], arguments=tuple(words[1:]))

    def _run_script(self) -> None:
        """As ``python script.py``: argv, the script's folder first in the path, ``__main__``."""
        self._set_arguments(self.target)
        path = os.path.abspath(self.target)
        main = _new_main()
        main.__dict__.update(
            __file__=path, __cached__=None, __loader__=SourceFileLoader("__main__", path)
        )
        with open(path, "rb") as file:
            source = file.read()
        code = compile(source, path, "exec", dont_inherit=True)
        exec(code, main.__dict__)

    def _run_module(self) -> None:
        """As ``python -m module``: the working directory first in the path.

        The function is the one that python itself calls for ``-m``; `runpy.run_module` would take
        ``__main__`` away again before exit handlers and threads have ended.
        """
        self._set_arguments("-m", self.target)
        _new_main()
        run_as_main: Callable[[str], Any] = runpy._run_module_as_main  # type: ignore[attr-defined]
        run_as_main(self.target)

    def _run_function(self, make_run: Callable[[], Any]) -> None:
        """Imports the script as a module and calls one function of it."""
        self._set_arguments(self.target)
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
        try:
            where, signature = f"{self.target}:{self.function}", real_signature(function)
            arguments, named = bind(where, signature, self.arguments, make_run)
        except UsageError as error:
            print(f"supervisor: error: {error}", file=sys.stderr)
            raise SystemExit(64) from None
        function(*arguments, **named)

    def _set_arguments(self, *words: str) -> None:
        """Sets what the program finds in `sys`; `words` come between python and its arguments."""
        sys.argv = [words[0], *self.arguments]
        sys.orig_argv = [sys.executable, *words, *self.arguments]
        if getattr(sys.flags, "safe_path", False):
            return
        if self.kind == "module":
            folder = os.getcwd()
        else:
            folder = os.path.dirname(os.path.realpath(self.target))
        sys.path.insert(0, folder)
        _forget_hidden_modules(folder)


def _is_python(path: str) -> bool:
    return os.path.realpath(path) == os.path.realpath(sys.executable)


def _new_main() -> types.ModuleType:
    """Returns the module that is ``__main__`` from now on."""
    main = types.ModuleType("__main__")
    main.__dict__["__builtins__"] = builtins
    if sys.version_info < (3, 14):
        main.__annotations__ = {}
    sys.modules["__main__"] = main
    return main


def _forget_hidden_modules(folder: str) -> None:
    """A file of the script's hides a module of Python's as if we had not imported that one."""
    tops = {name.partition(".")[0] for name in sys.modules} - own_process.loaded_at_start
    for top in tops - {"supervisor", *sys.builtin_module_names}:
        path = os.path.join(folder, top)
        if os.path.isfile(f"{path}.py") or os.path.isfile(os.path.join(path, "__init__.py")):
            for name in [n for n in sys.modules if n == top or n.startswith(f"{top}.")]:
                del sys.modules[name]
