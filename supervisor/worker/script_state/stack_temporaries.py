"""What functions that are being executed hold in no variable: values that a statement has computed
before the call within which it stands (the left side of a sum, earlier arguments), what loops go
over, and what a `with` enters.

A replay computes them with the tensors that it has, and whatever is put back later does not reach
them. They are found in the source: for each call the parts of its statement that are evaluated
before it. Names, attributes, constants, views and objects just made of such lead to what is put
back; anything else counts as computed. What a loop goes over is held if a variable leads to it, or
if a function of Python's own goes over such. So it is with what a `with` enters, where that is no
context of torch's.
"""

from __future__ import annotations

import ast
import itertools
import sys
import tokenize
from collections.abc import Callable, Iterator
from types import CodeType, FrameType
from typing import Any

from supervisor.training_state.user_code import source_lines

GOES_OVER = frozenset(
    (
        *("enumerate", "filter", "iter", "list", "map", "range", "reversed", "sorted", "tqdm"),
        *("trange", "tuple", "zip", "islice", "items", "keys", "values"),
    )
)
"""Functions and methods that hold what they are given, and nothing else that could be trained."""
COUNTS = frozenset(("range", "trange"))
"""Those of them that hold numbers."""

HOLD_NOTHING = frozenset(
    (
        *("no_grad", "enable_grad", "inference_mode", "set_grad_enabled", "autocast", "no_sync"),
        *("open", "nullcontext", "suppress", "record_function", "profile", "device", "stream"),
    )
)
"""Functions and classes whose contexts hold nothing that could be trained."""
_GATHER = (ast.ListComp, ast.SetComp, ast.DictComp)
_NOWHERE = (-1, -1)
"""Python was told to forget columns (``-X no_debug_ranges``)."""

Look = Callable[[FrameType], bool]


class FunctionsUnderWay:
    """Asks `look` for each of the user's functions that are being executed; it is asked once for a
    place in a function.

    Args:
        look: `has_stack_temporaries` or `has_temporary_block`.
        is_users: whether a file is the user's.
    """

    def __init__(self, look: Look, is_users: Callable[[str], bool]) -> None:
        self._look = look
        self._is_users = is_users
        # by the number of a code, which is kept here: the hash of a code is slow
        self._known: dict[tuple[int, int], tuple[CodeType, bool]] = {}

    def any(self) -> bool:
        """Called in the training's thread."""
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            code = frame.f_code
            key = (id(code), frame.f_lasti)
            known = self._known.get(key)
            if known is None:
                found = self._is_users(code.co_filename) and self._look(frame)
                known = self._known[key] = (code, found)
            if known[1]:
                return True
            frame = frame.f_back
        return False


def has_stack_temporaries(frame: FrameType) -> bool:
    """Whether a function that stands within a call has such values. True where nobody can say: no
    source, or a call that is not written as one."""
    source = _source(frame)
    if source is None:
        return True
    tree, line, before = source
    place = _place(frame, before)
    found = [path for path in _paths(tree, [], line) if _is_at(path[-1], place)]
    return not found or any(map(_computes_before, found))


def has_temporary_block(frame: FrameType) -> bool:
    """Whether a function stands within a loop over something, or a `with` that entered something,
    that may be in no variable, or within a comprehension, whose result is in none yet."""
    source = _source(frame)
    if source is None:
        return True
    tree, line, _ = source
    around = list(_around(tree, line))
    return not all(
        not isinstance(node, _GATHER)
        and all(map(_is_gone_over, _loops_over(node)))
        and all(map(_is_entered, _entered_by(node)))
        for node in around
    )


def call_names(frame: FrameType) -> list[str] | None:
    """Returns the names of the functions that a frame is calling, of methods with a dot before
    them: of one, or of all on the line where Python does not tell which; None where nobody can say.
    """
    source = _source(frame)
    if source is None:
        return None
    tree, line, before = source
    place = _place(frame, before)
    if place == _NOWHERE:
        return None
    calls = [path[-1] for path in _paths(tree, [], line) if _is_at(path[-1], place)]
    functions = [call.func for call in calls if isinstance(call, ast.Call)]
    return ["." * isinstance(one, ast.Attribute) + _name(one) for one in functions]


def blocks_around(frame: FrameType) -> tuple[int, int] | None:
    """Returns how many loops a function stands in, and how many contexts it has entered, or a few
    more; None where nobody can say."""
    key = (frame.f_code.co_filename, frame.f_code, frame.f_lineno)
    if key not in _blocks_known:
        _blocks_known[key] = _blocks_around(frame)
    return _blocks_known[key]


_blocks_known: dict[tuple[str, CodeType, int], tuple[int, int] | None] = {}


def _blocks_around(frame: FrameType) -> tuple[int, int] | None:
    source = _source(frame)
    if source is None:
        return None
    tree, line, _ = source
    around = list(_around(tree, line))
    loops = sum(len(_loops_over(node)) for node in around)
    return loops, sum(len(_entered_by(node)) for node in around)


def _around(node: ast.AST, line: int) -> Iterator[ast.AST]:
    """Yields what stands below `node` and around `line`. The decorators of a function stand above
    its own lines."""
    for child in ast.iter_child_nodes(node):
        first, last = getattr(child, "lineno", line), getattr(child, "end_lineno", None) or line
        is_around = first <= line <= last
        if is_around:
            yield child
        if is_around or not isinstance(child, ast.stmt) or hasattr(child, "decorator_list"):
            yield from _around(child, line)


def _loops_over(node: ast.AST) -> list[ast.expr]:
    if isinstance(node, (ast.For, ast.AsyncFor)):
        return [node.iter]
    if isinstance(node, (*_GATHER, ast.GeneratorExp)):
        return [each.iter for each in node.generators]
    return []


def _entered_by(node: ast.AST) -> list[ast.expr]:
    items = node.items if isinstance(node, (ast.With, ast.AsyncWith)) else []
    return [item.context_expr for item in items]


def _is_entered(part: ast.AST) -> bool:
    if isinstance(part, ast.Call) and _name(part.func) in HOLD_NOTHING:
        return True
    return _is_held(part) and not isinstance(part, ast.Call)


def _is_gone_over(part: ast.AST) -> bool:
    if isinstance(part, ast.Starred):
        return _is_gone_over(part.value)
    if not (isinstance(part, ast.Call) and _name(part.func) in GOES_OVER):
        return _is_held(part)
    if _name(part.func) in COUNTS:
        return True
    inside = [part.func.value] if isinstance(part.func, ast.Attribute) else []
    given = [*part.args, *(one.value for one in part.keywords if one.arg == "iterable")]
    return all(map(_is_held, inside)) and all(map(_is_gone_over, given))


def _source(frame: FrameType) -> tuple[ast.Module, int, int] | None:
    """Returns the function's source, the line in it that is executed, and how many lines of the
    file are before it; None if it cannot be had."""
    code = frame.f_code
    if id(code) not in _sources:
        _sources[id(code)] = code, _parsed(code, frame.f_globals)
    parsed = _sources[id(code)][1]
    return None if parsed is None else (parsed[0], frame.f_lineno - parsed[1], parsed[1])


_sources: dict[int, tuple[CodeType, tuple[ast.Module, int] | None]] = {}


def _parsed(code: CodeType, variables: dict[str, Any]) -> tuple[ast.Module, int] | None:
    try:
        lines, first = source_lines(code, variables)
        is_deep = first > 0 and lines[0][:1].isspace()
        tree = ast.parse("".join(["if 1:\n"] * is_deep + lines))
    except (OSError, SyntaxError, ValueError, IndexError, tokenize.TokenError):
        return None
    return tree, max(first, 1) - 1 - is_deep


def _place(frame: FrameType, before: int) -> tuple[int, int] | None:
    """Line and column at which the call under way ends; None before Python 3.11.

    Args:
        before: lines of the file before the source that is looked at.
    """
    if sys.version_info < (3, 11):
        return None
    places = list(frame.f_code.co_positions())
    _, line, _, column = places[frame.f_lasti // 2]
    return _NOWHERE if line is None or column is None else (line - before, column)


def _is_at(call: ast.AST, place: tuple[int, int] | None) -> bool:
    assert isinstance(call, ast.Call)
    if place is None:
        return True
    return (call.end_lineno, call.end_col_offset) == place


def _paths(node: ast.AST, above: list[ast.AST], line: int) -> Iterator[list[ast.AST]]:
    """Yields the way from its statement to each call that stands at `line`."""
    first = getattr(node, "lineno", line)
    if not first <= line <= (getattr(node, "end_lineno", None) or line):
        return
    above = [node] if isinstance(node, ast.stmt) else [*above, node]
    if isinstance(node, ast.Call):
        yield above
    for child in ast.iter_child_nodes(node):
        yield from _paths(child, above, line)


def _computes_before(path: list[ast.AST]) -> bool:
    return any(
        not _is_held(part)
        for node, child in itertools.pairwise(path)
        for part in _evaluated_before(node, child)
    )


def _evaluated_before(node: ast.AST, child: ast.AST) -> list[ast.expr]:
    """Returns the parts of `node` whose values wait while `child`, another of its parts, is
    evaluated."""
    parts: list[ast.expr] = []
    if isinstance(node, ast.AugAssign):
        parts = [node.target]
    elif isinstance(node, ast.BinOp):
        parts = [node.left, node.right]
    elif isinstance(node, ast.Compare):
        parts = [node.left, *node.comparators]
    elif isinstance(node, ast.Call):
        parts = [node.func, *node.args, *(keyword.value for keyword in node.keywords)]
        if isinstance(child, ast.keyword):
            child = child.value
    elif isinstance(node, ast.Dict):
        pairs = zip(node.keys, node.values, strict=True)
        parts = [part for pair in pairs for part in pair if part is not None]
    elif isinstance(node, (ast.Tuple, ast.List, ast.Set)):
        parts = node.elts
    elif isinstance(node, ast.Subscript):
        parts = [node.value, node.slice]
    elif isinstance(node, ast.JoinedStr):
        parts = node.values
    return parts[: parts.index(child)] if child in parts else parts[:1]


def _is_held(part: ast.AST) -> bool:
    if isinstance(part, (ast.Name, ast.Constant, ast.Lambda)):
        return True
    if isinstance(part, (ast.Attribute, ast.Starred)):
        return _is_held(part.value)
    if isinstance(part, ast.Subscript):
        return _is_held(part.value) and _is_constant(part.slice)
    if isinstance(part, (ast.Tuple, ast.List, ast.Set)):
        return all(map(_is_held, part.elts))
    if isinstance(part, ast.UnaryOp):
        return isinstance(part.operand, ast.Constant)
    return isinstance(part, ast.Call) and _makes_object(part)


def _is_constant(index: ast.AST) -> bool:
    """Whether an index gives a view of a tensor, or what a container holds."""
    return all(
        isinstance(
            part, (ast.Constant, ast.Slice, ast.Tuple, ast.UnaryOp, ast.USub, ast.expr_context)
        )
        for part in ast.walk(index)
    )


def _makes_object(call: ast.Call) -> bool:
    """Whether it is a class, by its name, that is called with nothing computed: `nn.MSELoss()`."""
    given = [*call.args, *(keyword.value for keyword in call.keywords)]
    return _name(call.func)[:1].isupper() and _is_held(call.func) and all(map(_is_held, given))


def _name(function: ast.AST) -> str:
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""
