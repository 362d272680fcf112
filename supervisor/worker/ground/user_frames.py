"""The variables of the user's own code, as they are at a boundary."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch.nn import Module

_OURS = str(Path(__file__).resolve().parents[2]) + os.sep
_TORCH = os.path.dirname(os.path.abspath(torch.__file__)) + os.sep
_PYTHON = os.path.dirname(os.path.abspath(os.__file__)) + os.sep


def user_frames() -> dict[str, Mapping[str, Any]]:
    """Returns name → variables of ``__main__`` and of every user function on the stack.

    Called in the training's thread. A name is the function's name and its depth from the outside,
    so the same place has the same name in a replay.
    """
    scopes: list[tuple[str, Mapping[str, Any]]] = []
    frame = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename
        if frame.f_code.co_name != "<module>" and _is_users(name):
            scopes.append((frame.f_code.co_name, frame.f_locals))
        frame = frame.f_back  # type: ignore[assignment]
    main = sys.modules.get("__main__")
    found: dict[str, Mapping[str, Any]] = {}
    if main is not None:
        found["main"] = main.__dict__
    for depth, (name, variables) in enumerate(reversed(scopes)):
        found[f"{depth}:{name}"] = variables
    return found


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


def _is_users(path: str) -> bool:
    if path.startswith((_OURS, _TORCH, "<frozen")):
        return False
    return not (path.startswith(_PYTHON) and "site-packages" not in path)
