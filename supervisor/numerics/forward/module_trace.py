"""Which module is running: by hooks in the forward, by marked graph nodes in the backward pass."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, cast

import torch
from torch import nn

from supervisor.numerics.forward.forward_record import ROOT
from supervisor.numerics.forward.module_hooks import ModuleHooks
from supervisor.numerics.forward.tensor_tree import tensors_in

LOSS = "(loss)"
MARK = "training_supervisor_module"


class ModuleTrace(ModuleHooks):
    """Knows the running module while it is entered; leaves no hook behind.

    Autograd nodes are marked with the innermost module that made them.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model)
        self._types = {path or ROOT: type(m).__name__ for path, m in model.named_modules()}
        self._stack: list[str] = []
        self._node: tuple[str, str] | None = None
        self.outside = LOSS
        """The name for work outside of the model."""

    @property
    def module(self) -> str:
        """The innermost running module, or `outside`."""
        if self._stack and not self._deriving:
            return self._stack[-1]
        return self._node[0] if self._node else self.outside

    @property
    def node(self) -> str:
        """The operation whose derivative is being computed, ``sqrt``; empty in the forward pass."""
        if not self._node or not self._deriving:
            return ""
        plain = re.sub(r"Backward\d*$", "", self._node[1])
        return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", plain).lower()

    @property
    def _deriving(self) -> bool:
        """Whether a derivative is computed now, and no activation recomputed (gradients on)."""
        return self._node is not None and not torch.is_grad_enabled()

    def type_of(self, module: str) -> str:
        return self._types.get(module, "")

    def settle(self) -> None:
        """Notes that nothing is running: the backward pass is over, or a pass failed."""
        self._stack.clear()
        self._node = None

    def mark(self, value: Any, module: str) -> None:
        """Marks the unmarked nodes behind the tensors of `value`."""
        open_nodes = [tensor.grad_fn for _, tensor in tensors_in(value)]
        while open_nodes:
            node = open_nodes.pop()
            if node is None:
                continue
            # torch declares this property as a method
            metadata = cast("dict[str, Any]", node.metadata)
            if MARK in metadata:
                continue
            metadata[MARK] = module
            node.register_prehook(self._arriving(module, node.name()))
            open_nodes += [following for following, _ in node.next_functions]

    def _entering(self, path: str) -> Callable[..., None]:
        name = path or ROOT

        def enter(module: nn.Module, args: Any, kwargs: Any) -> None:
            if self._stack:
                self.mark((args, kwargs), self._stack[-1])
            self._stack.append(name)

        return enter

    def _leaving(self, path: str) -> Callable[..., None]:
        name = path or ROOT

        def leave(module: nn.Module, args: Any, output: Any) -> None:
            self.mark(output, name)
            while self._stack and self._stack.pop() != name:
                pass

        return leave

    def _arriving(self, module: str, node: str) -> Callable[..., None]:
        def arrive(gradients: tuple[torch.Tensor, ...]) -> None:
            self._node = (module, node)
            # A recomputation that stops early leaves its modules without a word.
            self._stack.clear()

        return arrive
