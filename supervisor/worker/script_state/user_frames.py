"""The variables of the user's own code, as they are at a boundary.

What the blocks of a function hold while no variable leads there: the iterators of its loops
(`zip((x - mean).split(16))`, a generator that is called in the loop's own line), what a `with` has
entered (`with averaged_weights(model):`), and what a comprehension has gathered so far.

Python keeps them on the function's stack, which it shows to nobody. The memory of the frame is read
as plain numbers, and nothing is followed that might not be an object: of a function whose bytecode
tells how deep its stack is, all to that depth are (`stack_depth`). Elsewhere only those count that
are the address of an object that the garbage collector knows, and to ask it for all takes 15 ms.
The iterators of ranges it does not know: their type is read through the system, which says where
there is no memory. The layout is CPython's (Include/internal/pycore_frame.h,
pycore_interpframe_structs.h): fields, variables, stack.
"""

from __future__ import annotations

import ctypes
import gc
import os
import sys
import types
from collections.abc import Iterator, Mapping, Sequence, Set
from pathlib import Path
from types import CodeType, FrameType, MappingProxyType, MethodType
from typing import Any

import numpy as np
import torch
from torch.nn import Module

from supervisor.training_state.script_state.inside_objects import FrameVariables
from supervisor.training_state.script_state.inside_process import ProcessWide
from supervisor.training_state.script_state.reach import Reach
from supervisor.training_state.user_code import is_library_file
from supervisor.worker.script_state.stack_depth import sure_depth
from supervisor.worker.script_state.stack_temporaries import (
    FunctionsUnderWay,
    blocks_around,
    has_stack_temporaries,
    has_temporary_block,
)

_VALUES = (torch.Tensor, np.ndarray)
_EXITS = ("__exit__", "__aexit__")
_GATHERED = (list, set, dict)
_RANGES = {id(type(iter(range(end)))) for end in (0, 1 << 70)}
_WORD = ctypes.sizeof(ctypes.c_size_t)
_TO_FRAME = 3 * _WORD
"""From the begin of a frame object to the address of the interpreter's frame, from Python 3.11 on;
before, the frame object itself holds the stack."""
_FIELDS = 10 if sys.version_info >= (3, 14) else 9
"""Of the interpreter's frame, before its variables."""
_TAGS = 7
"""Bits of an address in which Python 3.14 keeps a mark; objects lie at multiples of 16."""


def held_by_blocks(
    frames: Sequence[tuple[str, FrameType]], variables: Mapping[str, Mapping[str, Any]]
) -> Mapping[str, Any]:
    """Returns function and place → each of these objects that leads to tensors or arrays to which
    no variable leads; it cannot be written.

    Called in the thread of the functions.

    Args:
        frames: name and frame of functions that are under way.
        variables: name → variables of the script.
    """
    stacks: list[tuple[str, Sequence[int], tuple[int, int] | None]] = []
    known: dict[int, Any] = {}
    wanted: set[int] = set()
    for name, frame in frames:
        blocks = blocks_around(frame)
        if blocks == (0, 0):
            continue
        depth = sure_depth(frame)
        words = _stack(frame)[:depth]
        stacks.append((name, words, blocks))
        if depth is None:
            wanted.update(words)
        else:
            known.update((word, _object_at(word)) for word in words if word)
    if wanted:
        known |= _known_to_python(wanted)
    iterators = {word for word in known if hasattr(type(known[word]), "__next__")}
    iterators |= _of_ranges(wanted - known.keys())
    reached = _objects(Reach(variables))
    found: dict[str, Any] = {}
    for name, stack, blocks in stacks:
        loops, entered = blocks or (None, None)
        held = [*_held_by_loops(stack, known, iterators, loops), *_entered(stack, known, entered)]
        for place, one in held:
            if id(one) not in reached and _leads_to_values(one, reached):
                found[f"{name} {place}"] = one
    return MappingProxyType(found)


def _object_at(word: int) -> Any:
    return ctypes.cast(word, ctypes.py_object).value


def _known_to_python(wanted: Set[int]) -> dict[int, Any]:
    """Returns address → object of those that the garbage collector knows."""
    everything = gc.get_objects()  # hundreds of thousands
    if "t" in sys.abiflags:
        ids = np.fromiter(map(id, everything), np.uintp, len(everything))
    else:  # a list is an array of addresses, to which its fourth word leads
        items = ctypes.c_size_t.from_address(id(everything) + 3 * _WORD).value
        ids = np.array((ctypes.c_size_t * len(everything)).from_address(items), copy=True)
    places = np.flatnonzero(np.isin(ids, np.fromiter(wanted, np.uintp, len(wanted))))
    return {id(one): one for one in map(everything.__getitem__, places.tolist())}


def _held_by_loops(
    words: Sequence[int], known: Mapping[int, Any], iterators: Set[int], count: int | None
) -> Iterator[tuple[str, Any]]:
    """Yields number or place, and object: the first iterators, and all that is below those of
    comprehensions: what they have gathered, and from Python 3.12 on the variables of the function
    that have the names of theirs."""
    places = [place for place, word in enumerate(words) if word in iterators][:count]
    gathering = [at for at in places if at and type(known.get(words[at - 1])) in _GATHERED]
    for place in range(max(gathering, default=0)):
        if place not in places and words[place] in known:
            yield f"below {place}", known[words[place]]
    for number, place in enumerate(places):
        if words[place] in known:
            yield str(number), known[words[place]]


def _entered(
    words: Sequence[int], known: Mapping[int, Any], count: int | None
) -> list[tuple[str, Any]]:
    """Returns number and context manager of the first `with` blocks."""
    left = [one for word in words if (one := _left_by(known.get(word))) is not None]
    return [(f"with {number}", one) for number, one in enumerate(left[:count])]


def _left_by(value: Any) -> Any:
    """The context manager that a function will leave by `value`, which lies on its stack; None for
    other values."""
    if type(value) is MethodType:
        return value.__self__ if value.__name__ in _EXITS else None
    is_there = sys.version_info >= (3, 14) and hasattr(type(value), "__exit__")
    return value if is_there else None


def _of_ranges(words: Set[int]) -> set[int]:
    try:
        memory = os.open("/proc/self/mem", os.O_RDONLY)
    except OSError:  # a sandbox may refuse it: then numbers of loops count no ranges
        return set()
    try:
        return {word for word in words if _type_at(word, memory) in _RANGES}
    finally:
        os.close(memory)


def _type_at(word: int, memory: int) -> int:
    """Returns the address of the type of an object, if there is one at `word`; 0 without memory."""
    try:
        return int.from_bytes(os.pread(memory, _WORD, word + _WORD), sys.byteorder)
    except (OSError, OverflowError):
        return 0


def _leads_to_values(value: Any, reached: Mapping[int, Any]) -> bool:
    below = _objects(Reach({"": {"": value}}))
    return any(isinstance(below[key], _VALUES) for key in below.keys() - reached.keys())


def _stack(frame: FrameType) -> list[int]:
    """Returns the words of a function's stack, the oldest first; what lies above its top is old."""
    size = frame.f_code.co_stacksize
    if sys.version_info < (3, 11):
        end = id(frame) + frame.__sizeof__()
    else:
        begin = ctypes.c_size_t.from_address(id(frame) + _TO_FRAME).value
        end = begin + (_FIELDS + _variable_count(frame.f_code) + size) * _WORD
    return [word & ~_TAGS for word in _words(end - size * _WORD, size)]


def _words(address: int, count: int) -> Sequence[int]:
    """Reads memory; none where the system says that there is none.

    It is asked only where nobody has tried the layout: a sandbox may refuse to tell.
    """
    words = ctypes.c_size_t * count
    if sys.version_info < (3, 14) and "t" not in sys.abiflags:
        return list(words.from_address(address))
    try:
        with open("/proc/self/mem", "rb", 0) as memory:
            read = os.pread(memory.fileno(), count * _WORD, address)
            return list(words.from_buffer_copy(read))
    except (OSError, OverflowError, ValueError):
        return ()


def _variable_count(code: CodeType) -> int:
    return len({*code.co_varnames, *code.co_cellvars}) + len(code.co_freevars)


def _objects(reach: Reach) -> dict[int, Any]:
    for _ in reach:
        pass
    return reach.objects


_OURS = str(Path(__file__).parents[2]) + os.sep
_PROGRAM = os.path.join(_OURS, "worker", "process", "program.py")
"""Runs the script: what stands below it on the stack is whoever started this process."""
_TORCH = os.path.dirname(os.path.abspath(torch.__file__)) + os.sep
_PYTHON = os.path.dirname(os.path.abspath(os.__file__)) + os.sep
_KNOWN = ("supervisor", "__main__", "__mp_main__")
"""Ours, and the names of the main module: `multiprocessing` gives it the other one."""
UNNAMED = "in blocks"
"""Stands for a function: what loops go over, and `with` has entered, that no variable holds."""
PROCESS = "process"
"""Stands for a function, too: what was set for the whole process."""
_OF_FORWARD = ("self", "module", "args", "kwargs", "call")
"""Arguments of `TrainingHooks.forward`."""


def user_frames() -> dict[str, Mapping[str, Any]]:
    """Returns name → variables of ``__main__``, of the script's other modules, and of every user
    function on the stack, which can be written; under `PROCESS` what it has set for all of them,
    and under `UNNAMED` what only blocks hold.

    Called in the training's thread. A function's name here is its own and its depth from the
    outside, so the same place has the same name in a replay.
    """
    frames: list[types.FrameType] = []
    frame: types.FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename != _PROGRAM:
        if is_users(frame.f_code.co_filename):
            frames.append(frame)
        frame = frame.f_back
    main = sys.modules.get("__main__")
    found: dict[str, Mapping[str, Any]] = {}
    if main is not None:
        found["main"] = main.__dict__
    functions = [frame for frame in reversed(frames) if frame.f_code.co_name != "<module>"]
    for depth, frame in enumerate(functions):
        found[f"{depth}:{frame.f_code.co_name}"] = FrameVariables(frame)
    for depth, frame in enumerate(reversed(frames)):
        if frame.f_code.co_name == "<module>" and frame.f_code.co_varnames:
            found[f"{depth}:comprehension"] = _of_comprehension(frame)
    for name in _users_modules():
        found[name] = sys.modules[name].__dict__
    found[PROCESS] = ProcessWide()
    if _blocks.any():
        named = [(f"{n}:{frame.f_code.co_name}", frame) for n, frame in enumerate(reversed(frames))]
        found[UNNAMED] = held_by_blocks(named, found)
    return found


def _of_comprehension(frame: types.FrameType) -> Mapping[str, Any]:
    """From Python 3.12 on a comprehension is no function of its own: in a module its variables are
    in the module's frame, and not among the module's."""
    own, known = frame.f_locals, frame.f_code.co_varnames
    return types.MappingProxyType({name: own[name] for name in known if name in own})


def is_within_expression() -> bool:
    """Whether one of the user's functions on the stack has computed a part of its statement already
    (`stack_temporaries`)."""
    return _expressions.any()


def call_under_way() -> Mapping[str, Any]:
    """Returns the module and arguments of the script's forward within which this is called; none
    elsewhere."""
    frame: types.FrameType | None = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        if code.co_varnames[: len(_OF_FORWARD)] == _OF_FORWARD:
            return {name: frame.f_locals[name] for name in ("module", "args", "kwargs")}
        frame = frame.f_back
    return {}


_is_users_by_name: dict[str, bool] = {}


def _users_modules() -> list[str]:
    """Names of the modules that the script brings with it, beside ``__main__``."""
    known = _is_users_by_name
    for name in sys.modules.keys() - known.keys():
        known[name] = _is_users_module(name)
    return sorted(name for name, is_theirs in known.items() if is_theirs and name in sys.modules)


def _is_users_module(name: str) -> bool:
    # from its own variables: a lazy module would import what it stands for, and may not find it
    variables = getattr(sys.modules.get(name), "__dict__", {})
    file = variables.get("__file__")
    if name.partition(".")[0] in _KNOWN:
        return False
    if not isinstance(file, str):
        return _is_made_by_hand(name, variables)
    return not file.startswith(_OURS) and not is_library_file(file)


def _is_made_by_hand(name: str, variables: Mapping[str, Any]) -> bool:
    """Whether it is no extension in C, but a module that the script made (`types.ModuleType`)."""
    is_made = variables.get("__name__") == name and variables.get("__spec__", name) is None
    return is_made and "." not in name and any(map(_is_of_script, variables.values()))


def _is_of_script(value: Any) -> bool:
    """Whether it is a function of Python code that belongs to no library."""
    return isinstance(value, types.FunctionType) and not is_library_file(value.__code__.co_filename)


def modules_in(frames: Mapping[str, Mapping[str, Any]]) -> list[Module]:
    """The modules with parameters that the user's variables name directly."""
    found: list[Module] = []
    for variables in frames.values():
        for value in list(variables.values()):
            if not isinstance(value, Module) or any(value is known for known in found):
                continue
            if next(Module.named_parameters(value), None) is not None:
                found.append(value)
    return found


def is_users(path: str) -> bool:
    """Whether a file belongs to the script or to a library that is neither Python, torch nor us."""
    if is_torchs_or_ours(path) or path.startswith("<frozen"):
        return False
    return not (path.startswith(_PYTHON) and "site-packages" not in path)


def is_torchs_or_ours(path: str) -> bool:
    return path.startswith((_OURS, _TORCH))


_expressions = FunctionsUnderWay(has_stack_temporaries, lambda path: is_users(path))
_blocks = FunctionsUnderWay(has_temporary_block, lambda path: is_users(path))
