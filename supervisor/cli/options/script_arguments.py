"""Separates the options of `supervisor` from the script and its arguments."""

from __future__ import annotations

import argparse
import ast
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import Literal

from supervisor.config_check import did_you_mean
from supervisor.errors import UsageError
from supervisor.function_arguments import check


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptTarget:
    """What to launch, in the words of `LaunchSpec`."""

    kind: Literal["script", "function", "module"]
    target: str
    function: str | None = None

    @property
    def stem(self) -> str:
        """A short name for run directories."""
        return self.target.rpartition(".")[2] if self.kind == "module" else Path(self.target).stem

    def check(self, words: Sequence[str]) -> None:
        """Raises UsageError if a function does not take these arguments."""
        if self.function:
            check(self.target, self.function, words)


def parse_with_script(
    parser: argparse.ArgumentParser, words: Sequence[str], *, needs_script: bool = True
) -> argparse.Namespace:
    """Parses options up to SCRIPT; sets `script` (a `ScriptTarget`) and `arguments`.

    Everything after SCRIPT (or ``-m MODULE``) belongs to the script.

    Raises:
        UsageError: an unknown option, or SCRIPT is missing or does not exist.
    """
    options, rest = _split(parser, words)
    arguments = parser.parse_args(options)
    if not rest:
        if needs_script:
            parser.error("no SCRIPT given")
        arguments.script, arguments.arguments = None, ()
        return arguments
    if rest[0] == "-m":
        if len(rest) < 2:
            parser.error("-m needs the name of a module")
        arguments.script = _module(rest[1])
        arguments.arguments = tuple(rest[2:])
    else:
        arguments.script = _script(rest[0])
        arguments.arguments = tuple(rest[1:])
        arguments.script.check(arguments.arguments)
    return arguments


def _split(
    parser: argparse.ArgumentParser, words: Sequence[str]
) -> tuple[list[str], Sequence[str]]:
    """Splits before SCRIPT; joins each option with its value, even one like ``-x``."""
    takes_value = {
        name
        for action in parser._actions
        if action.nargs is None and action.option_strings
        for name in action.option_strings
    }
    options: list[str] = []
    index = 0
    while index < len(words):
        word = words[index]
        if word == "--":
            return options, words[index + 1 :]
        if word == "--module":  # so torchrun spells it, too
            return options, ["-m", *words[index + 1 :]]
        if word == "-m" or not word.startswith("-") or word == "-":
            return options, words[index:]
        if word in takes_value and index + 1 < len(words):
            options.append(f"{word}={words[index + 1]}")
            index += 2
        else:
            options.append(word)
            index += 1
    return options, ()


def _script(word: str) -> ScriptTarget:
    path, function = word, ""
    if not Path(word).exists() and ":" in word:
        path, _, function = word.rpartition(":")
    if not path.strip():
        raise UsageError(f"SCRIPT {word!r}: is empty: give the path of a Python script")
    if Path(path).is_dir():
        raise UsageError(f"{path}: is a folder: give a Python file, or `-m PACKAGE`")
    if not Path(path).is_file():
        raise UsageError(f"{path}: no such file: give the path of a Python script")
    _check_python(Path(path))
    if not function and word != path:
        raise UsageError(f"{word}: no function is named after the colon: leave it out, or name one")
    if not function:
        return ScriptTarget(kind="script", target=path)
    _check_function(Path(path), function)
    return ScriptTarget(kind="function", target=path, function=function)


def _check_python(path: Path) -> None:
    """Refuses files that are not Python by their suffix; without one they may be."""
    suffix = path.suffix.lower()
    if suffix == ".ipynb":
        raise UsageError(
            f"{path}: is a notebook: export it with `jupyter nbconvert --to script {path.name}` "
            "and give the .py file"
        )
    if suffix not in ("", ".py", ".pyw"):
        raise UsageError(f"{path}: is not a Python file (.py): give the path of a Python script")


def _check_function(path: Path, function: str) -> None:
    """Looks for the function at the top level; a file that cannot be parsed fails when it runs."""
    try:
        body = ast.parse(path.read_bytes()).body
    except (SyntaxError, ValueError):
        return
    functions = [
        node.name for node in body if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
    ]
    text_names = {
        node.id if isinstance(node, ast.Name) else node.asname or node.name
        for statement in body
        for node in ast.walk(statement)
        if isinstance(node, (ast.Name, ast.alias))
    }
    if function not in functions and function not in text_names and "*" not in text_names:
        hint = did_you_mean(function, functions) or f"; it has: {', '.join(functions) or 'none'}"
        raise UsageError(f"{path}: no function {function!r}{hint}")


def _module(name: str) -> ScriptTarget:
    """Looks for a module without importing anything of the user's."""
    import sys

    search = [str(Path.cwd()), *sys.path]
    try:
        spec = _find(name, search)
    except Exception:  # a special import hook: Python itself will say what is wrong
        return ScriptTarget(kind="module", target=name)
    if spec is None:
        raise UsageError(f"-m {name}: no such module: give a dotted name that Python can import")
    return ScriptTarget(kind="module", target=name)


def _find(name: str, search: list[str]) -> ModuleSpec | None:
    path: list[str] | None = search
    parts = name.split(".")
    spec = None
    for count in range(1, len(parts) + 1):
        if path is None:
            return None
        spec = PathFinder.find_spec(".".join(parts[:count]), path)
        if spec is None:
            return None
        places = spec.submodule_search_locations
        path = list(places) if places is not None else None
    return spec
