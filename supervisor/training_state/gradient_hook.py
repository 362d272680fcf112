"""A hook that the script has called when a parameter has got its gradient."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch.compiler import is_dynamo_compiling

_Hook = Callable[[torch.Tensor], Any]


class GradientHook:
    """Stands in the place of a hook of ``register_post_accumulate_grad_hook``.

    Args:
        script_hook: what the script has registered.
        parameter: for whose gradient.
        called: what a backward calls in its place.

    Attributes:
        number: of such hooks, in the order in which the script registered them.
    """

    __slots__ = ("__weakref__", "_called", "_parameter", "number", "script_hook")

    def __init__(
        self, script_hook: _Hook, parameter: torch.Tensor, called: Callable[[GradientHook], Any]
    ) -> None:
        self.script_hook = script_hook
        self.number = -1
        self._parameter = weakref.ref(parameter)
        self._called = called

    def __call__(self, parameter: torch.Tensor) -> None:
        if is_dynamo_compiling():  # a part of a backward that is compiled whole
            self.script_hook(parameter)
        else:
            self._called(self)

    @property
    def parameter(self) -> torch.Tensor | None:
        """None when the script has dropped it."""
        return self._parameter()

    def run(self) -> None:
        """Runs the script's hook."""
        parameter = self._parameter()
        if parameter is not None:
            self.script_hook(parameter)


def hook_of_script(hook: Any) -> Any:
    """Returns what the script has registered."""
    return hook.script_hook if isinstance(hook, GradientHook) else hook
