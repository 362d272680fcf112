"""The variables of the user's own code, as they are at a boundary."""

from __future__ import annotations

import os
import sys
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch.nn import Module

from supervisor.training_state.census.frame_variables import FrameVariables
from supervisor.training_state.census.process_wide import ProcessWide
from supervisor.training_state.user_code import is_library_file
from supervisor.worker.ground.on_the_stack import held_by_blocks
from supervisor.worker.ground.unheld_values import (
    FunctionsUnderWay,
    has_unheld_block,
    has_unheld_values,
)

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
    (`unheld_values`)."""
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


_expressions = FunctionsUnderWay(has_unheld_values, lambda path: is_users(path))
_blocks = FunctionsUnderWay(has_unheld_block, lambda path: is_users(path))
