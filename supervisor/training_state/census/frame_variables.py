"""The variables of a function that is being executed."""

from __future__ import annotations

import gc
import sys
import types
from collections.abc import Iterator, Mapping
from typing import Any

FRAMES: dict[type, str] = {
    types.GeneratorType: "gi_frame",
    types.CoroutineType: "cr_frame",
    types.AsyncGeneratorType: "ag_frame",
}
"""Functions that wait → the attribute that is their frame."""


class FrameVariables(Mapping[str, Any]):
    """The variables of a function that is being executed, or of a generator that waits.

    A value that is assigned is what the function goes on with: in Python before 3.13 by the
    interpreter's own call for debuggers, from 3.13 on by PEP 667.
    """

    def __init__(self, frame: types.FrameType) -> None:
        self._frame = frame
        self._variables = frame.f_locals

    def __getitem__(self, name: str) -> Any:
        return self._variables[name]

    def __iter__(self) -> Iterator[str]:
        return iter(list(self._variables))

    def __len__(self) -> int:
        return len(self._variables)

    def __setitem__(self, name: str, value: Any) -> None:
        variables = self._variables = self._frame.f_locals  # as the function has them now
        variables[name] = value
        if sys.version_info < (3, 13) and variables is not self._frame.f_globals:
            import ctypes

            to_fast = ctypes.pythonapi.PyFrame_LocalsToFast
            to_fast(ctypes.py_object(self._frame), ctypes.c_int(0))


def held_by(generator: Any) -> list[Any]:
    """Returns what a generator or coroutine that waits refers to: values of variables, iterators of
    its loops, the outer ones first, and parts of its statement."""
    frame = getattr(generator, FRAMES[type(generator)])
    if frame is None or sys.version_info >= (3, 11):
        return gc.get_referents(generator)
    return gc.get_referents(frame)  # before, the frame is an object of its own
