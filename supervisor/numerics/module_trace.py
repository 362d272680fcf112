"""Which module is running: by hooks in the forward, by marked graph nodes in the backward pass."""

from __future__ import annotations

import abc
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any, TypeVar, cast

import torch
from torch import nn

from supervisor.numerics.model_call import is_float, tensors_in, watched_modules

Entered = TypeVar("Entered", bound="ModuleHooks")


class ModuleHooks(abc.ABC):
    """A context in which calls and returns of every module are reported.

    Leaves no hook behind; the model's own hooks run before ours.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._handles: list[Any] = []

    @abc.abstractmethod
    def _entering(self, path: str) -> Callable[..., None]:
        """Returns the hook ``(module, args, kwargs)`` of the module at `path` for its calls."""

    @abc.abstractmethod
    def _leaving(self, path: str) -> Callable[..., None]:
        """Returns the hook ``(module, args, output)`` of the module at `path` for its returns."""

    def __enter__(self: Entered) -> Entered:
        for path, module in watched_modules(self._model):
            self._handles += [
                module.register_forward_pre_hook(self._entering(path), with_kwargs=True),
                module.register_forward_hook(self._leaving(path)),
            ]
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for handle in self._handles:
            handle.remove()


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


def copies_of(output: Any) -> dict[str, torch.Tensor]:
    """Returns each floating tensor within `output`, copied, by its path."""
    return {
        where: tensor.detach().clone() for where, tensor in tensors_in(output) if is_float(tensor)
    }


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
            found = copies_of(output)
            self.calls.append(LayerCall(name=name, type=type(module).__name__, outputs=found))

        return leave


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
