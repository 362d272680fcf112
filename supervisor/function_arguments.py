"""Words behind ``FILE:FUNCTION`` become the parameters of the function, by annotation and default.

Asked twice: by the command, of what is written in the file, before anything is started; and by the
worker, of the function itself.
"""

from __future__ import annotations

import ast
import contextlib
import difflib
import enum
import importlib
import inspect
import pathlib
import types
import typing
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, Union

from supervisor.errors import UsageError

_FREE = inspect.Parameter.empty
_GATHERING = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
_MANY = (list, set, frozenset, tuple)
_SAID = {int: "a whole number", float: "a number", bool: "true or false", type(None): "none"}
_TRUTHS = {"true": True, "yes": True, "false": False, "no": False}
_READABLE = ("typing", "pathlib", "collections.abc")


class _Run:
    """Stands for `supervisor.Run` in what is written in a file."""


def written_signature(path: str, function: str) -> inspect.Signature | None:
    """Returns the signature that is written at the top level of a file, without running it.

    None where only the function can tell: it is decorated or imported, or an annotation or a
    default is neither of Python's own words nor a class of the file.
    """
    with contextlib.suppress(Exception):
        body = ast.parse(pathlib.Path(path).read_bytes()).body
        node = [one for one in body if getattr(one, "name", None) == function][-1]
        if not isinstance(node, ast.FunctionDef) or node.decorator_list:
            return None
        if all(isinstance(one, _HARMLESS) for one in ast.walk(node.args)):
            node.body, node.returns = [ast.Pass()], None
            names = _readable_names(body)
            written = ast.fix_missing_locations(ast.Module([node], []))
            exec(compile(written, path, "exec", dont_inherit=True), names)
            hints = [p.annotation for p in inspect.signature(names[function]).parameters.values()]
            if not any(isinstance(hint, str) for hint in hints):
                return real_signature(names[function])
    return None


def check(path: str, function: str, words: Sequence[str]) -> None:
    """Called before anything is started.

    Raises:
        UsageError: see `bind`, as far as the written signature tells.
    """
    signature = written_signature(path, function)
    if signature is not None:
        bind(f"{path}:{function}", signature, words, lambda: None)


def real_signature(function: Callable[..., Any]) -> inspect.Signature:
    """Returns that of a function, with texts among its annotations read where they can be."""
    signature = inspect.signature(function)
    names = {"Run": _Run, **getattr(inspect.unwrap(function), "__globals__", {})}

    def read(hint: Any) -> Any:
        if isinstance(hint, str):
            with contextlib.suppress(Exception):  # imported for type checkers alone
                return eval(hint, names)  # as `typing.get_type_hints` does
            return _Run if hint == "supervisor.Run" else Any
        return hint

    own = [p.replace(annotation=read(p.annotation)) for p in signature.parameters.values()]
    return signature.replace(parameters=own, return_annotation=_FREE)


def bind(
    where: str, signature: inspect.Signature, words: Sequence[str], make_run: Callable[[], Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Returns the arguments of the call. What `make_run` makes goes to a first parameter that is
    annotated as `supervisor.Run`, or is called `run` and has neither annotation nor default.

    Raises:
        UsageError: a word fits no parameter, a value is not what is expected, or one is missing.
    """
    parameters = list(signature.parameters.values())
    found: dict[str, Any] = {}
    if parameters and _is_run(parameters[0]):
        found[parameters.pop(0).name] = make_run()
    named, rest = _by_name(where, parameters, words)
    for p in parameters:
        if p.kind is p.VAR_POSITIONAL and rest:
            found[p.name], rest = tuple(_value(where, p, [word]) for word in rest), []
        elif p.kind is p.VAR_KEYWORD:
            found[p.name] = {key: v for key, v in named.items() if key not in signature.parameters}
        elif p.name in named and p.kind is not p.VAR_POSITIONAL:
            found[p.name] = named[p.name]
        elif rest and p.kind is not p.KEYWORD_ONLY:
            taken, rest = (rest, []) if _many(_hint(p)) else (rest[:1], rest[1:])
            found[p.name] = _value(where, p, taken)
    if rest:
        raise UsageError(f"{where}: {rest[0]!r}: no parameter is left for it{_listed(parameters)}")
    own = [p for p in parameters if p.kind not in _GATHERING]
    missing = [p for p in own if p.default is _FREE and p.name not in found]
    if missing:
        shown = ", ".join(f"{_option(p.name)} ({_said(_hint(p))})" for p in missing)
        raise UsageError(f"{where}: missing: {shown}")
    call = inspect.BoundArguments(signature, OrderedDict(found))
    return call.args, call.kwargs


def _by_name(
    where: str, parameters: Sequence[inspect.Parameter], words: Sequence[str]
) -> tuple[dict[str, Any], list[str]]:
    """Returns the values that are given by name, and the other words."""
    known = {p.name: p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    others = next((p for p in parameters if p.kind is p.VAR_KEYWORD), None)
    given: dict[str, list[str]] = {}
    waiting, rest = list(words), []
    while waiting and (word := waiting.pop(0)) != "--":
        if not _is_option(word):
            rest.append(word)
            continue
        name, has_value, value = word.lstrip("-").partition("=")
        key = name.replace("-", "_") if word.startswith("--") else ""
        p = known.get(key)
        denied = known.get(key.removeprefix("no_")) if p is None and not has_value else None
        if denied is not None and bool in _kinds(_hint(denied)):
            given[denied.name] = ["false"]
            continue
        p = p or (others if key.isidentifier() else None)
        if p is None:
            near = difflib.get_close_matches(key, known, n=1, cutoff=0.6)
            hint = f"; did you mean {_option(near[0])}?" if near else _listed(parameters)
            raise UsageError(f"{where}: {word.partition('=')[0]}: no such parameter{hint}")
        is_flag, many = bool in _kinds(_hint(p)), _many(_hint(p)) is not None
        own = [value] if has_value else []
        while waiting and not has_value and not _is_option(waiting[0]) and (many or not own):
            if waiting[0] == "--" or (is_flag and waiting[0].lower() not in _TRUTHS):
                break
            own.append(waiting.pop(0))
        if not own and not is_flag:
            raise UsageError(f"{where}: {word}: give it a value: {_said(_hint(p))}")
        given[key] = [*(given.get(key, ()) if many else ()), *(own or ["true"])]
    values = {key: _value(where, known.get(key) or others, v, key) for key, v in given.items()}
    return values, rest + waiting


def _is_option(word: str) -> bool:
    """Whether a word begins a name: a negative number is a value."""
    if not word.startswith("-") or word in ("-", "--"):
        return False
    try:
        float(word)
    except ValueError:
        return True
    return False


def _value(where: str, p: Any, words: Sequence[str], name: str = "") -> Any:
    hint = _hint(p)
    many = _many(hint)
    try:
        if many is None:
            return _read(hint, words[0])
        make, inner = many
        kinds = inner if len(inner) > 1 else (inner or [Any]) * len(words)
        return make(_read(kind, word) for kind, word in zip(kinds, words, strict=True))
    except Exception:  # whatever a class of the script's raises
        said = f"{_option(name or p.name)} {' '.join(words)!r}: expected {_said(hint)}"
        raise UsageError(f"{where}: {said}") from None


def _read(hint: Any, word: str) -> Any:
    """Raises any Exception if `word` is not one."""
    kinds = _kinds(hint)
    if len(kinds) > 1:
        if type(None) in kinds and word.lower() == "none":
            return None
        for kind in kinds:
            with contextlib.suppress(Exception):
                return _read(kind, word)
        raise ValueError
    (kind,) = kinds
    if kind in (Any, object):
        with contextlib.suppress(ValueError, SyntaxError):
            found = ast.literal_eval(word)
            return found if isinstance(found, (int, float)) else word
        return _TRUTHS.get(word) if word in ("true", "false") else word
    if kind is bool:
        return _TRUTHS[word.lower()]
    if kind is type(None):
        return {"none": None}[word.lower()]
    if typing.get_origin(kind) is typing.Literal:
        return {str(one): one for one in typing.get_args(kind)}[word]
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return {**{str(one.value): one for one in kind}, **kind.__members__}[word]
    if kind is dict or typing.get_origin(kind) is dict:
        return dict(ast.literal_eval(word))
    return kind(word)


def _hint(p: inspect.Parameter) -> Any:
    """What a parameter takes: as annotated, or of the kind of its default."""
    if p.annotation is not _FREE:
        return p.annotation
    if isinstance(p.default, _MANY):
        inner = {type(one) for one in p.default}
        return list[inner.pop()] if len(inner) == 1 else list  # type: ignore[misc]
    return Any if p.default is _FREE or p.default is None else type(p.default)


def _kinds(hint: Any) -> tuple[Any, ...]:
    """The members of a union, without what only names a type."""
    hint = getattr(hint, "__supertype__", hint)
    origin = typing.get_origin(hint)
    if origin is typing.Annotated:
        return _kinds(typing.get_args(hint)[0])
    if origin in (Union, types.UnionType):
        return tuple(kind for one in typing.get_args(hint) for kind in _kinds(one))
    return (hint,)


def _many(hint: Any) -> tuple[Callable[[Iterable[Any]], Any], list[Any]] | None:
    """How the collection that a hint asks for is made, and of what; None where it is of one."""
    for kind in _kinds(hint):
        origin = typing.get_origin(kind) or kind
        if origin in (*_MANY, Sequence, Iterable, Collection):
            inner = [one for one in typing.get_args(kind) if one is not ...]
            return (origin if origin in _MANY else list), inner
    return None


def _said(hint: Any) -> str:
    many = _many(hint)
    if many is not None:
        inner = [_said(one) for one in many[1]] or ["values"]
        return " and ".join(inner) if len(inner) > 1 else f"one or more of: {inner[0]}"
    said = []
    for kind in _kinds(hint):
        if typing.get_origin(kind) is typing.Literal:
            said.append(f"one of {', '.join(map(str, typing.get_args(kind)))}")
        elif isinstance(kind, type) and issubclass(kind, enum.Enum):
            said.append(f"one of {', '.join(kind.__members__)}")
        elif kind in (Any, str):
            said.append("text")
        else:
            said.append(_SAID.get(kind) or f"a {getattr(kind, '__name__', kind)}")
    return " or ".join(said)


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _listed(parameters: Iterable[inspect.Parameter]) -> str:
    names = [_option(p.name) for p in parameters if p.kind not in _GATHERING]
    own = ", ".join(names) or "none; a script that reads sys.argv is run without :FUNCTION"
    return f"; it has: {own}"


def _is_run(p: inspect.Parameter) -> bool:
    if p.annotation is _FREE:
        return p.name == "run" and p.default is _FREE
    kinds = _kinds(p.annotation)  # its module has imported torch, and ours must not
    ours = [k for k in kinds if getattr(k, "__module__", "") == "supervisor.worker.run"]
    return _Run in kinds or bool(ours)


def _readable_names(body: Sequence[ast.stmt]) -> dict[str, Any]:
    """What the names in a file's annotations mean, where that is certain; others are left out."""
    names: dict[str, Any] = {one.__name__: one for one in (int, float, str, bool, dict, *_MANY)}
    names["__builtins__"] = {}
    modules: dict[str, Any] = {name: importlib.import_module(name) for name in _READABLE}
    modules["supervisor"] = types.SimpleNamespace(Run=_Run)
    for node in body:
        if isinstance(node, ast.ClassDef):
            names[node.name] = Any
        elif isinstance(node, ast.Import):
            names |= {n.asname or n.name: modules.get(n.name) for n in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module in modules:
            found = modules[node.module]
            names |= {n.asname or n.name: getattr(found, n.name, None) for n in node.names}
    return names


_HARMLESS = (
    *(ast.arguments, ast.arg, ast.Name, ast.Attribute, ast.Subscript, ast.Constant, ast.UnaryOp),
    *(ast.Tuple, ast.List, ast.Dict, ast.BinOp, ast.operator, ast.unaryop, ast.expr_context),
)
"""What annotations and plain defaults are written with: none of these calls anything."""
