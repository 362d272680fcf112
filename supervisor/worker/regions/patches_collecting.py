"""The gradients of an update as torch's own optimizer collects them: once, for it and for us.

A walk over 20,000 parameters of which 500 are in use takes 5 ms, and an optimizer of torch makes
one in each step. It is made right before the step instead, and the step takes what it has found.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch.optim import SGD, Adam, AdamW, Optimizer

from supervisor.worker.core.call_state import outside_dynamo

_KINDS = (SGD, Adam, AdamW)
"""Those in which collecting twice is as good as once, whatever the version of torch."""
_COLLECTS = "_init_group"
"""Goes through a group and fills lists, parameters and their gradients first; makes the entries of
a parameter that has none yet."""


class AheadOfStep:
    """What an optimizer has collected for the step to come."""

    def __init__(self) -> None:
        self._collecting: dict[type, tuple[Callable[..., Any], int]] = {}  # and how many lists
        # Group by its id → itself, the lists, and what was returned.
        self._found: dict[int, tuple[Any, list[list[Any]], Any]] = {}
        self._undo: Callable[[], None] | None = None

    def collect(self, optimizer: Optimizer) -> list[torch.Tensor] | None:
        """Returns the gradients that the step will use; None if the optimizer is of another kind.
        Called right before its step, and `forget` after it, or before its gradients change."""
        self.forget()
        kind = type(optimizer)
        if kind not in _KINDS or _COLLECTS in vars(optimizer):
            return None
        if kind not in self._collecting:
            self._collecting[kind] = self._patch(kind)
        collect, count = self._collecting[kind]
        state, entries = optimizer.state, len(optimizer.state)
        gradients: list[torch.Tensor] = []

        def undo() -> None:
            while len(state) > entries:
                state.popitem()

        try:
            with torch.no_grad():
                for group in optimizer.param_groups:
                    lists: list[list[Any]] = [[] for _ in range(count)]
                    self._found[id(group)] = group, lists, collect(optimizer, group, *lists)
                    gradients += lists[1]
        except Exception:  # as the step will
            self._found.clear()
            return None
        self._undo = undo
        return gradients

    def forget(self) -> None:
        """The step was made, or is none: then no entries were made for it either."""
        self._found.clear()
        if self._undo is not None:
            self._undo()
            self._undo = None

    def _patch(self, kind: type) -> tuple[Callable[..., Any], int]:
        owner = next(one for one in kind.__mro__ if _COLLECTS in vars(one))
        original = vars(owner)[_COLLECTS]
        original = getattr(original, "__wrapped__", original)

        @outside_dynamo
        @functools.wraps(original)
        def collected(optimizer: Any, group: Any, *lists: Any, **named: Any) -> Any:
            _, found, returned = self._found.pop(id(group), (None, None, None))
            if found is None or named or len(lists) != len(found) or any(lists):
                return original(optimizer, group, *lists, **named)
            self._undo = None
            for given, own in zip(lists, found, strict=True):
                given += own
            return returned

        setattr(owner, _COLLECTS, collected)
        return original, len(inspect.signature(original).parameters) - 2
