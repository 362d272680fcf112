"""The outputs of every module in one forward pass, in the order of return."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from supervisor.numerics.forward.module_hooks import ModuleHooks
from supervisor.numerics.forward.tensor_tree import is_float, tensors_in

ROOT = "(model)"


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerCall:
    """One call of one module.

    Attributes:
        name: dotted path in the model, ``(model)`` for the whole; further calls of the same module
            have ``#2``, ``#3``.
        type: class name of the module.
        outputs: path within the output → copy of the floating tensor found there.
    """

    name: str
    type: str
    outputs: dict[str, torch.Tensor]


class ForwardRecord(ModuleHooks):
    """Records the calls of `model`'s modules while it is entered; leaves no hook behind.

    Args:
        model: whose modules to watch; hooks that it has run before ours.
        on_enter: called with name of the call, module, arguments before a module without children
            runs.
    """

    def __init__(
        self,
        model: nn.Module,
        on_enter: Callable[[str, str, tuple[Any, ...], dict[str, Any]], None] | None = None,
    ) -> None:
        super().__init__(model)
        self.calls: list[LayerCall] = []
        self.running: list[tuple[str, str]] = []
        self._on_enter = on_enter
        self._counts: Counter[str] = Counter()

    @property
    def innermost(self) -> str:
        """The module that was running when the pass failed; the whole model before any."""
        return self.running[-1][1] if self.running else ROOT

    def _entering(self, path: str) -> Callable[..., None]:
        def enter(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            self._counts[path] += 1
            number = self._counts[path]
            name = (path or ROOT) + (f"#{number}" if number > 1 else "")
            self.running.append((path, name))
            if self._on_enter and not any(True for _ in module.children()):
                self._on_enter(name, path, args, kwargs)

        return enter

    def _leaving(self, path: str) -> Callable[..., None]:
        def leave(module: nn.Module, args: Any, output: Any) -> None:
            # A module that swallowed a child's exception left that child on the stack.
            while self.running and self.running[-1][0] != path:
                self.running.pop()
            name = self.running.pop()[1] if self.running else path or ROOT
            # Copies: the next layer may work in place on this output.
            found = {
                where: tensor.detach().clone()
                for where, tensor in tensors_in(output)
                if is_float(tensor)
            }
            self.calls.append(LayerCall(name=name, type=type(module).__name__, outputs=found))

        return leave
